"""The transformer of Cosmos Predict 2 and 2.5 taken apart, and what its pipelines share (predict.py has them).

Latents of given frames, where there are any, stand at the start of the clip: their tokens are replaced before every
pass and have a timestep of their own, and a mask among the input channels says which they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
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

    embedded_time: Tensor
    """Embedded time, [1, D], or [1, n, D] where every token has its own timestep."""
    time: Tensor
    """Time for the modulations, [1, 3 D] or [1, n, 3 D]."""
    text: Tensor
    """Text embedding, [1, text tokens, text channels]."""
    rope: tuple[Tensor, Tensor]
    """Rotary tables cos and sin, [n, 1, head_dim / 2] each."""


@dataclass(frozen=True)
class Given:
    """Conditioning frames at the start of the clip, in the form of x: each tensor broadcasts over it."""

    latents: Tensor
    """Latents of the given frames; zeros elsewhere."""
    where: Tensor
    """Mask, 1 for conditioning frames and 0 elsewhere: [1, 1, T, 1, 1] or [1, local, 1], fp32."""


class CosmosSelfAttention(SelfAttention):
    """Processor that norms queries and keys head by head."""

    def heads(self, attn: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (split_heads(to(hidden_states), attn.heads) for to in (attn.to_q, attn.to_k, attn.to_v))
        return q, k, v

    def placed(self, norm: Any, x_BSHD: Tensor, rotary: Rotary) -> Tensor:
        return rotate(norm(x_BSHD), rotary.cos, rotary.sin)


class CosmosTextAttention(TextAttention):
    """Processor that norms queries and keys head by head."""

    def normed(self, norm: Any, x: Tensor, heads: int) -> Tensor:
        return norm(split_heads(x, heads).transpose(1, 2))  # type: ignore[no-any-return]


def rotate(x_BSHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding on channel i of the first half with channel i of the second, in the tables' precision.

    cos and sin are [S, 1, D / 2].
    """
    first, second = x_BSHD.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).type_as(x_BSHD)


class Cosmos(Denoiser):
    """Base of the three pipelines: the transformer, its text, positions, times and masks."""

    stack = "transformer_blocks"
    cuts = Cuts(
        columns=tuple(f"attn{n}.to_{x}" for n in (1, 2) for x in "qkv") + ("ff.net.0.proj",),
        rows=("attn1.to_out.0", "attn2.to_out.0", "ff.net.2"),
        heads=("attn1.heads", "attn2.heads"),
    )
    resample: ClassVar[str] = "lanczos"
    """The filter that resizes given frames."""

    def __init__(self, plan: Plan, experts: list[Any], scheduler: Any, kernel: Kernel, shard: Shard) -> None:
        super().__init__(plan, experts, scheduler, kernel, shard)
        assert self.state.patch[0] == 1  # a token belongs to one latent frame, and so has one time
        self.given: Given | None = None
        self._masks: Tensor | None = None
        self._rope: tuple[Tensor, Tensor] | None = None
        self._frames: Tensor | None = None
        for block in self.blocks():
            block.attn1.set_processor(CosmosSelfAttention(self))
            block.attn2.set_processor(CosmosTextAttention(self))

    @property
    def transformer(self) -> Any:
        """The one transformer; there are no experts."""
        return self.experts[0]

    @classmethod
    def encoder(cls, plan: Plan, folder: Path, device: torch.device) -> CosmosEncoder:
        return CosmosEncoder(plan, folder, device)

    def set_inputs(self, inputs: Inputs) -> None:
        """Take a request's inputs: project the text once, and cut the conditioning frames."""
        if self.transformer.config.use_crossattn_projection:
            inputs = replace(inputs, text=[self.transformer.crossattn_proj(text) for text in inputs.text])
        super().set_inputs(inputs)
        for block in self.blocks():
            block.attn2.processor.kept.clear()
        self.given = None if inputs.condition is None else self.cut_given(inputs.condition)
        self._masks = self.masks()

    # What is cut with the sequence, once

    def per_frame(self, values_T: Tensor) -> Tensor:
        """Spread one number per latent frame into a tensor that broadcasts over x."""
        values = values_T.view(1, 1, -1, 1, 1)
        return values if self.state.whole else values_T[self.frames()].view(1, -1, 1)

    def frames(self) -> Tensor:
        """The latent frame of each of this rank's tokens, [local]; 0 for padding."""
        if self._frames is None:
            _, _, rows, columns = self.plan.latent_shape
            tokens = torch.arange(self.plan.tokens.tokens, device=self.device)
            self._frames = self.state.rows(tokens // (rows * columns // math.prod(self.state.patch)), 0)
        return self._frames

    def where_given(self) -> Tensor:
        """Mask [T] fp32: 1 for latent frames that are given, 0 for others. A condition has only the former."""
        where = torch.zeros(self.plan.latent_shape[1], device=self.device)
        if self.inputs.condition is not None:
            where[: self.inputs.condition.shape[2]] = 1.0
        return where

    def cut_given(self, condition_BCTHW: Tensor) -> Given:
        return Given(self.state.cut(self.padded(condition_BCTHW)), self.per_frame(self.where_given()))

    def padded(self, condition_BCTHW: Tensor) -> Tensor:
        """Latents of the given frames with zeros up to the clip's length."""
        missing = self.plan.latent_shape[1] - condition_BCTHW.shape[2]
        return F.pad(condition_BCTHW, (0, 0, 0, 0, 0, missing))

    def masks(self) -> Tensor | None:
        """Further channels in the form of x: where frames are given, and where the frame is padded."""
        _, frames, rows, columns = self.plan.latent_shape
        config, clip, shape = self.transformer.config, self.plan.clip, (1, 1, frames, rows, columns)
        masks: list[Tensor] = []
        if config.in_channels > config.out_channels:
            masks.append(self.where_given().view(1, 1, -1, 1, 1).expand(shape))
        if config.concat_padding_mask:
            padding = torch.zeros(1, 1, clip.height, clip.width, device=self.device)
            masks.append(F.interpolate(padding, size=(rows, columns), mode="nearest").unsqueeze(2).expand(shape))
        return self.state.cut(torch.cat(masks, 1).to(self.dtype)) if masks else None

    def rope(self) -> tuple[Tensor, Tensor]:
        """Rotary tables cos and sin of this rank's tokens by their places in the clip, [1, local, 1, head_dim / 2]."""
        if self._rope is None:
            size = torch.empty(1, 0, *self.plan.latent_shape[1:], device=self.device)
            tables = self.transformer.rope(size, fps=self.positions_fps())  # [S, head_dim], the same in both halves
            cos, sin = (x.chunk(2, -1)[0].unsqueeze(0).unsqueeze(2).contiguous() for x in tables)
            self._rope = self.state.rows(cos), self.state.rows(sin)
        return self._rope

    def positions_fps(self) -> int | None:
        """Frames per second that stretch positions in time; None means that positions count latent frames."""
        return None

    # One pass

    def condition(self, step: Step, now: Pass) -> Condition:
        cos, sin = (self.state.here(x, now.patch)[0] for x in self.rope())
        return Condition(*self.times(step, now), self.inputs.text[now.branch], (cos, sin))

    def times(self, step: Step, now: Pass) -> tuple[Tensor, Tensor]:
        """Embeddings of the time of the tokens that run now, made from those of every latent frame."""
        time, embedded = self.embed_times(self.frame_times(step))
        frames = self.state.here(self.frames().unsqueeze(0), now.patch)[0]
        return embedded[frames].unsqueeze(0), time[frames].unsqueeze(0)

    def embed_times(self, times: Tensor) -> tuple[Tensor, Tensor]:
        """Embed times [n] as [n, 3 D] and [n, D], in the transformer's dtype."""
        found: tuple[Tensor, Tensor] = self.transformer.time_embed(self.transformer.proj_out.weight, times)
        return found

    def frame_times(self, step: Step) -> Tensor:
        """The time of every latent frame in a step, as the transformer takes it: [T]."""
        raise NotImplementedError

    def embed(self, x: Tensor, step: Step, now: Pass) -> Tensor:
        """Embed the tokens that run now; channels of the masks follow those of the latents."""
        x = self.transformer_input(x, step, now).to(self.dtype)
        if self._masks is not None:
            x = self.state.beside(x, self.state.here(self._masks, now.patch))
        embed, cells = self.transformer.patch_embed, math.prod(self.state.patch)
        if self.state.whole:
            return embed(x).flatten(1, 3)  # type: ignore[no-any-return]
        weight = embed.proj.weight.unflatten(1, (-1, cells)).transpose(1, 2).flatten(1)  # its channels are (C, cells)
        return F.linear(x, weight)

    def transformer_input(self, x: Tensor, step: Step, now: Pass) -> Tensor:
        """The part of x that runs now, as the transformer sees it."""
        return x

    def filled(self, x: Tensor, now: Pass) -> Tensor:
        """A part of x, or of a tensor like it, with the given latents in their places."""
        if self.given is None:
            return x
        where = self.state.here(self.given.where, now.patch)
        return where * self.state.here(self.given.latents, now.patch) + (1 - where) * x

    def guided(self, branches: list[Tensor], step: Step) -> Tensor:
        """Guide as the family does: cond + g * (cond - uncond), where g = 0 is what others call 1."""
        if len(branches) == 1:
            return branches[0]
        cond, uncond = branches
        return cond + step.guidance * (cond - uncond)

    def run_block(self, block: Any, hidden: Tensor, condition: Condition, now: Pass) -> Tensor:
        rotary = Rotary(*condition.rope, now)
        return block(  # type: ignore[no-any-return]
            hidden, condition.text, condition.embedded_time, condition.time, image_rotary_emb=rotary
        )

    def head(self, hidden: Tensor, step: Step, condition: Condition) -> Tensor:
        hidden = self.transformer.norm_out(hidden, condition.embedded_time, condition.time)
        return self.state.prediction(self.transformer.proj_out(hidden))

    # Given frames

    def frames_to_encode(self, pictures: list[Any]) -> Tensor:
        from diffusers.video_processor import VideoProcessor

        clip, stride = self.plan.clip, self.plan.facts.vae.stride_space
        processor = VideoProcessor(vae_scale_factor=stride, resample=self.resample)
        frames: Tensor = processor.preprocess_video(self.as_processed(pictures), clip.height, clip.width)
        return frames

    def as_processed(self, pictures: list[Any]) -> Any:
        """PIL images in the form in which the pipeline hands them to its processor, which resizes by that form."""
        return pictures


class CosmosEncoder(Encoder):
    """Encoder of text: T5 (Predict 2) or Qwen2.5-VL (Predict 2.5) with its tokenizer."""

    def __init__(self, plan: Plan, folder: Path, device: torch.device) -> None:
        super().__init__(plan, device)
        self.pipe = text_part(plan.facts.pipeline).from_pretrained(folder, dtype=self.dtype).to(device)

    def token_ids(self, text: str, limit: int | None = None) -> list[int]:
        if not self.pipe.tokenizer.chat_template:
            return super().token_ids(text, limit)
        said = [("system", SYSTEM), ("user", text)]
        messages = [{"role": role, "content": [{"type": "text", "text": words}]} for role, words in said]
        cut = {"truncation": limit is not None, "max_length": limit}
        ids = self.pipe.tokenizer.apply_chat_template(messages, tokenize=True, add_vision_id=False, **cut)
        return list(ids if isinstance(ids, list) else ids["input_ids"])


SYSTEM = "You are a helpful assistant who will provide prompts to an image generator."
"""What diffusers says before the prompt of Predict 2.5."""


def text_part(pipeline: str) -> Any:
    """A pipeline class of diffusers reduced to its text part; the whole class needs autoencoder and guardrail."""
    import diffusers

    def init(self: Any, text_encoder: Any, tokenizer: Any) -> None:
        diffusers.DiffusionPipeline.__init__(self)
        self.register_modules(text_encoder=text_encoder, tokenizer=tokenizer)

    return type("Words", (getattr(diffusers, pipeline),), {"__init__": init})
