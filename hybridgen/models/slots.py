"""What a rank's model and the strategies hand each other: steps, the functions in its slots, what tp cuts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

KeyValue = tuple[Tensor, Tensor]
"""K and V of the same tokens, [B, n, Hk, D] each."""

Partial = tuple[Tensor, Tensor]
"""Attention over some of the keys: out [B, n, H, D] and its log-sum-exp [B, n, H, 1]."""

Attention = Callable[[Tensor, Tensor, Tensor, KeyValue | None], Tensor]
"""Self-attention over the whole sequence: local q, k, v [B, local, H, D] -> out [B, local, H, D].

The fourth is text that every query attends to beside the sequence, whole on every rank and never exchanged; None where
text has an attention of its own.
"""

Attend = Callable[[Tensor, Tensor, Tensor, Sequence[int]], Partial]
"""Attention over one block of keys: q, k, v, and which cp blocks k and v hold, in order."""

Remember = Callable[[Tensor, Tensor, Sequence[int]], KeyValue]
"""What was just exchanged, k, v [B, n, H, D] of some cp blocks -> all that is known of those blocks."""

Relay = Callable[[int, Callable[[], Tensor], Callable[[Tensor], Tensor]], None]
"""Something beside the passes that runs through all blocks once: how many tokens it has, what makes its hidden state
[1, n, D] for the first block, and what takes it through the blocks of this rank."""

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
class Cuts:
    """What tensor parallelism cuts in a block, by the names of modules and attributes in it."""

    columns: tuple[str, ...]
    """Linear layers of which a rank keeps some outputs: whole heads, or channels of the feed-forward layer."""
    rows: tuple[str, ...]
    """Linear layers of which it keeps the inputs that those outputs feed; what they give is summed over ranks."""
    heads: tuple[str, ...]
    """Numbers of heads that modules go by."""
    norms: tuple[str, ...] = ()
    """Norms over all heads at once, of which it keeps the weights of its own (see Denoiser.norm)."""
