"""Attention processors for diffusers that hand Q, K and V to a rank's model.

The stock ones would obey an environment variable.

A block of diffusers passes what it is given as rotary embedding on to its self-attention as it is; so what runs now
(Pass) comes the same way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridgen.models.slots import KeyValue, Pass

if TYPE_CHECKING:
    from hybridgen.models.denoiser import Denoiser


class Rotary(NamedTuple):
    """Rotary tables of the tokens that run now."""

    cos: Tensor
    sin: Tensor
    now: Pass


class SelfAttention(ABC):
    """Processor for self-attention, which hands Q, K and V to the model's attention slot."""

    def __init__(self, model: Denoiser) -> None:
        self.model = model

    @abstractmethod
    def heads(self, attn: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project the hidden state [1, n, D] to q, k, v, [1, n, heads, head_dim] each."""

    @abstractmethod
    def placed(self, norm: Any, x_BSHD: Tensor, rotary: Rotary) -> Tensor:
        """Apply positions to q or k, and the norm where that is done head by head."""

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        rotary_emb: Rotary | None = None,
        image_rotary_emb: Rotary | None = None,
    ) -> Tensor:
        rotary = rotary_emb or image_rotary_emb
        assert encoder_hidden_states is None and attention_mask is None and rotary is not None
        q, k, v = self.heads(attn, hidden_states)
        q = self.placed(attn.norm_q, q, rotary)  # what it was made of is gone when k is rotated
        k = self.placed(attn.norm_k, k, rotary)
        out = self.model.slots.attention(q, k, v, None, rotary.now)
        return attn.to_out[1](attn.to_out[0](out.flatten(2, 3).type_as(q)))  # type: ignore[no-any-return]


class TextAttention(ABC):
    """Processor for cross-attention. K and V of the text do not depend on the step and are kept."""

    def __init__(self, model: Denoiser) -> None:
        self.model = model
        self.kept: dict[int, KeyValue] = {}
        """K and V by the id of the embedding that they are made of, which the model keeps alive."""

    @abstractmethod
    def normed(self, norm: Any, x: Tensor, heads: int) -> Tensor:
        """Norm q or k [1, n, heads * head_dim], as [1, heads, n, head_dim]."""

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        rotary_emb: Rotary | None = None,
    ) -> Tensor:
        text = self.key_value(encoder_hidden_states, attn.heads, attn.to_k, attn.norm_k, attn.to_v)
        q = self.normed(attn.norm_q, attn.to_q(hidden_states), attn.heads)
        out = self.attend(attn, q, text).transpose(1, 2)
        return attn.to_out[1](attn.to_out[0](out.flatten(2, 3)))  # type: ignore[no-any-return]

    def key_value(self, x: Tensor, heads: int, to_k: Any, norm_k: Any, to_v: Any) -> KeyValue:
        """K and V [1, heads, tokens, head_dim] of an embedding [1, tokens, D], made when they are first asked for."""
        if id(x) not in self.kept:
            self.kept[id(x)] = self.normed(norm_k, to_k(x), heads), split_heads(to_v(x), heads).transpose(1, 2)
        return self.kept[id(x)]

    def attend(self, attn: Any, q: Tensor, text: KeyValue) -> Tensor:
        """Attend with q [1, heads, n, head_dim]; the result has the same shape."""
        return F.scaled_dot_product_attention(q, *text)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Split heads: [B, S, heads * head_dim] -> [B, S, heads, head_dim]."""
    return torch.unflatten(x, 2, (heads, -1))
