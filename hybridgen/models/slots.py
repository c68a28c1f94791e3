"""The interface between a rank's model and the strategies: steps, passes, and the slots that strategies replace."""

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
    """The part of a step that runs now."""

    branch: int = 0
    """The guidance branch."""
    patch: int | None = None
    """The patch of the sequence (PipeFusion); None while all run together."""
    layer: int = 0
    """The block."""


Attention = Callable[[Tensor, Tensor, Tensor, KeyValue | None, Pass], Tensor]
"""Self-attention over the whole sequence: local q, k, v [B, local, H, D] -> out [B, local, H, D].

The fourth argument is text that every query attends to beside the sequence. It is whole on every rank and never
exchanged; None where text has its own attention.
"""

Attend = Callable[[Tensor, Tensor, Tensor, Sequence[int], Pass], Partial]
"""Attention over one block of keys: q, k, v, and which cp blocks k and v hold, in order."""


@dataclass
class Slots:
    """The functions and values of one rank's model that strategies replace, in the order of the registry."""

    norm: Callable[..., list[Tensor]]
    """Norms over all heads, for pairs (Normed). By default each is computed alone; tp adds up over ranks, at once."""
    attention: Attention
    """Self-attention. By default the local kernel over all keys; ring or attention2d replace it, ulysses wraps it."""
    remember: Callable[[Tensor, Tensor, Sequence[int], Pass], KeyValue]
    """Takes the k, v [B, n, H, D] of some cp blocks that were just exchanged, and returns all that is known of those
    blocks. By default the same; pipefusion keeps K and V of all patches."""
    layers: range
    """The blocks that this rank runs. By default all; pipefusion sets those of its stage."""
    relay: Callable[[int, Callable[[], Tensor], Callable[[Tensor], Tensor]], None]
    """Takes something through all blocks once, apart from the passes. Arguments: its number of tokens, what makes its
    hidden state [1, n, D] for the first block, and what runs it through this rank's blocks. pipefusion sends it from
    stage to stage.
    """
    predict: Callable[[Tensor, Step], list[Tensor]]
    """Makes the predictions of this rank's branches. pipefusion makes a whole step, patch by patch."""
    advance: Callable[[Tensor, list[Tensor], Step], Tensor]
    """Applies guidance, then the scheduler's step. pipefusion fetches the patches that are under way."""
    settle: Callable[[Tensor], None]
    """Ends what is under way between steps, before the clip is given up. pipefusion fetches its patches."""
    history: Callable[[Tensor], tuple[dict[str, Tensor], dict[str, Any]]]
    """Between steps: what the scheduler remembers, tensors in the form of the state and plain values, by name. The
    state is complete afterwards. pipefusion has it on the last stage, and gives it to the first."""
    branches: list[int]
    """The guidance branches that this rank runs. By default all; cfg sets one."""
    guide: Callable[[list[Tensor], Tensor, Step, Pass], Tensor]
    """Combines the branches' predictions for a part of the state by the family's formula. cfg exchanges them first."""
    encode: Callable[[Tensor | None], Tensor | None]
    """Pixels [1, 3, F, H, W] in [-1, 1] -> mean and log variance of the latents, [1, 2 z, T, h, w]. parallel-vae works
    in strips; then ranks other than the first take and give None."""
    decode: Callable[[Tensor | None], Iterator[Tensor | None]]
    """Final latents [1, C, T, H, W] -> uint8 frames [t, H, W, 3], a latent frame at a time. parallel-vae works in
    strips; then ranks other than the first take and give None."""


@dataclass(frozen=True)
class Cuts:
    """Names of the modules and attributes of a block that tensor parallelism cuts."""

    columns: tuple[str, ...]
    """Linear layers of which a rank keeps some outputs: whole heads, or channels of the feed-forward layer."""
    rows: tuple[str, ...]
    """Linear layers of which a rank keeps the inputs that those outputs feed; their outputs are summed over ranks."""
    heads: tuple[str, ...]
    """Attributes of modules that hold a number of heads."""
    norms: tuple[str, ...] = ()
    """Norms over all heads at once, of which a rank keeps the weights of its own heads (see Slots.norm)."""
