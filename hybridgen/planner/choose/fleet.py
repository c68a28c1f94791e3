"""Copies of a narrower plan side by side, for the most clips an hour or the least GPU time a clip. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from hybridgen.planner.choose.ask import Ask, Recommendation, Rejected
from hybridgen.planner.choose.objective import Aim, Objective
from hybridgen.planner.choose.ranking import Candidate
from hybridgen.planner.choose.reasons import mesh_reason
from hybridgen.planner.choose.search import search, search_best
from hybridgen.planner.hardware.copies import copies
from hybridgen.strategies.registry import Degrees


def widths(ask: Ask, usual: Sequence[int]) -> list[int]:
    """Numbers of GPUs of one copy that are compared: the usual ones, shares of a host, and multiples of the given
    degrees."""
    own = Degrees(**ask.fixed).world
    host = ask.hardware.per_node
    shares = {host // part for part in range(1, host + 1) if host % part == 0}
    doubled = {own * 2**power for power in range(ask.gpus.bit_length())}
    return sorted(width for width in {*usual, *shares, *doubled} if width <= ask.gpus and width % own == 0)


def best_fleet(ask: Ask, usual: Sequence[int]) -> Recommendation | None:
    """The best plan of every width, in as many copies as there is room for, in the order of the objective.

    The best plan of a width is its fastest; all copies are alike. None where no width has a plan that keeps the limits.
    """
    found: list[Candidate] = []
    rejected: list[Rejected] = []
    for width in widths(ask, usual):
        one = replace(ask, gpus=width)
        if room := copies(width, ask.gpus, ask.hardware):
            best = search_best(one).candidates[:1]
            found += [replace(candidate, copies=ask.aim.used(room)) for candidate in best]
            rejected += [] if best else _closest(one)
    if not found:
        return None
    order = ordered(found, ask.aim)
    explained = tuple(replace(one, told=partial(_told, tuple(_reasons(one, order, ask)))) for one in order)
    return Recommendation(replace(ask, gpus=order[0].plan.world_size), explained, tuple(rejected), ask.gpus)


def every_fleet(ask: Ask, usual: Sequence[int]) -> list[Candidate]:
    """Every possible plan of every width, in as many copies as there is room for."""
    rooms = {width: copies(width, ask.gpus, ask.hardware) for width in widths(ask, usual)}
    found = ((room, search(replace(ask, gpus=width)).candidates) for width, room in rooms.items() if room)
    return [replace(one, copies=ask.aim.used(room)) for room, several in found for one in several]


def _closest(ask: Ask) -> list[Rejected]:
    """The legal plan of a width without a possible one that breaks a limit by least."""
    return sorted(search(ask).rejected, key=lambda one: one.excess)[:1]


def ordered(found: Sequence[Candidate], aim: Aim) -> list[Candidate]:
    """Candidates by what they lose; of those that tie with the best, the one with the fastest clip comes first."""
    best = min(found, key=aim.loss)
    limit = aim.loss(best) * best.limit / best.cost.clip
    ties = [one for one in found if aim.loss(one) <= limit]
    first = min(ties, key=lambda one: one.cost.clip)
    rest = sorted((one for one in found if one is not first), key=aim.loss)
    return [replace(one, tie=len(ties) > 1 and aim.loss(one) <= limit) for one in (first, *rest)]


def _told(words: tuple[str, ...], candidate: Candidate) -> tuple[str, ...]:
    """Reasons that are worked out already."""
    return words


def _reasons(candidate: Candidate, order: Sequence[Candidate], ask: Ask) -> Iterator[str]:
    first, aim = order[0], ask.aim
    if candidate is not first:
        slower = f"{_more(candidate.cost.clip / first.cost.clip)} time a clip"
        yield f"{_compared(candidate, first, aim)}, {slower}"
    elif len(order) > 1:
        words = f"{_compared(first, order[1], aim)} than {copies_of(order[1])}"
        yield words + ("; a tie, of which the fastest clip comes first" if order[1].tie else "")
    if reason := mesh_reason(candidate, ask.hardware):
        yield reason


def _compared(one: Candidate, other: Candidate, aim: Aim) -> str:
    """How one candidate does by the objective, against another."""
    made, others = aim.output(one), aim.output(other)
    if aim.objective is Objective.cost:
        return f"{_more(made.gpu_seconds / others.gpu_seconds)} GPU time a clip"
    if made.seconds is not None and others.seconds is not None:
        return f"{_more(made.seconds / others.seconds)} time for all clips"
    return f"{_more(made.per_hour / others.per_hour, 'fewer')} clips an hour"


def _more(ratio: float, less: str = "less") -> str:
    """A ratio in words: "3% more"."""
    share = abs(ratio - 1)
    return f"{'under 1%' if share < 0.005 else f'{share:.0%}'} {'more' if ratio >= 1 else less}"


def copies_of(candidate: Candidate) -> str:
    """A plan and its copies in words: "4 copies of cfg2"."""
    return f"{candidate.copies} {'copy' if candidate.copies == 1 else 'copies'} of {candidate.config}"


def frontier(found: Sequence[Candidate], aim: Aim) -> list[Candidate]:
    """The candidates that no other one beats in both seconds a clip and clips an hour, the fastest first."""
    kept: list[Candidate] = []
    most = 0.0
    for candidate in sorted(found, key=lambda one: (one.cost.clip, -aim.output(one).per_hour)):
        if (made := aim.output(candidate).per_hour) > most:
            kept.append(candidate)
            most = made
    return kept
