"""What a rank's model and the strategies hand each other: steps, passes, and the slots that strategies replace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

KeyValue = tuple[Tensor, Tensor]
"""K and V of the same tokens, [B, n, Hk, D] each."""

Partial = tuple[Tensor, Tensor]
"""Attention over some of the keys: out [B, n, H, D] and its log-sum-exp [B, n, H, 1]."""

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
class Pass:
    """What runs now."""

    branch: int = 0
    """The guidance branch."""
    patch: int | None = None
    """The patch of the sequence (PipeFusion); None while all run together."""
    layer: int = 0
    """The block."""


Attention = Callable[[Tensor, Tensor, Tensor, KeyValue | None, Pass], Tensor]
"""Self-attention over the whole sequence: local q, k, v [B, local, H, D] -> out [B, local, H, D].

The fourth is text that every query attends to beside the sequence, whole on every rank and never exchanged; None where
text has an attention of its own.
"""

Attend = Callable[[Tensor, Tensor, Tensor, Sequence[int], Pass], Partial]
"""Attention over one block of keys: q, k, v, and which cp blocks k and v hold, in order."""


@dataclass
class Slots:
    """What strategies replace in one rank's model, in the order of the registry."""

    norm: Callable[..., list[Tensor]]
    """Norms over all heads, of pairs (Normed). Each on its own; tp: over all heads, in one reduction."""
    attention: Attention
    """The local kernel over all keys, text first; ring or attention2d in its place, then ulysses around it."""
    remember: Callable[[Tensor, Tensor, Sequence[int], Pass], KeyValue]
    """What was just exchanged, k, v [B, n, H, D] of some cp blocks -> all that is known of those blocks. Handed on as
    it is; pipefusion: kept for all patches."""
    layers: range
    """The blocks that this rank runs. All; pipefusion: those of its stage."""
    relay: Callable[[int, Callable[[], Tensor], Callable[[Tensor], Tensor]], None]
    """Takes something beside the passes through all blocks once: how many tokens it has, what makes its hidden state
    [1, n, D] for the first block, and what takes it through the blocks of this rank. pipefusion: from stage to stage."""
    predict: Callable[[Tensor, Step], list[Tensor]]
    """The predictions of this rank's branches, one after the other. pipefusion: a whole step, patch by patch."""
    advance: Callable[[Tensor, list[Tensor], Step], Tensor]
    """Guidance, then the scheduler's step. pipefusion: fetch what is under way."""
    branches: list[int]
    """The guidance branches that this rank runs. All; cfg: one."""
    guide: Callable[[list[Tensor], Tensor, Step, Pass], Tensor]
    """Combines the branches' predictions for a part of the state by the family's formula. cfg: after an exchange."""
    encode: Callable[[Tensor | None], Tensor | None]
    """Pixels [1, 3, F, H, W] in [-1, 1] -> mean and log variance of the latents, [1, 2 z, T, h, w]. parallel-vae: in
    strips, and None but on the first rank."""
    decode: Callable[[Tensor | None], Iterator[Tensor | None]]
    """Final latents [1, C, T, H, W] -> uint8 frames [t, H, W, 3], a latent frame at a time. parallel-vae: in strips."""


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
    """Norms over all heads at once, of which it keeps the weights of its own (see Slots.norm)."""
