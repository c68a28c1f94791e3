"""Where the time of denoising went: computing and waiting of every rank, beside what was predicted. No torch.

A rank computes for as long as a step takes without its exchanges. The slowest rank is the one that computes longest;
all others wait for it. Means leave out the first step, which also warms up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from statistics import fmean, median_low
from typing import Any, NamedTuple

LIMIT = 1.5
"""How many times the predicted time a step may take without a warning."""
LAG = 1.25
"""How many times the others' time a rank must compute to be the likely reason."""


@dataclass(frozen=True)
class RankTimes:
    """Where the denoising steps of one rank went."""

    host: str
    computing: tuple[float, ...]
    """Seconds of every step without its exchanges."""
    waiting: tuple[float, ...]
    """Seconds of every step in exchanges: waiting for other ranks, and for bytes that nothing hides."""
    exchanges: dict[str, float]
    """Mean seconds a step in exchanges, by strategy."""

    @staticmethod
    def of(host: str, steps: Sequence[float], waits: Sequence[Mapping[str, float]]) -> RankTimes:
        """From the seconds of every step, and those of its exchanges by strategy."""
        waiting = [min(sum(wait.values()), step) for wait, step in zip(waits, steps, strict=True)]
        names = sorted({name for wait in waits for name in wait})
        exchanges = {name: round(mean([wait.get(name, 0.0) for wait in waits]), 6) for name in names}
        computing = tuple(round(step - wait, 6) for step, wait in zip(steps, waiting, strict=True))
        return RankTimes(host, computing, tuple(round(wait, 6) for wait in waiting), exchanges)


@dataclass(frozen=True)
class Slowest:
    """The rank that computes longest, with mean seconds a step."""

    rank: int
    host: str
    computing: float
    waiting: float
    others_computing: float
    """What the other ranks compute, on average."""
    others_waiting: float
    """What the other ranks wait, on average."""


@dataclass(frozen=True)
class Prediction:
    """What the planner predicts of a step on the machine of the run, in seconds, and how it was held."""

    missing: str = ""
    """Why nothing is predicted; "" where it is."""
    machine: str = ""
    """Title of the machine that it is for."""
    kernel: str = ""
    """The attention kernel that it is for."""
    step: float = 0.0
    error: float = 0.0
    """How far off the prediction may be, as a share of it (1)."""
    waiting: float = 0.0
    """What of a step goes to exchanges, and to waiting for other ranks."""
    exchanges: dict[str, float] = field(default_factory=dict)
    """What goes to exchanges, by strategy."""
    measured: float = 0.0
    """Mean seconds of a step that ran; 0 where none did."""
    ratio: float = 0.0
    """How many times the prediction that is; 0 without either."""
    reason: str = ""
    """The likely reason, where that is more than LIMIT."""

    @property
    def warning(self) -> str:
        """What to warn of; "" where a step takes no longer than LIMIT allows."""
        if not self.reason:
            return ""
        took = f"a step took {three(self.measured)} s, {self.ratio:.1f} times the predicted {three(self.step)} s"
        return f"{took} ({self.machine}); likely reason: {self.reason}"


class _Cause(NamedTuple):
    """What may have made the steps longer."""

    seconds: float
    """Seconds a step that it explains."""
    words: str


def mean(values: Sequence[float]) -> float:
    """The mean of a figure of every step, without the first where there are more; 0 without any."""
    return fmean(values[1:] or values) if values else 0.0


def slowest(ranks: Sequence[RankTimes]) -> Slowest | None:
    """The slowest of two or more ranks; None where there are fewer, or no steps ran."""
    if len(ranks) < 2 or not ranks[0].computing:
        return None
    computing, waiting = [mean(one.computing) for one in ranks], [mean(one.waiting) for one in ranks]
    rank = max(range(len(ranks)), key=computing.__getitem__)
    others = [other for other in range(len(ranks)) if other != rank]
    means = [fmean(values[other] for other in others) for values in (computing, waiting)]
    figures = (round(value, 6) for value in (computing[rank], waiting[rank], *means))
    return Slowest(rank, ranks[rank].host, *figures)


def held(prediction: Prediction, ranks: Sequence[RankTimes], blocks: Sequence[int], kernel: str) -> Prediction:
    """A prediction beside what was measured.

    blocks: transformer blocks of every rank, by which its computing is compared with that of others.
    kernel: the attention kernel that ran.
    """
    steps = [computing + waiting for computing, waiting in zip(ranks[0].computing, ranks[0].waiting, strict=True)]
    measured = round(mean(steps), 6)
    if not measured or not prediction.step:
        return replace(prediction, measured=measured)
    ratio = round(measured / prediction.step, 4)
    causes = _causes(prediction, ranks, blocks, kernel) if ratio > LIMIT else ()
    likely = max(causes, key=lambda cause: cause.seconds, default=_Cause(0, ""))
    return replace(prediction, measured=measured, ratio=ratio, reason=likely.words)


def _causes(prediction: Prediction, ranks: Sequence[RankTimes], blocks: Sequence[int], kernel: str) -> Iterator[_Cause]:
    """What may have made the steps longer than predicted."""
    each = [mean(one.computing) / share for one, share in zip(ranks, blocks, strict=True)]
    slow, usual = max(range(len(ranks)), key=each.__getitem__), median_low(each)
    if each[slow] > LAG * usual:
        own, others = each[slow] * blocks[slow], usual * blocks[slow]
        words = f"rank {slow} ({ranks[slow].host}) lags: it computes {three(own)} s a step, others {three(others)} s"
        yield _Cause(own - others, words)
    computing, predicted = usual * max(blocks), prediction.step - prediction.waiting
    yield _Cause(computing - predicted, _computing_words(prediction, kernel, computing, predicted))
    quick = min(ranks, key=lambda one: mean(one.waiting))  # it waits for nobody, so this is what exchanges take
    if (over := mean(quick.waiting) - prediction.waiting) > 0:
        yield _Cause(over, _link_words(prediction, quick))


def _computing_words(prediction: Prediction, kernel: str, computing: float, predicted: float) -> str:
    if kernel != prediction.kernel:
        return f"attention ran on the kernel {kernel}, and the prediction is for {prediction.kernel}"
    took = f"all ranks compute {three(computing)} s a step, and {three(predicted)} s are predicted"
    return f"{took}: other work on the machine, lower clocks, or figures of another machine"


def _link_words(prediction: Prediction, quick: RankTimes) -> str:
    over = {name: seconds - prediction.exchanges.get(name, 0.0) for name, seconds in quick.exchanges.items()}
    name = max(over, key=over.__getitem__)
    predicted = three(prediction.exchanges.get(name, 0.0))
    return f"a link is slow: exchanges of {name} take {three(quick.exchanges[name])} s a step, predicted {predicted} s"


def three(value: float) -> str:
    """Seconds with three digits and no exponent: 0.000131, 1.95, 48.1."""
    return f"{Decimal(f'{value:.3g}'):f}"


def plain(prediction: Prediction) -> dict[str, Any]:
    """A prediction as a report has it: what was measured beside what was predicted, or why nothing is."""
    measured: dict[str, Any] = {"measured": prediction.measured}
    if not prediction.machine:
        return {"missing": prediction.missing or "no step ran", **measured}
    names = ("machine", "kernel", "step", "error", "waiting", "exchanges")
    found = {name: getattr(prediction, name) for name in names}
    return {**found, **measured, "ratio": prediction.ratio, "reason": prediction.reason}
