"""Question to the planner, and its answer. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from hybridgen.errors import RequestError
from hybridgen.models import catalogue
from hybridgen.plan.facts import ModelFacts
from hybridgen.plan.plan import Plan
from hybridgen.planner.choose.objective import Aim
from hybridgen.planner.choose.ranking import Candidate
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.price.settings import check_card
from hybridgen.recipe.fields import Recipe
from hybridgen.recipe.legal import Fixed, exact_only
from hybridgen.recipe.resolve import given_degrees, order_of, template
from hybridgen.strategies.registry import Degrees

if TYPE_CHECKING:
    from hybridgen.planner.choose.anchor import Anchor


@dataclass(frozen=True)
class Ask:
    """The question: what is to be planned. `template` gives model, clip, dtype, patches and warm-up, not degrees."""

    template: Plan
    gpus: int
    hardware: Hardware
    fixed: Fixed = field(default_factory=dict)
    """Given degrees by field of Degrees; the others are open."""
    order: tuple[str, ...] | None = None
    """The mesh order of all axes; None means the one that suits the machine."""
    approximate: bool = False
    memory: float | None = None
    """Bytes that a GPU may use, instead of all it has."""
    max_time: float | None = None
    """Seconds that a clip may take, end to end."""
    anchor: Anchor | None = None
    """The measured time to which the rates of the hardware are scaled already."""
    aim: Aim = Aim()
    """What a plan is chosen for."""

    def __hash__(self) -> int:  # `fixed` has none; what tells most questions apart is enough
        return hash((self.template, self.gpus, self.hardware))

    @property
    def limit(self) -> float:
        """Bytes of a GPU; infinite where the machine sets no limit."""
        return self.memory or self.hardware.memory.value or math.inf

    @property
    def doubts(self) -> list[str]:
        """Warnings of a given time or memory that does not look like that of this machine."""
        title, has = self.hardware.title, self.hardware.memory.value
        found = [] if self.anchor is None else self.anchor.doubts(title)
        if self.memory and 0 < has < self.memory:
            found.append(f"warning: --memory {self.memory / 1e9:g}GB is more than the {has / 1e9:g} GB of one {title}")
        return found

    @property
    def given(self) -> Fixed:
        """The degrees of every candidate: those that are fixed, and 1 for what is approximate unless it may compete."""
        return self.fixed if self.approximate else {**exact_only(), **self.fixed}


def ask_for(
    recipe: Recipe, gpus: int, hardware: Hardware, facts: ModelFacts | None = None, video_frames: int | None = None
) -> Ask:
    """The question of what a recipe leaves open, for this many GPUs; given degrees and order are kept.

    Raises RequestError.
    """
    facts = facts or catalogue.find(recipe.model)
    given, order = given_degrees(recipe.parallel), recipe.parallel.order
    plan = template(recipe, facts, video_frames)
    check_card(plan.settings, hardware)
    return Ask(
        plan,
        gpus,
        hardware,
        given,
        order_of(order, Degrees(**given)) if order else None,
    )


class Rejected(NamedTuple):
    """A plan that is not possible, and why."""

    plan: Plan
    error: RequestError
    excess: float = math.inf
    """How many times a limit of memory or time it needs."""
    nearest: str = ""
    """The possible plan most like it."""


@dataclass(frozen=True)
class Recommendation:
    """Ranked plans, the recommended one first."""

    ask: Ask
    candidates: tuple[Candidate, ...]
    """Ranked candidates; empty only in the result of search()."""
    rejected: tuple[Rejected, ...]
    """Legal plans that break a limit of memory or time."""
    gpus: int
    """Number of GPUs that there are; `ask.gpus`, those of one copy of the plan, are fewer where more would be no
    faster, or where copies of a narrower plan serve the objective."""

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def fastest(self) -> Candidate:
        """The fastest plan; the recommended one ties with it."""
        return min(self.candidates, key=lambda c: c.cost.clip)

    @property
    def asked(self) -> Ask:
        """The question, for all GPUs that there are."""
        return replace(self.ask, gpus=self.gpus)

    @property
    def one_gpu(self) -> float:
        """Denoising seconds on one GPU."""
        return self.best.one_gpu


def rounder(gpus: int) -> list[int]:
    """The multiples of 2, 4 and 8 next to a number of GPUs, below and above."""
    near = {gpus // step * step for step in (2, 4, 8)} | {-(-gpus // step) * step for step in (2, 4, 8)}
    return sorted(near - {0, gpus})
