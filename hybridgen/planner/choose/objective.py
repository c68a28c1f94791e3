"""What a plan is chosen for, and what copies of a plan make and cost. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from hybridgen.errors import RequestError
from hybridgen.planner.choose.ranking import Candidate

RULES = {
    "objective": "A plan is chosen for the time of one clip (latency), for the clips of an hour (throughput), or for "
    "the GPU time of a clip (cost). For the last two, copies of a narrower plan make clips side by side.",
}
MOST_CLIPS = 10**9
LEAST_PRICE, MOST_PRICE = 1e-6, 10**9
"""What a GPU may cost an hour, in any currency."""


class Objective(StrEnum):
    """What a plan is chosen for."""

    latency = "latency"
    throughput = "throughput"
    cost = "cost"


@dataclass(frozen=True)
class Aim:
    """What a plan is chosen for, with what that takes."""

    objective: Objective = Objective.latency
    price: float | None = None
    """Money that one GPU costs an hour."""
    clips: int | None = None
    """Number of clips to make."""

    def __post_init__(self) -> None:
        """Raises RequestError (objective) for a price or a number of clips that cannot be."""
        if self.price is not None and not LEAST_PRICE <= self.price <= MOST_PRICE:
            limits = "above 0" if not self.price > MOST_PRICE else f"up to {MOST_PRICE:,}"
            raise RequestError("objective", "price", self.price, f"is not an amount of money {limits}", [2.5])
        if self.clips is not None and not 1 <= self.clips <= MOST_CLIPS:
            near = min(max(self.clips, 1), MOST_CLIPS)
            raise RequestError("objective", "clips", self.clips, f"is not 1 to {MOST_CLIPS:,} clips", [near])

    @property
    def is_asked(self) -> bool:
        """Whether more than the time of one clip is asked for."""
        return self != Aim()

    def used(self, room: int) -> int:
        """How many of the copies that there is room for are used: no more than finish the clips in as many turns."""
        if self.clips is None:
            return room
        return -(-self.clips // -(-self.clips // min(room, self.clips)))

    def output(self, candidate: Candidate) -> Output:
        """What the copies of a candidate make and cost."""
        clip, gpu_seconds = candidate.cost.clip, candidate.plan.world_size * candidate.cost.clip
        money = None if self.price is None else gpu_seconds * self.price / 3600
        turns = None if self.clips is None else -(-self.clips // candidate.copies)
        return Output(
            candidate.copies * 3600 / clip,
            gpu_seconds,
            money,
            None if turns is None else turns * clip,
            None if self.clips is None or money is None else self.clips * money,
        )

    def loss(self, candidate: Candidate) -> float:
        """What the objective keeps small."""
        made = self.output(candidate)
        if self.objective is Objective.cost:
            return made.gpu_seconds
        if self.objective is Objective.throughput:
            return 1 / made.per_hour if made.seconds is None else made.seconds
        return candidate.cost.clip


class Output(NamedTuple):
    """What the copies of a plan make and cost, with every copy at work all the time but in the last turn of `clips`."""

    per_hour: float
    """Clips an hour."""
    gpu_seconds: float
    """Seconds of all GPUs of a copy, added up, for one clip."""
    money: float | None
    """Money for one clip; None without a price."""
    seconds: float | None
    """Seconds until all clips are made: as many turns as it takes, the last one perhaps on fewer copies; None without
    a number of clips."""
    total: float | None
    """Money for all clips. A copy that has nothing left to do costs nothing."""
