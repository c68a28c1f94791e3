"""The order of plans: by time, and among ties by what a user gains. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from hybridgen.plan.plan import Plan
from hybridgen.plan.traffic import Term
from hybridgen.planner.hardware.constants import Constant, Hardware
from hybridgen.planner.price import memory
from hybridgen.planner.price.cost import Cost
from hybridgen.planner.price.memory import phase_sizes
from hybridgen.strategies import registry
from hybridgen.strategies.registry import AXES

TIE = Constant(0.03, "measured: published times of one set-up on one machine differ by up to 3% (benchmarks/ties.py)")
"""Share of the denoise time below which two splits on one machine cannot be told apart (1)."""
TIGHT = Constant(0.92, "assumed: predicted memory is off by up to 5%, and an allocator keeps 3% beside the tensors")
"""Share of the memory that a GPU may use above which a plan is tight (1)."""

SAVING = Constant(0.1, "assumed: a user does not notice a smaller difference of bytes or memory")
"""Share by which plans that tie must differ in what they send or hold, to be told apart by it (1)."""


@dataclass(frozen=True)
class Candidate:
    """A legal plan with what is predicted for it."""

    plan: Plan
    cost: Cost
    one_gpu: float
    """Denoising seconds of the same clip on one GPU."""
    hardware: Hardware
    memory: float
    """Bytes that a GPU may use; infinite where nothing limits them."""
    tie: bool = False
    """Whether the plan ties with the fastest."""
    told: Callable[[Candidate], Iterable[str]] = field(default=lambda _: (), repr=False, compare=False)
    """What gives the reasons for the plan's place, once they are asked for."""
    copies: int = 1
    """How many of it make clips side by side, each on GPUs of its own."""

    @cached_property
    def why(self) -> tuple[str, ...]:
        """Reasons for the plan's place, as sentences."""
        return tuple(self.told(self))

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
        return self.cost.clip + TIE.value * self.cost.denoise

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """Memory of the fullest rank on this machine."""
        return memory.held(self.plan, self.hardware)

    @cached_property
    def peak(self) -> int:
        """Bytes that the fullest rank needs."""
        return max(phase_sizes(self.terms).values())

    @property
    def tight(self) -> bool:
        """Whether the plan fits, and needs nearly all that a GPU may use."""
        return self.peak > TIGHT.value * self.memory

    @property
    def kind(self) -> frozenset[str]:
        """The strategies that the plan uses; plans of one kind differ only in degrees."""
        used = self.plan.degrees.used()
        return frozenset(registry.BY_DEGREE[degree.name].name for degree in used if not degree.is_overlaid)

    @property
    def bytes_per_step(self) -> dict[str, int]:
        """What a rank sends in one denoising step, by mesh axis."""
        sent = dict.fromkeys(AXES, 0)
        for item in self.cost.items:
            if item.axis in sent:
                sent[item.axis] += item.size // self.plan.clip.steps
        return {axis: size for axis, size in sent.items() if size}

    @cached_property
    def slow_bytes(self) -> int:
        """Bytes that a rank sends over the slowest link while denoising."""
        return sum(item.far for item in self.cost.items)


GAINS: Mapping[str, Callable[[Candidate], float]] = {
    "exact": lambda c: not c.plan.exact_split,
    "room": lambda c: c.tight,
    "sent": lambda c: c.slow_bytes,
    "memory": lambda c: c.peak,
}
"""What decides between plans that tie, in this order; less is better."""


def preferred(ties: Sequence[Candidate]) -> Candidate:
    """The plan by which a user gains most; of plans that are as good as the best in all of GAINS, the fastest."""
    for value in GAINS.values():
        least = min(map(value, ties))
        ties = [c for c in ties if value(c) <= (1 + SAVING.value) * least]
    return min(ties, key=lambda c: c.cost.clip)


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The preferred one of the candidates that tie with the fastest, then the other ties, marked, then the rest.

    Each part is in the order of time; among ties those that are exact and not tight come first.
    """
    order = sorted(candidates, key=lambda c: c.cost.clip)
    ties = [c for c in order if c.cost.clip <= order[0].limit]
    if len(ties) < 2:
        return order
    first = preferred(ties)
    others = sorted((c for c in ties if c is not first), key=lambda c: (not c.plan.exact_split, c.tight, c.cost.clip))
    return [*(replace(c, tie=True) for c in (first, *others)), *order[len(ties) :]]


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
