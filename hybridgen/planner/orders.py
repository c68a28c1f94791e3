"""The mesh order that suits a machine: every order of the axes in use is priced. No torch."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import permutations

from hybridgen.degrees import AXES
from hybridgen.plan import Plan
from hybridgen.planner import cost, decode
from hybridgen.planner.hardware import Hardware
from hybridgen.planner.hosts import ranks_of_domain
from hybridgen.planner.topology import Span, span, span_of_axis, span_of_ranks


def used_axes(plan: Plan) -> list[str]:
    """Axes with more than one rank, in the plan's order."""
    return [axis for axis in plan.order if plan.degrees.size(axis) > 1]


def best_order(plan: Plan, hardware: Hardware) -> Plan:
    """The plan in the order that takes least time; the usual one among equals. Inside one domain all are equal."""
    world, domain = plan.world_size, ranks_of_domain(plan.world_size, hardware)
    if world <= domain:
        return plan
    price = cost.pricer(plan, hardware)
    found: dict[tuple[Span, ...], float] = {}
    best, chosen = float("inf"), plan.order
    axes = used_axes(plan)
    for order in permutations(axes):
        spans = spans_of(plan, order, domain)
        key = tuple(spans.values())
        if key not in found:
            found[key] = price(spans) + decode.vae_seconds(plan, hardware, spans.get("vae"))
        if found[key] < best * (1 - 1e-9):
            best, chosen = found[key], order
    if list(chosen) == axes or chosen == plan.order:
        return plan
    return replace(plan, order=(*chosen, *(axis for axis in AXES if axis not in chosen)))


def spans_of(plan: Plan, order: tuple[str, ...], domain: int) -> dict[str, Span]:
    """How the groups of every axis lie when the axes in use stand in this order, slowest first."""
    degrees, world, stride, spans = plan.degrees, plan.world_size, 1, {}
    half = 0
    for axis in reversed(order):
        size = degrees.size(axis)
        spans[axis] = span_of_axis(stride, size, world, domain)
        if axis == "cfg":
            half = stride
        stride *= size
    if degrees.vae > 1:
        spans["vae"] = _vae_span(degrees.vae, half if degrees.vae < world else 0, domain)  # as Layout.vae_ranks
    return spans


@lru_cache(maxsize=1024)
def _vae_span(width: int, half: int, domain: int) -> Span:
    """The first `width` ranks of cfg half 0, whose two halves stand `half` ranks apart (0: nothing is halved)."""
    ranks = [r if not half else r // half * 2 * half + r % half for r in range(width)]
    return span_of_ranks(ranks, domain)


def crossings(plan: Plan, hardware: Hardware) -> tuple[list[str], list[str]]:
    """Axes in use whose groups stay inside a domain, and those that cross domains."""
    axes, domain = used_axes(plan), ranks_of_domain(plan.world_size, hardware)
    crossing = [axis for axis in axes if span(plan.layout, axis, domain).crosses]
    return [axis for axis in axes if axis not in crossing], crossing


def domains(hardware: Hardware) -> str:
    """What a domain of the machine is called."""
    return "node" if hardware.domain == hardware.per_node else "domain"
