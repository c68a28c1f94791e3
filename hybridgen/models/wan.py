"""Wan text-to-video taken apart: the pieces of diffusers' WanPipeline that a rank runs, and what it computes once.

State `x` is the latents [1, C, T, H, W] in fp32 on a rank that holds the whole sequence, and this rank's tokens
[1, local, p_t * p_h * p_w * C] otherwise (see runtime/sequence.py). Predictions have the form of x.
With nothing split, every operation is the stock pipeline's, so the result equals it bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridgen.kernels import Kernel
from hybridgen.plan import Plan
from hybridgen.runtime.attention import attend, attend_plain
from hybridgen.runtime.sequence import Shard, patchify, unpatchify

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Self-attention over the whole sequence: local q, k, v [B, local, H, D] -> out [B, local, H, D]."""

Attend = Callable[[Tensor, Tensor, Tensor, Sequence[int]], tuple[Tensor, Tensor]]
"""Attention over one block of keys: q, k, v, and which cp blocks k and v hold, in order -> (out, lse)."""

Remember = Callable[[Tensor, Tensor, Sequence[int]], tuple[Tensor, Tensor]]
"""What was just exchanged, k, v [B, n, H, D] of some cp blocks -> all that is known of those blocks."""

Normed = tuple[Any, Tensor]
"""A norm module and what it is to be applied to, [B, S, inner]."""


@dataclass(frozen=True)
class Step:
    """One denoising step: its number, its timestep, which expert runs it, and how strong the guidance is."""

    index: int
    timestep: Tensor
    expert: int
    guidance: float


@dataclass(frozen=True)
class Condition:
    """What the blocks and the head need beside the tokens, for one step and branch."""

    time: Tensor
    """[1, D]"""
    modulation: Tensor
    """[1, 6, D]"""
    text: Tensor
    """[1, text tokens, D]"""
    rope: tuple[Tensor, Tensor]
    """cos and sin, [1, local, 1, head_dim] each"""


class SelfAttention:
    """Attention processor of diffusers for self-attention that is split over ranks or uses a chosen kernel."""

    def __init__(self, model: Wan) -> None:
        self.model = model

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        assert encoder_hidden_states is None and attention_mask is None and rotary_emb is not None
        pairs = (attn.norm_q, attn.to_q(hidden_states)), (attn.norm_k, attn.to_k(hidden_states))
        q, k = (torch.unflatten(x, 2, (attn.heads, -1)) for x in self.model.norm(*pairs))
        v = attn.to_v(hidden_states).unflatten(2, (attn.heads, -1))
        out = self.model.attention(rotate(q, *rotary_emb), rotate(k, *rotary_emb), v)
        return attn.to_out[1](attn.to_out[0](out.flatten(2, 3).type_as(q)))  # type: ignore[no-any-return]


class TextAttention:
    """Attention processor for cross-attention; K and V of the text do not depend on the step and are kept."""

    def __init__(self, model: Wan) -> None:
        self.model = model
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        """By id of the text embedding, which the model keeps alive."""

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        if id(encoder_hidden_states) not in self.kept:
            (k,) = self.model.norm((attn.norm_k, attn.to_k(encoder_hidden_states)))
            k = torch.unflatten(k, 2, (attn.heads, -1))
            v = attn.to_v(encoder_hidden_states).unflatten(2, (attn.heads, -1))
            self.kept[id(encoder_hidden_states)] = k.transpose(1, 2), v.transpose(1, 2)
        k, v = self.kept[id(encoder_hidden_states)]
        (q,) = self.model.norm((attn.norm_q, attn.to_q(hidden_states)))
        q = torch.unflatten(q, 2, (attn.heads, -1))
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k, v).transpose(1, 2)
        return attn.to_out[1](attn.to_out[0](out.flatten(2, 3)))  # type: ignore[no-any-return]


def rotate(x_BSHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding on neighbouring pairs of channels, in the tables' precision."""
    even, odd = torch.unflatten(x_BSHD, -1, (-1, 2)).unbind(-1)
    c, s = cos[..., 0::2], sin[..., 1::2]
    return torch.stack((even * c - odd * s, even * s + odd * c), -1).flatten(-2).type_as(x_BSHD)


class Wan:
    """One rank's model. Strategies change `attention`, `branches`, `predict`, `guide`, `advance` and `decode`."""

    def __init__(self, plan: Plan, experts: list[Any], scheduler: Any, kernel: Kernel, shard: Shard) -> None:
        self.plan, self.experts, self.scheduler, self.kernel, self.shard = plan, experts, scheduler, kernel, shard
        self.vae: Any = None
        self.branches = list(range(plan.branches))
        self.prompt_embeds: list[Tensor] = []
        """Per branch, [1, text tokens, text_dim]"""
        self.layers = range(plan.facts.transformer.layers)
        """The blocks that this rank runs."""
        self.norm: Callable[..., list[Tensor]] = lambda *pairs: [norm(x) for norm, x in pairs]
        """Norms over all heads, of pairs (Normed)."""
        self.layer = 0
        """The block that runs now."""
        self.branch = 0
        """The branch that runs now."""
        self.patches = plan.tokens.patches
        """Pieces of the sequence in the tensors that run now: all, or 1 where PipeFusion runs one patch."""
        self.remember: Remember = lambda k, v, blocks: (k, v)
        self.attend: Attend = self.attend_blocks
        self.attention: Attention = self.local_attention
        self.predict: Callable[[Tensor, Step], list[Tensor]] = self.predict_branches
        self.guide: Callable[[list[Tensor], Step], Tensor] = self.combine
        self.advance: Callable[[Tensor, list[Tensor], Step], Tensor] = self.guided_step
        self.decode: Callable[[Tensor | None], Iterator[Tensor | None]] = self.decode_alone
        self._text: dict[tuple[int, int], Tensor] = {}
        self._rope: dict[int, tuple[Tensor, Tensor]] = {}
        for block in self.blocks():
            block.attn2.set_processor(TextAttention(self))
        if kernel.name != "sdpa" or not shard.whole:  # the stock processors mask and remember nothing
            self.wrap_attention(lambda attention: attention)

    @property
    def device(self) -> torch.device:
        return self.experts[0].patch_embedding.weight.device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        return self.experts[0].dtype  # type: ignore[no-any-return]

    def set_prompt(self, embeds: list[Tensor]) -> None:
        """Take the embeddings of the branches, [1, text tokens, text_dim] each, and forget what came of others."""
        self.prompt_embeds = embeds
        self._text.clear()
        for block in self.blocks():
            block.attn2.processor.kept.clear()

    # Attention

    def attend_blocks(self, q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(out, lse) over the real tokens of some cp blocks; padding stands last and is left out."""
        k, v = self.remember(k, v, blocks)
        width = self.plan.degrees.ulysses
        num_keys = sum(self.plan.tokens.valid_local(block * width, width) for block in blocks)
        return attend(self.kernel, q, k[:, :num_keys], v[:, :num_keys])

    def local_attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """All keys are here; padding at their end is left out."""
        k, v = self.remember(k, v, [0])
        valid = self.shard.tokens.tokens
        return attend_plain(self.kernel, q, k[:, :valid], v[:, :valid])

    def wrap_attention(self, wrap: Callable[[Attention], Attention]) -> None:
        """Put an exchange around the attention; the stock processors give way to ours."""
        self.attention = wrap(self.attention)
        for block in self.blocks():
            block.attn1.set_processor(SelfAttention(self))

    def blocks(self) -> Iterator[Any]:
        """The blocks that this rank runs, of every expert."""
        return (expert.blocks[layer] for expert in self.experts for layer in self.layers)

    # One pass

    def embed(self, x: Tensor, expert: int) -> Tensor:
        """State x -> hidden state [1, local, D] in the transformer's dtype."""
        conv = self.experts[expert].patch_embedding
        x = x.to(self.dtype)
        if x.dim() == 5:
            return conv(x).flatten(2).transpose(1, 2).contiguous()  # type: ignore[no-any-return]
        weight = conv.weight.permute(0, 2, 3, 4, 1).flatten(1)  # token channels are (p_t, p_h, p_w, C)
        return F.linear(x, weight, conv.bias)

    def condition(self, step: Step, branch: int) -> Condition:
        """Time, text and position of one pass; text and position are computed once per expert."""
        expert = self.experts[step.expert]
        embedder, embeds = expert.condition_embedder, self.prompt_embeds[branch]
        key = (step.expert, branch)
        if key not in self._text:
            self._text[key] = embedder.text_embedder(embeds)
        if step.expert not in self._rope:
            cos, sin = expert.rope(torch.empty(1, *self.plan.latent_shape, device="meta"))
            whole = self.shard.whole
            self._rope[step.expert] = (cos, sin) if whole else (self.shard.take(cos), self.shard.take(sin))
        time = embedder.timesteps_proj(step.timestep.expand(1))
        time = embedder.time_embedder(time.to(next(embedder.time_embedder.parameters()).dtype)).type_as(embeds)
        modulation = embedder.time_proj(embedder.act_fn(time)).unflatten(1, (6, -1))
        return Condition(time, modulation, self._text[key], self._rope[step.expert])

    def run_blocks(self, hidden: Tensor, step: Step, condition: Condition) -> Tensor:
        """Hidden state [1, local, D] through this rank's blocks."""
        blocks = self.experts[step.expert].blocks
        for self.layer in self.layers:
            hidden = blocks[self.layer](hidden, condition.text, condition.modulation, condition.rope)
        return hidden

    def keep_layers(self, layers: range) -> None:
        """Run these blocks only, and give up the others' memory."""
        self.layers = layers
        for expert in self.experts:
            for index in set(range(len(expert.blocks))) - set(layers):
                expert.blocks[index] = torch.nn.Identity()

    def head(self, hidden: Tensor, step: Step, condition: Condition) -> Tensor:
        """Hidden state [1, local, D] -> prediction in the form of x."""
        expert = self.experts[step.expert]
        shift, scale = (expert.scale_shift_table + condition.time.unsqueeze(1)).chunk(2, dim=1)
        hidden = (expert.norm_out(hidden.float()) * (1 + scale) + shift).type_as(hidden)
        tokens: Tensor = expert.proj_out(hidden)
        return unpatchify(tokens, self.plan.latent_shape, self.patch) if self.shard.whole else tokens

    @property
    def patch(self) -> tuple[int, int, int]:
        return self.plan.facts.transformer.patch

    # One step

    def predict_branches(self, x: Tensor, step: Step) -> list[Tensor]:
        """The predictions of this rank's branches, one pass after the other."""
        predictions = []
        for branch in self.branches:
            condition = self.condition(step, branch)
            hidden = self.run_blocks(self.embed(x, step.expert), step, condition)
            predictions.append(self.head(hidden, step, condition))
        return predictions

    def combine(self, predictions: list[Tensor], step: Step) -> Tensor:
        """Wan's guidance: uncond + g * (cond - uncond), in the predictions' dtype."""
        if len(predictions) == 1:
            return predictions[0]
        cond, uncond = predictions
        return uncond + step.guidance * (cond - uncond)

    def guided_step(self, x: Tensor, predictions: list[Tensor], step: Step) -> Tensor:
        """The scheduler's step; it acts on every number alone, so it runs on whatever part of x is here."""
        prediction = self.guide(predictions, step)
        return self.scheduler.step(prediction, step.timestep, x, return_dict=False)[0]  # type: ignore[no-any-return]

    def schedule(self) -> list[Step]:
        """All steps of the request; noise above the boundary goes to the first expert."""
        self.scheduler.set_timesteps(self.plan.clip.steps, device=self.device)
        self.scheduler.set_begin_index(0)
        boundary, clip = self.plan.facts.boundary, self.plan.clip
        limit = 0.0 if boundary is None else boundary * self.scheduler.config.num_train_timesteps
        steps = []
        for index, timestep in enumerate(self.scheduler.timesteps):
            expert = 0 if boundary is None or timestep >= limit else 1
            steps.append(Step(index, timestep, expert, clip.guidances[expert]))
        return steps

    # Start and end

    def to_state(self, latents_BCTHW: Tensor) -> Tensor:
        """Full latents -> this rank's state x."""
        if self.shard.whole:
            return latents_BCTHW
        return self.shard.take(patchify(latents_BCTHW, self.patch))

    def to_latents(self, shards: list[Tensor]) -> Tensor:
        """Every rank's state, in order -> full latents [1, C, T, H, W]."""
        if self.shard.whole:
            return shards[0]
        return unpatchify(self.shard.assemble(shards), self.plan.latent_shape, self.patch)

    def decode_alone(self, latents_BCTHW: Tensor | None) -> Iterator[Tensor | None]:
        """Normalised latents [1, C, T, H, W] -> uint8 frames [t, H, W, 3], a latent frame at a time."""
        from hybridgen.models.wan_vae import decode_stream, to_uint8, unnormalise

        assert latents_BCTHW is not None
        for pixels in decode_stream(self.vae, unnormalise(self.vae, latents_BCTHW)):
            yield to_uint8(pixels)
