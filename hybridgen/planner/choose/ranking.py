"""The order of plans: the fastest first, or the preferred one of those that tie with it. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hybridgen.plan.plan import Plan
from hybridgen.plan.traffic import Term
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.price import memory
from hybridgen.planner.price.cost import Cost
from hybridgen.planner.price.memory import phase_sizes
from hybridgen.strategies import registry
from hybridgen.strategies.registry import AXES, Degrees

MAX_TIE = 0.08
"""Largest share of the time that counts as a tie: plans on one machine share most of the model's error."""


def tie_share(hardware: Hardware) -> float:
    """Share of the denoise time below which plans tie: the model's error where one GPU's time is known."""
    return min(hardware.anchored.value, MAX_TIE)


@dataclass(frozen=True)
class Candidate:
    """A legal plan with what is predicted for it."""

    plan: Plan
    cost: Cost
    one_gpu: float
    """Denoising seconds of the same clip on one GPU."""
    hardware: Hardware
    tie: bool = False
    """Whether the plan ties with the fastest."""
    why: tuple[str, ...] = ()
    copies: int = 1
    """How many of it make clips side by side, each on GPUs of its own."""

    @property
    def config(self) -> str:
        return str(self.plan.degrees)

    @property
    def speedup(self) -> float:
        return self.one_gpu / self.cost.denoise

    @property
    def efficiency(self) -> float:
        return self.speedup / self.plan.world_size

    @property
    def limit(self) -> float:
        """Seconds of a clip up to which another plan ties with this one, if this one is the fastest."""
        return self.cost.clip + tie_share(self.hardware) * self.cost.denoise

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """Memory of the fullest rank on this machine."""
        return memory.held(self.plan, self.hardware)

    @cached_property
    def peak(self) -> int:
        return max(phase_sizes(self.terms).values())

    @property
    def kind(self) -> frozenset[str]:
        """The strategies that the plan uses; plans of one kind differ only in degrees."""
        return frozenset(s.name for s in registry.active(self.plan) if not s.is_overlaid)

    @property
    def bytes_per_step(self) -> dict[str, int]:
        """What a rank sends in one denoising step, by mesh axis."""
        sent = dict.fromkeys(AXES, 0)
        for item in self.cost.items:
            if item.axis in sent:
                sent[item.axis] += item.size // self.plan.clip.steps
        return {axis: size for axis, size in sent.items() if size}


def preference(candidate: Candidate) -> tuple[object, ...]:
    """Sort key among ties: exact, cfg, widest ulysses, squarest grid, fewest VAE ranks, fastest."""
    degrees = candidate.plan.degrees
    return (
        not candidate.plan.exact_split,
        -degrees.cfg,
        -degrees.ulysses,
        oblong(degrees),
        degrees.vae,
        candidate.cost.clip,
    )


def oblong(degrees: Degrees) -> float:
    """How far a grid is from a square, in doublings; a ring counts as one column."""
    rows, cols = degrees.attn2d if degrees.ring == 1 else (degrees.ring, 1)
    return round(abs(math.log2(rows / cols)), 6)


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates by time, with the preferred one of those that tie with the fastest first; ties are marked."""
    if not candidates:
        return []
    fastest = min(candidates, key=lambda c: c.cost.clip)
    limit = fastest.limit
    first = min((c for c in candidates if c.cost.clip <= limit), key=preference)
    rest = sorted((c for c in candidates if c is not first), key=lambda c: c.cost.clip)
    several = len(rest) > 0 and rest[0].cost.clip <= limit
    return [replace(c, tie=True) if several and c.cost.clip <= limit else c for c in (first, *rest)]


def kinds(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """The best of every kind of plan, `count` of them.

    With two or more the best one with a ring is included, and with three or more the best exact one.
    """
    best: dict[frozenset[str], Candidate] = {}
    for candidate in candidates:
        best.setdefault(candidate.kind, candidate)
    shown = list(best.values())[:count]
    ring = next((c for c in candidates if c.plan.degrees.ring > 1), None)
    if ring is not None and ring not in shown and count > 1:
        shown = [*shown[: count - 1], ring]
    exact = next((c for c in candidates if c.plan.exact_split), None)
    if exact is not None and exact not in shown and count > 2:
        shown = sorted([*shown[: count - 2], exact, shown[-1]], key=candidates.index)
    return shown
