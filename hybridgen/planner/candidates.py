"""All degree sets that are legal for a number of ranks. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hybridgen.degrees import Degrees, divisors
from hybridgen.plan import Plan
from hybridgen.strategies import registry
from hybridgen.strategies.parallel_vae import rules as vae_rules

MAX_VAE = 8
"""Widest VAE that is proposed: published decode times stop falling at 8 ranks (Wan 720p, 1/2/4/8/16 ranks:
2.72/1.72/1.04/0.83/0.85 s; TensorRT-LLM VisualGen)."""


def degree_sets(world: int) -> Iterator[Degrees]:
    """Every way to spread `world` ranks over the axes, legal or not; the VAE's width is left at 1."""
    for cfg in (d for d in (2, 1) if world % d == 0):
        for tp in divisors(world // cfg):
            for pipefusion in divisors(world // cfg // tp):
                rest = world // cfg // tp // pipefusion
                for ulysses in reversed(divisors(rest)):
                    cp = rest // ulysses
                    base = Degrees(cfg=cfg, tp=tp, pipefusion=pipefusion, ulysses=ulysses)
                    yield from _exchanges(base, cp)


def _exchanges(base: Degrees, cp: int) -> Iterator[Degrees]:
    if cp == 1:
        yield base
        return
    for rows in divisors(cp):
        yield replace(base, attn2d=(rows, cp // rows))
    yield replace(base, ring=cp)


def legal_plans(template: Plan, world: int) -> list[Plan]:
    """The legal plans for `world` ranks, everything but the degrees as in the template."""
    plans = []
    for degrees in degree_sets(world):
        plan = with_vae(replace(template, degrees=degrees))
        if not registry.violations(plan):
            plans.append(plan)
    return plans


def with_vae(plan: Plan) -> Plan:
    """The plan with the widest VAE worth having."""
    width = min(MAX_VAE, plan.world_size // plan.degrees.cfg, sum(vae_rules.strip_sizes(plan)))
    return replace(plan, degrees=replace(plan.degrees, vae=max(width, 1)))


def nearest_plans(plan: Plan, world: int, count: int = 2) -> list[Plan]:
    """Legal plans for `world` ranks that this version runs, those most like the given one first."""
    wanted = plan.degrees

    def distance(other: Plan) -> tuple[int, float, int]:
        d = other.degrees
        named = d.named()
        changed = sum(named.get(name) != value for name, value in wanted.named().items() if name != "vae")
        rows, cols = d.attn2d
        return changed, d.pipefusion * d.tp + d.cp, abs(rows - cols)

    template = replace(plan, stages=())  # a list of stages is of one degree alone
    runnable = [p for p in legal_plans(template, world) if p.degrees.pipefusion == 1]
    return sorted(runnable, key=distance)[:count]
