"""Wan taken apart: the pieces of diffusers' WanPipeline that a rank runs, and what it computes once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridgen.distributed.sequence import Shard
from hybridgen.models.attention import Rotary, SelfAttention, TextAttention, split_heads
from hybridgen.models.denoiser import Denoiser
from hybridgen.models.inputs import Encoder, Inputs
from hybridgen.models.slots import Cuts, Pass, Step
from hybridgen.plan.kernels import Kernel
from hybridgen.plan.plan import Plan


@dataclass(frozen=True)
class Condition:
    """Inputs of the blocks and the head in addition to the tokens, for one step and branch."""

    time: Tensor
    """Embedded time, [1, 1, D], or [1, n, D] where every token has its own timestep."""
    modulation: Tensor
    """Modulations, [1, 6, D] or [1, n, 6, D]."""
    text: Tensor
    """Text embedding, [1, text tokens, D]."""
    rope: tuple[Tensor, Tensor]
    """Rotary tables cos and sin, [1, n, 1, head_dim] each."""


class WanSelfAttention(SelfAttention):
    """Processor that norms queries and keys over all heads at once."""

    def heads(self, attn: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k = self.model.slots.norm((attn.norm_q, attn.to_q(hidden_states)), (attn.norm_k, attn.to_k(hidden_states)))
        q, k, v = (split_heads(x, attn.heads) for x in (q, k, attn.to_v(hidden_states)))
        return q, k, v

    def placed(self, norm: Any, x_BSHD: Tensor, rotary: Rotary) -> Tensor:
        return rotate(x_BSHD, rotary.cos, rotary.sin)


class WanTextAttention(TextAttention):
    """Processor that norms queries and keys over all heads at once."""

    def normed(self, norm: Any, x: Tensor, heads: int) -> Tensor:
        (x,) = self.model.slots.norm((norm, x))
        return split_heads(x, heads).transpose(1, 2)


def rotate(x_BSHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding on neighbouring pairs of channels, in the tables' precision."""
    even, odd = torch.unflatten(x_BSHD, -1, (-1, 2)).unbind(-1)
    c, s = cos[..., 0::2], sin[..., 1::2]
    out = torch.empty_like(x_BSHD)
    out[..., 0::2] = even * c - odd * s
    out[..., 1::2] = even * s + odd * c
    return out


class Wan(Denoiser):
    """Wan text-to-video: one transformer, or two experts that share the steps."""

    cuts = Cuts(
        columns=tuple(f"attn{n}.to_{x}" for n in (1, 2) for x in "qkv") + ("ffn.net.0.proj",),
        rows=("attn1.to_out.0", "attn2.to_out.0", "ffn.net.2"),
        heads=("attn1.heads", "attn2.heads"),
        norms=tuple(f"attn{n}.norm_{x}" for n in (1, 2) for x in "qk"),
    )

    def __init__(self, plan: Plan, experts: list[Any], scheduler: Any, kernel: Kernel, shard: Shard) -> None:
        super().__init__(plan, experts, scheduler, kernel, shard)
        self._text: dict[tuple[int, int], Tensor] = {}
        self._rope: dict[int, tuple[Tensor, Tensor]] = {}
        for index, expert in enumerate(experts):
            for block in self.blocks_of(expert):
                block.attn1.set_processor(WanSelfAttention(self))
                block.attn2.set_processor(self.cross_attention(index))

    @classmethod
    def encoder(cls, plan: Plan, folder: Path, device: torch.device) -> WanEncoder:
        return WanEncoder(plan, folder, device)

    def cross_attention(self, expert: int) -> TextAttention:
        """The attention processor for one block's cross-attention."""
        return WanTextAttention(self)

    def set_inputs(self, inputs: Inputs) -> None:
        super().set_inputs(inputs)
        self._text.clear()
        for block in self.blocks():
            block.attn2.processor.kept.clear()

    def embed(self, x: Tensor, step: Step, now: Pass) -> Tensor:
        conv = self.experts[step.expert].patch_embedding
        x = x.to(self.dtype)
        if self.state.whole:
            return conv(x).flatten(2).transpose(1, 2).contiguous()  # type: ignore[no-any-return]
        weight = conv.weight.permute(0, 2, 3, 4, 1).flatten(1)  # token channels are (p_t, p_h, p_w, C)
        return F.linear(x, weight, conv.bias)

    def condition(self, step: Step, now: Pass) -> Condition:
        """Condition of one step and branch; text and positions are computed once per expert."""
        expert = self.experts[step.expert]
        embedder, embeds = expert.condition_embedder, self.inputs.text[now.branch]
        key = (step.expert, now.branch)
        if key not in self._text:
            self._text[key] = embedder.text_embedder(embeds)
        if step.expert not in self._rope:
            cos, sin = expert.rope(torch.empty(1, *self.plan.latent_shape, device="meta"))
            self._rope[step.expert] = self.state.rows(cos), self.state.rows(sin)
        time, modulation = self.time(step, now)
        cos, sin = (self.state.here(table, now.patch) for table in self._rope[step.expert])
        return Condition(time, modulation, self._text[key], (cos, sin))

    def time(self, step: Step, now: Pass) -> tuple[Tensor, Tensor]:
        """Condition.time and Condition.modulation of the tokens that run now."""
        time, modulation = self.embed_time(step.timestep.expand(1), step)
        return time.unsqueeze(0), modulation

    def embed_time(self, timesteps: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Embed timesteps [n]: embeddings [n, D] and modulations [n, 6, D]."""
        embedder = self.experts[step.expert].condition_embedder
        time = embedder.timesteps_proj(timesteps)
        time = embedder.time_embedder(time.to(next(embedder.time_embedder.parameters()).dtype)).to(self.dtype)
        return time, embedder.time_proj(embedder.act_fn(time)).unflatten(-1, (6, -1))

    def run_block(self, block: Any, hidden: Tensor, condition: Condition, now: Pass) -> Tensor:
        rotary = Rotary(*condition.rope, now)
        return block(hidden, condition.text, condition.modulation, rotary)  # type: ignore[no-any-return]

    def head(self, hidden: Tensor, step: Step, condition: Condition) -> Tensor:
        expert = self.experts[step.expert]
        shift, scale = (expert.scale_shift_table + condition.time.unsqueeze(2)).unbind(2)
        hidden = (expert.norm_out(hidden.float()) * (1 + scale) + shift).type_as(hidden)
        return self.state.prediction(expert.proj_out(hidden))


class WanEncoder(Encoder):
    """Encoder of text: UMT5 with its tokenizer."""

    pipeline: ClassVar[str] = "WanPipeline"

    def token_ids(self, text: str, limit: int | None = None) -> list[int]:
        from diffusers.pipelines.wan.pipeline_wan import prompt_clean

        return super().token_ids(prompt_clean(text), limit)

    def __init__(self, plan: Plan, folder: Path, device: torch.device) -> None:
        import diffusers

        super().__init__(plan, device)
        rest = dict.fromkeys(("transformer", "transformer_2", "vae"))
        dtypes = {"default": self.dtype, "image_encoder": torch.float32}  # as its authors recommend
        self.pipe = getattr(diffusers, self.pipeline).from_pretrained(folder, dtype=dtypes, **rest).to(device)
