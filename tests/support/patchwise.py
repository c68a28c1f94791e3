"""PipeFusion with stale K/V in one process: diffusers' own pipeline, whose transformers run patch by patch.

A reference of its own: of hybridgen only rotate() and unpatchify() take part in a pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridgen.distributed.sequence import unpatchify
from hybridgen.models.wan.denoiser import rotate

Key = tuple[int, int]


class Remembering:
    """Self-attention over K/V of all patches, of which `span` is fresh."""

    def __init__(self, kept: dict[Key, tuple[Tensor, Tensor]], layer: int) -> None:
        self.kept, self.layer, self.branch, self.span = kept, layer, 0, slice(None)

    def __call__(self, attn: Any, hidden: Tensor, _: None, __: None, rope: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = attn.norm_q(attn.to_q(hidden)), attn.norm_k(attn.to_k(hidden)), attn.to_v(hidden)
        q, k, v = (torch.unflatten(x, 2, (attn.heads, -1)) for x in (q, k, v))
        q, k = rotate(q, *rope), rotate(k, *rope)
        key = (self.branch, self.layer)
        if self.span == slice(None):
            self.kept[key] = k.clone(), v.clone()
        else:
            self.kept[key][0][:, self.span], self.kept[key][1][:, self.span] = k, v
        k, v = self.kept[key]
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)
        return attn.to_out[0](out.flatten(2))  # type: ignore[no-any-return]


class Patchwise:
    """In place of a Wan transformer's forward: patches of so many tokens, after so many synchronous steps.

    Of each step the pipeline calls every branch once, the one with the prompt first.
    """

    def __init__(self, model: Any, patch_size: int, warmup: int, branches: int = 2) -> None:
        self.model, self.patch_size, self.warmup, self.branches = model, patch_size, warmup, branches
        self.calls = 0
        kept: dict[Key, tuple[Tensor, Tensor]] = {}
        for layer, block in enumerate(model.blocks):
            block.attn1.set_processor(Remembering(kept, layer))

    def __call__(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        encoder_hidden_states_image: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor]:
        model, by_token = self.model, timestep.dim() == 2
        time, modulation, text, image = model.condition_embedder(
            timestep.flatten(),
            encoder_hidden_states,
            encoder_hidden_states_image,
            timestep_seq_len=timestep.shape[1] if by_token else None,
        )
        modulation = modulation.unflatten(-1, (6, -1))
        text = text if image is None else torch.cat([image, text], 1)
        tokens, rope = model.patch_embedding(hidden_states).flatten(2).transpose(1, 2), model.rope(hidden_states)
        done = []
        for span in self.spans(tokens.shape[1]):
            for block in model.blocks:
                block.attn1.processor.branch, block.attn1.processor.span = self.calls % self.branches, span
            part, own = tokens[:, span], modulation[:, span] if by_token else modulation
            for block in model.blocks:
                part = block(part, text, own, tuple(table[:, span] for table in rope))
            done.append(part)
        self.calls += 1
        table = model.scale_shift_table + (time.unsqueeze(2) if by_token else time[:, None, None])
        shift, scale = table.unbind(2)
        tokens = model.proj_out(model.norm_out(torch.cat(done, 1)) * (1 + scale) + shift)
        return (unpatchify(tokens, hidden_states.shape[1:], model.config.patch_size),)  # type: ignore[arg-type]

    def spans(self, tokens: int) -> list[slice]:
        """What runs together, in turn."""
        if self.calls // self.branches < self.warmup:
            return [slice(None)]
        return [slice(start, min(start + self.patch_size, tokens)) for start in range(0, tokens, self.patch_size)]


def run_patchwise(pipe: Any, patch_size: int, warmup: int) -> None:
    """Let a Wan pipeline's transformers run patch by patch from now on."""
    for model in (pipe.transformer, pipe.transformer_2):
        if model is not None:
            model.forward = Patchwise(model, patch_size, warmup)
