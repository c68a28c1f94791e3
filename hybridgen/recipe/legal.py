"""The degree sets that are legal for a number of ranks. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from hybridgen.plan.axes import Degree, Value
from hybridgen.plan.degrees import by_name
from hybridgen.plan.plan import Plan
from hybridgen.strategies import registry
from hybridgen.strategies.registry import Degrees

Fixed = Mapping[str, Value]
"""Given degrees by field of Degrees; the others are open."""


def degree_sets(template: Plan, world: int, fixed: Fixed | None = None) -> Iterator[Degrees]:
    """Every way to spread `world` ranks over the axes that the strategies' choices allow for the template.

    Degrees laid over the mesh, such as the VAE's, stay at 1 unless they are given.
    """
    given = dict(fixed or {})
    chosen = {name: given.pop(name) for name in registry.OVERLAID if name in given}
    spread = [degree for degree in registry.DEGREES if not degree.is_overlaid]
    # How a sequence is shared depends on the heads that the others leave.
    spread.sort(key=lambda degree: degree.axes[0].shares_sequence)
    yield from _spread(template, spread, world, given, chosen)


def _spread(template: Plan, degrees: list[Degree], left: int, given: Fixed, chosen: Fixed) -> Iterator[Degrees]:
    """Every way to spread the remaining ranks over these degrees, after others were chosen."""
    if not degrees:
        if left == 1:
            yield Degrees(**chosen)
        return
    degree, *others = degrees
    for value in _choices(template, degree, left, chosen):
        if value == given.get(degree.name, value):
            rest = left // (math.prod(value) if isinstance(value, tuple) else value)
            yield from _spread(template, others, rest, given, {**chosen, degree.name: value})


def _choices(template: Plan, degree: Degree, left: int, chosen: Fixed) -> list[Value]:
    """Values of a degree that divide the remaining ranks and that its strategy allows."""
    choices = registry.BY_DEGREE[degree.name].choices
    if choices is None:
        return degree.divisions(left)
    return list(choices(degree, replace(template, degrees=Degrees(**chosen)), left))


def legal_plans(
    template: Plan, world: int, fixed: Fixed | None = None, laid: Callable[[Degrees], Fixed] = lambda degrees: {}
) -> list[Plan]:
    """The legal plans for `world` ranks; everything but the degrees is as in the template.

    laid: values of degrees that are laid over the mesh, where they are not given; 1 by default.
    """
    given = fixed or {}
    found = degree_sets(template, world, given)
    found = (degrees.changed(**{n: v for n, v in laid(degrees).items() if n not in given}) for degrees in found)
    plans = (replace(template, degrees=degrees) for degrees in found)
    return [plan for plan in plans if not registry.violations(plan)]


def with_overlaid(plan: Plan) -> Plan:
    """The plan with the first choice of every degree that is laid over its mesh, as on an unknown machine."""
    for degree in registry.DEGREES:
        if degree.is_overlaid and (choices := registry.BY_DEGREE[degree.name].choices):
            first = next(iter(choices(degree, plan, plan.degrees.half)))
            plan = replace(plan, degrees=plan.degrees.changed(**{degree.name: first}))
    return plan


def distance(wanted: Degrees, other: Degrees) -> tuple[float, float, int]:
    """Distance of two degree sets: changed axes and by how much, then what else `other` splits."""
    axes = [axis.name for degree in by_name(registry.DEGREES) if not degree.is_overlaid for axis in degree.axes]
    changes = [abs(math.log2(wanted.size(axis) / other.size(axis))) for axis in axes]
    pairs = [value for degree in registry.DEGREES if isinstance(value := other.value(degree), tuple)]
    oblong = sum(abs(rows - columns) for rows, columns in pairs)
    others = other.over("blocks", "weights", "nothing") + other.cp
    return sum(0.5 + change for change in changes if change), others, oblong


def exact_only() -> Fixed:
    """Degrees of approximate strategies as 1, for where only exact plans may be chosen."""
    return {degree.name: degree.one for degree in registry.DEGREES if degree.exact is not None}


def nearest_plans(plan: Plan, world: int, count: int = 2) -> list[Plan]:
    """Legal plans for `world` ranks that are exact for any number of steps, the most similar to the given one first."""
    template = replace(plan, stages=())  # a list of stages is of one degree alone
    plans = legal_plans(template, world, exact_only())
    return [with_overlaid(p) for p in sorted(plans, key=lambda p: distance(plan.degrees, p.degrees))[:count]]
