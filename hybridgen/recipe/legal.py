"""The degree sets that are legal for a number of ranks. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from hybridgen.plan.degrees import Degrees, divisors
from hybridgen.plan.plan import Plan
from hybridgen.strategies import registry
from hybridgen.strategies.parallel_vae import rules as vae_rules
from hybridgen.strategies.tp import rules as tp_rules
from hybridgen.strategies.ulysses.rules import legal_degrees

MAX_VAE = 8
"""Widest VAE where no machine is known to price it on: published decode times stop falling at 8 ranks."""

Fixed = Mapping[str, int | tuple[int, int]]
"""Degrees that are given, by field of Degrees; the others are open."""


def degree_sets(world: int, template: Plan | None = None, fixed: Fixed | None = None) -> Iterator[Degrees]:
    """Every way to spread `world` ranks over the axes; the VAE's width is left at 1 unless it is given.

    With a template, tp and ulysses keep to what its model's heads allow; without one, legality is not looked at.
    """
    given = dict(fixed or {})
    vae = int(given.pop("vae", 1))  # type: ignore[arg-type]
    for cfg in (d for d in (2, 1) if world % d == 0):
        for tp in divisors(world // cfg):
            if template is not None and any(tp_rules.violations(replace(template, degrees=Degrees(tp=tp)))):
                continue
            for pipefusion in divisors(world // cfg // tp):
                rest = world // cfg // tp // pipefusion
                base = Degrees(cfg=cfg, tp=tp, pipefusion=pipefusion, vae=vae)
                for ulysses in reversed(_ulysses(rest, template, tp)):
                    for degrees in _exchanges(replace(base, ulysses=ulysses), rest // ulysses):
                        if all(getattr(degrees, name) == value for name, value in given.items()):
                            yield degrees


def _ulysses(rest: int, template: Plan | None, tp: int) -> list[int]:
    if template is None:
        return divisors(rest)
    return [u for u in legal_degrees(replace(template, degrees=Degrees(tp=tp))) if rest % u == 0]


def _exchanges(base: Degrees, cp: int) -> Iterator[Degrees]:
    if cp == 1:
        yield base
        return
    for rows in divisors(cp):
        yield replace(base, attn2d=(rows, cp // rows))
    yield replace(base, ring=cp)


def legal_plans(template: Plan, world: int, fixed: Fixed | None = None) -> list[Plan]:
    """The legal plans for `world` ranks, everything but the degrees as in the template."""
    given = fixed or {}
    plans = []
    for degrees in degree_sets(world, template, given):
        plan = replace(template, degrees=degrees)
        if "vae" not in given:
            plan = with_vae(plan)
        if not registry.violations(plan):
            plans.append(plan)
    return plans


def with_vae(plan: Plan) -> Plan:
    """The plan with the widest VAE worth having on a machine that is not known."""
    width = min(MAX_VAE, plan.world_size // plan.degrees.cfg, sum(vae_rules.strip_sizes(plan)))
    return replace(plan, degrees=replace(plan.degrees, vae=max(width, 1)))


def distance(wanted: Degrees, other: Degrees) -> tuple[float, float, int]:
    """How unlike two degree sets are: changed axes and by how much, then what else `other` splits."""
    axes = ("cfg", "ulysses", "ring", "row", "col", "tp", "pipefusion")
    changes = [abs(math.log2(wanted.size(axis) / other.size(axis))) for axis in axes]
    rows, cols = other.attn2d
    return sum(0.5 + change for change in changes if change), other.pipefusion * other.tp + other.cp, abs(rows - cols)


def nearest_plans(plan: Plan, world: int, count: int = 2) -> list[Plan]:
    """Legal plans for `world` ranks that are exact whatever the steps, those most like the given one first."""
    template = replace(plan, stages=())  # a list of stages is of one degree alone
    plans = legal_plans(template, world, {"pipefusion": 1})
    return sorted(plans, key=lambda p: distance(plan.degrees, p.degrees))[:count]
