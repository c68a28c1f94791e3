"""A plan: the frozen choice of degrees and mesh order for one clip of one model. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from hybridgen.degrees import AXES, Degrees
from hybridgen.layout import Layout, TokenShards
from hybridgen.models.facts import ModelFacts

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Clip:
    """What is to be made, as far as cost and legality depend on it. Sizes in pixels and frames."""

    width: int
    height: int
    frames: int
    steps: int
    guidance: float
    """Guidance above 1 runs a second branch in every step."""


@dataclass(frozen=True)
class Plan:
    """Everything every rank must agree on before it starts; shapes of all messages follow from it."""

    facts: ModelFacts
    clip: Clip
    degrees: Degrees = Degrees()
    order: tuple[str, ...] = AXES
    dtype: str = "bfloat16"
    attention: str = "auto"
    patches: int = 0
    """PipeFusion: pieces of the sequence; 0 means as many as stages."""
    warmup: int = 0
    """PipeFusion: synchronous steps at the start."""

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.degrees, self.order)

    @property
    def world_size(self) -> int:
        return self.degrees.world

    @property
    def exact(self) -> bool:
        """Whether the result differs from one rank's by rounding only: all but PipeFusion with stale steps."""
        return self.degrees.pipefusion == 1 or self.warmup >= self.clip.steps

    @cached_property
    def tokens(self) -> TokenShards:
        clip = self.clip
        count = self.facts.token_count(clip.width, clip.height, clip.frames)
        patches = (self.patches or self.degrees.pipefusion) if self.degrees.pipefusion > 1 else 1
        return TokenShards(count, self.degrees.sequence, patches)

    @property
    def latent_shape(self) -> tuple[int, int, int, int]:
        """(channels, frames, rows, columns)."""
        return self.facts.latent_shape(self.clip.width, self.clip.height, self.clip.frames)

    @property
    def itemsize(self) -> int:
        """Bytes of one number of the transformer's dtype."""
        return ITEMSIZE[self.dtype]

    @property
    def branches(self) -> int:
        """Guidance passes a step needs: with and without the prompt, or one."""
        return 2 if self.clip.guidance > 1 else 1

    @property
    def passes(self) -> int:
        """Forward passes of a rank in the whole request."""
        return self.clip.steps * -(-self.branches // self.degrees.cfg)

    def stage_layers(self, rank: int) -> int:
        """Layers that this rank runs: all of them, or its stage's share."""
        start, stop = self.stage(self.layout.coordinates(rank)["pipefusion"])
        return stop - start

    def stage(self, index: int) -> tuple[int, int]:
        """First and last-plus-one block of a PipeFusion stage: consecutive blocks, as even as can be."""
        base, extra = divmod(self.facts.transformer.layers, self.degrees.pipefusion)
        start = index * base + min(index, extra)
        return start, start + base + (index < extra)

    @property
    def heads(self) -> tuple[int, int]:
        """(query heads, key heads) that one rank holds before Ulysses splits them further."""
        transformer, tp = self.facts.transformer, self.degrees.tp
        return transformer.heads // tp, max(transformer.key_heads // tp, 1)

    def replace(self, **changes: object) -> Plan:
        return replace(self, **changes)  # type: ignore[arg-type]
