"""The mesh order that suits a machine: the fastest of all orders of the axes in use. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from typing import NamedTuple

from hybridgen.plan.plan import Plan
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.hardware.hosts import Borders, borders
from hybridgen.planner.hardware.topology import Span, span, span_of_axis, span_of_ranks
from hybridgen.planner.price import vae as vae_price
from hybridgen.planner.price.cost import Exchanges
from hybridgen.strategies.registry import AXES

ALIKE = 0.01
"""Orders whose exchanges differ by no more than this share count as equal."""


def used_axes(plan: Plan) -> list[str]:
    """Axes with more than one rank, in the plan's order."""
    return [axis for axis in plan.order if plan.degrees.size(axis) > 1]


def best_order(plan: Plan, hardware: Hardware, exchanges: Exchanges | None = None) -> Plan:
    """The plan in the fastest mesh order; the default one among equals. Inside one domain all orders are equal.

    exchanges: those of the plan, if they are known.

    What an axis costs depends on which axes are faster than it, and not on their order. So the best order of some axes
    is one of them as the slowest, and the best order of the others. Axes whose ranks fill an equal part of a domain
    cost the same in every order, so that only the default one is looked at: no group of theirs leaves its part, and
    every part holds as many ranks of one guidance branch.
    """
    places = borders(plan.world_size, hardware)
    if places.are_alike(plan.world_size):
        return plan
    price, sizes = _axis_pricer(plan, hardware, places, exchanges or Exchanges(plan, hardware)), plan.degrees.sizes

    @cache
    def best(axes: tuple[str, ...]) -> tuple[float, int, tuple[str, ...]]:
        """Seconds, ranks and order of the best arrangement of these axes."""
        if not axes:
            return 0.0, 1, ()
        least, world, chosen = math.inf, 1, axes
        are_alike = places.hold_evenly(math.prod([sizes[axis] for axis in axes]))
        for place, axis in enumerate(axes[:1] if are_alike else axes):
            seconds, stride, order = best(axes[:place] + axes[place + 1 :])
            seconds += price(axis, stride)
            if seconds < least * (1 - ALIKE):
                least, world, chosen = seconds, stride * sizes[axis], (axis, *order)
        return least, world, chosen

    axes = tuple(used_axes(plan))
    _, _, chosen = best(axes)
    return plan if chosen == axes else replace(plan, order=(*chosen, *(axis for axis in AXES if axis not in chosen)))


def _axis_pricer(plan: Plan, hardware: Hardware, places: Borders, exchanges: Exchanges) -> Callable[[str, int], float]:
    """A function that gives the seconds of an axis by the distance of its neighbours in ranks.

    The VAE's ranks run one guidance branch, so that the place of cfg decides how they lie.
    """
    degrees, world = plan.degrees, plan.world_size
    decoding = cache(lambda where: vae_price.vae_seconds(plan, hardware, where))
    halved = 1 < degrees.vae < world

    @cache
    def seconds(axis: str, stride: int) -> float:
        size = degrees.size(axis)
        found = exchanges.seconds(axis, span_of_axis(stride, size, world, places))
        if halved and degrees.axes[axis].divides == "branches":
            found += decoding(vae_span(degrees.vae, stride, size, places))
        return found

    return seconds


@lru_cache(maxsize=1024)
def vae_span(width: int, half: int, halves: int, places: Borders) -> Span:
    """Span of the first `width` ranks of one guidance branch; the `halves` stand `half` ranks apart."""
    return span_of_ranks(tuple(r // half * halves * half + r % half for r in range(width)), places)


class Crossing(NamedTuple):
    """The axes in use, by whether their groups stay inside one part of the machine."""

    place: str
    """What the part is called: "node", "domain", or the name of the near link."""
    inside: list[str]
    crossing: list[str]


def crossings(plan: Plan, hardware: Hardware) -> list[Crossing]:
    """Which axes cross the borders of domains, and then of near groups where the machine has them."""
    places = borders(plan.world_size, hardware)
    spans = {axis: span(plan.layout, axis, places) for axis in used_axes(plan)}
    found = [(domains(hardware), [axis for axis, where in spans.items() if where.crosses])]
    if hardware.near:
        found.append((hardware.near.name, [axis for axis, where in spans.items() if where.near < where.size]))
    return [Crossing(place, [axis for axis in spans if axis not in axes], axes) for place, axes in found]


def domains(hardware: Hardware) -> str:
    """Name of a domain of the machine."""
    return "node" if hardware.domain == hardware.per_node else "domain"
