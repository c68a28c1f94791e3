"""What a strategy declares: one object in the rules.py of its folder. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from hybridgen.errors import RequestError
from hybridgen.plan.axes import Degree, Option, Shorthand, Value
from hybridgen.plan.plan import Plan
from hybridgen.plan.traffic import Message, Term

if TYPE_CHECKING:
    from hybridgen.distributed.mesh import Mesh
    from hybridgen.models.denoiser import Denoiser


def changes_nothing(model: Denoiser, mesh: Mesh, plan: Plan) -> None:
    """Leave the model as it is, as a strategy does that only sets others' degrees."""


def no_violations(plan: Plan) -> Iterable[RequestError]:
    """No rules broken, because every degree is legal."""
    return ()


def no_traffic(plan: Plan, rank: int) -> Iterable[Message]:
    """No messages."""
    return ()


def no_memory(plan: Plan, rank: int) -> Iterable[Term]:
    """No memory in addition to the model."""
    return ()


@dataclass(frozen=True)
class Strategy:
    """One way to spread the work over ranks."""

    name: str
    """The name in reports. What the strategy sends is counted under it."""
    degrees: tuple[Degree, ...] = ()
    apply: Callable[[Denoiser, Mesh, Plan], None] = changes_nothing
    """Changes a loaded model. Called where a degree is above 1; imports torch then."""
    rules: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The reason of every rule of the strategy, by rule id."""
    violations: Callable[[Plan], Iterable[RequestError]] = no_violations
    """The rules that a plan breaks, the most basic first."""
    traffic: Callable[[Plan, int], Iterable[Message]] = no_traffic
    """Every message that a rank sends in one request, to the byte."""
    memory: Callable[[Plan, int], Iterable[Term]] = no_memory
    """Memory that a rank needs in addition to the model."""
    choices: Callable[[Degree, Plan, int], Iterable[Value]] | None = None
    """Function of (degree, plan, ranks) to the values that the planner tries, in order. They divide `ranks`, the number
    that other degrees leave; the plan has the degrees chosen before. None means all divisors. Of a degree that is laid
    over the mesh `ranks` are those of one guidance branch, and the first value is taken where no machine is known.
    """
    options: tuple[Option, ...] = ()
    """Whole numbers above 0 that can be set in addition to the degrees."""
    shorthands: tuple[Shorthand, ...] = ()
    """Flags that set degrees of other strategies."""

    @property
    def idle_rule(self) -> str:
        """Id of the rule that options are given with the strategy only."""
        return f"{self.degrees[0].name}-only"

    @property
    def reasons(self) -> dict[str, str]:
        """The reason of every rule, those that hold for the options and shorthands of any strategy included."""
        found = {
            one.rule: f"--{one.name} sets {' and '.join(one.sets)}; giving both could contradict itself."
            for one in self.shorthands
        }
        if self.options:
            found[self.idle_rule] = f"Options of --{self.degrees[0].name} change nothing without it."
        return {**found, **self.rules}

    def degree(self, plan: Plan) -> int:
        """Number of ranks that the strategy uses."""
        return math.prod(plan.degrees.size(axis.name) for degree in self.degrees for axis in degree.axes)

    @cached_property
    def is_overlaid(self) -> bool:
        """Whether the strategy's ranks are laid over those of the others; then it sends nothing while denoising."""
        return bool(self.degrees) and all(degree.is_overlaid for degree in self.degrees)
