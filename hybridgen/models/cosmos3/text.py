"""The text stream of Cosmos 3, which runs through the blocks once per request, with weights of its own.

The text attends only to itself. The video needs K and V of every block of it; after that its weights are freed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from diffusers.pipelines.cosmos import pipeline_cosmos3_omni as omni
from torch import Tensor, nn

from hybridgen.models.slots import KeyValue

if TYPE_CHECKING:
    from hybridgen.models.cosmos3.denoiser import Cosmos3

Rope = tuple[Tensor, Tensor]
"""Rotary tables cos and sin, [1, n, 1, head_dim] each, in the transformer's dtype."""

EMBEDDING = "embed_tokens"
PARTS = (
    *(f"self_attn.{part}" for part in ("to_q", "to_k", "to_v", "to_out", "norm_q", "norm_k", "k_norm_und_for_gen")),
    "mlp",
    "input_layernorm",
    "post_attention_layernorm",
)
"""Modules of a block that only the text runs through; some checkpoints lack some of them."""


class TextStream:
    """The stream on one rank: it reads the text, keeps K and V, and frees its weights where no clip follows."""

    def __init__(self, model: Cosmos3) -> None:
        self.model = model
        self.kept: dict[tuple[int, int], KeyValue] = {}
        """K and V of the text, rotated, of this rank's heads, by layer and branch."""
        self.done = False
        """Whether the text has been read."""

    def needs(self, key: str) -> bool:
        """Whether a parameter of the transformer belongs to the text stream."""
        _, _, of_block = key.removeprefix(f"{self.model.stack}.").partition(".")
        return key.startswith(EMBEDDING) or any(of_block.startswith(f"{part}.") for part in PARTS)

    def read(self, texts: list[Tensor]) -> None:
        """Read the token ids [1, n] of this rank's branches; `texts` has those of every branch."""
        assert not self.done, "a new request needs a new model"
        for branch in self.model.slots.branches:
            ids = texts[branch]
            self.model.slots.relay(ids.shape[1], partial(self.embed, ids), partial(self.run_blocks, branch))
        self.done = True
        if self.model.stays:
            return
        give_up(self.model.expert, (EMBEDDING,))
        for block in self.model.blocks():
            give_up(block, PARTS)

    def embed(self, ids: Tensor) -> Tensor:
        """Embed token ids [1, n] as a hidden state [1, n, D]."""
        return self.model.expert.embed_tokens(ids)  # type: ignore[no-any-return]

    def run_blocks(self, branch: int, hidden: Tensor) -> Tensor:
        """Run the text's hidden state [1, n, D] through this rank's blocks and keep K and V of each."""
        rope = self.model.rope(positions(hidden.shape[1], self.model.expert.config))
        blocks = getattr(self.model.expert, self.model.stack)
        last = self.model.plan.facts.transformer.layers - 1
        for layer in self.model.slots.layers:
            self.kept[layer, branch], hidden = run_block(blocks[layer], hidden, rope, layer == last)
        return hidden


def run_block(block: Any, hidden: Tensor, rope: Rope, last: bool) -> tuple[KeyValue, Tensor]:
    """K and V of the text as the video sees them, and its hidden state after one block (not needed of the last)."""
    attn, normed = block.self_attn, block.input_layernorm(hidden)
    k, v = attn.norm_k(heads(attn.to_k(normed), attn)), heads(attn.to_v(normed), attn)
    shown = k if attn.k_norm_und_for_gen is None else attn.k_norm_und_for_gen(k)
    kept = rotate(shown, *rope), v
    if last:
        return kept, hidden
    q, k = rotate(attn.norm_q(heads(attn.to_q(normed), attn)), *rope), rotate(k, *rope)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
    hidden = hidden + attn.to_out(out.flatten(2))
    return kept, hidden + block.mlp(block.post_attention_layernorm(hidden))


def positions(tokens: int, config: Any) -> Tensor:
    """Positions [3, tokens] of the text: one after the other, on all three axes."""
    return omni.get_3d_mrope_ids_text_tokens(tokens, 0, config.enable_fps_modulation)[0]  # type: ignore[no-any-return]


def rotate(x_BSHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding on the two halves of the channels."""
    first, second = x_BSHD.chunk(2, -1)
    return x_BSHD * cos + torch.cat((-second, first), -1) * sin


def heads(x: Tensor, attn: Any) -> Tensor:
    """Split heads: [1, n, heads * head_dim] -> [1, n, heads, head_dim]."""
    return x.unflatten(2, (-1, attn.head_dim))  # type: ignore[no-untyped-call,no-any-return]


def give_up(owner: nn.Module, names: Sequence[str]) -> None:
    """Free those of the named modules and parameters that exist, with their memory."""
    for name in names:
        parent, _, part = name.rpartition(".")
        if hasattr(holder := owner.get_submodule(parent), part):
            delattr(holder, part)
