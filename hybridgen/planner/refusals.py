"""What is said when no plan will do, and which illegal plans are near a request. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hybridgen.degrees import Degrees, divisors
from hybridgen.errors import Change, RequestError, Violation
from hybridgen.plan import Plan
from hybridgen.planner import candidates
from hybridgen.planner.ask import Ask, Recommendation, Rejected, rounder
from hybridgen.planner.search import search
from hybridgen.resolve import MAX_RANKS
from hybridgen.strategies import registry

RULES = {
    "memory": "Every GPU must hold its part of the weights, the activations of its tokens, and what is exchanged, or "
    "decode its strip of the picture, whichever is more. Sequence parallelism shards no weights; tp, pipefusion do.",
    "max-time": "The fastest plan is predicted to take longer than --max-time allows.",
    "no-plan": "A plan's degrees multiply to the number of GPUs, and every strategy's rules hold.",
}
MORE = (2, 4, 8, 16)
"""How many times as many GPUs are tried when no plan will do."""


def refusal(ask: Ask, rejected: Sequence[Rejected]) -> RequestError:
    """Why there is no plan: a broken rule, or a limit of memory or time, with what would do."""
    if not rejected:
        return _no_plan(ask)
    rule = "memory" if all(r.rule == "memory" for r in rejected) else "max-time"
    rejected = [r for r in rejected if r.rule == rule]
    nearest = min(rejected, key=lambda r: r.excess)
    message = f"no plan for {ask.gpus} x {ask.hardware.title} will do: {nearest.plan.degrees} {nearest.message}"
    found = _with_more(ask)
    if found is None:
        return RequestError(rule, f"{message}, and none for up to {ask.gpus * MORE[-1]} GPUs will", RULES[rule])
    best, gpus = found.best, found.ask.gpus
    name = f"{gpus} GPUs as {best.config}" if gpus != ask.gpus else f"{best.config}, which is approximate"
    change: Change = {"gpus": str(gpus)} if gpus != ask.gpus else {"approximate": ""}
    hint = f"nearest: {name} ({best.peak / 1e9:.0f} GB, {best.cost.clip:,.{0 if best.cost.clip >= 100 else 1}f} s)"
    return RequestError(rule, f"{message}; {hint}", RULES[rule], [change])


def _with_more(ask: Ask) -> Recommendation | None:
    """The plan for the fewest GPUs that keeps the limits, or an approximate one for as many.

    Rounder numbers close by come first: 71 GPUs can be split in one way, 64 and 72 in many.
    """
    tries = sorted({*rounder(ask.gpus), *(ask.gpus * factor for factor in MORE)})
    others = [replace(ask, gpus=gpus) for gpus in tries if gpus <= MAX_RANKS]
    tried = (search(other) for other in (*others, replace(ask, approximate=True)))
    return next((found for found in tried if found.candidates), None)


def _no_plan(ask: Ask) -> RequestError:
    """The rule that the given degrees break on their own, or that nothing multiplies to the number of GPUs."""
    given = Degrees(**ask.fixed)  # type: ignore[arg-type]
    legal = candidates.legal_plans(ask.template, ask.gpus, replace(ask, fixed={}).given)
    near = sorted(legal, key=lambda p: candidates.distance(given, p.degrees))[:2]
    broken = registry.violations(replace(ask.template, degrees=given))
    for violation in broken:
        if violation.rule != "vae-width" or given.world == ask.gpus:
            error = RequestError.of(violation)
            error.tries = (_change(ask, near[0]),) if near else error.tries
            return error
    if "vae" in ask.fixed and (too_wide := _without_vae(ask)):
        return RequestError.of(too_wide)
    factors = " ".join(f"--{name} {value}" for name, value in given.named().items())
    names = ", ".join(str(p.degrees) for p in near) or "none"
    message = f"no legal plan has {ask.gpus} GPUs{f' with {factors}' if factors else ''}; nearest: {names}"
    return RequestError("no-plan", message, RULES["no-plan"], [_change(ask, p) for p in near[:1]])


def _change(ask: Ask, plan: Plan) -> Change:
    """The given flags as a legal plan has them; the VAE's width goes where it is too wide for it."""
    named = plan.degrees.named()
    changes: dict[str, str | None] = {name: named.get(name) for name in ask.fixed if name != "vae"}
    vae = int(ask.fixed.get("vae", 1))  # type: ignore[arg-type]
    if registry.violations(replace(plan, degrees=replace(plan.degrees, vae=vae))):
        changes["vae"] = None
    return {**changes, "usp": None}


def _without_vae(ask: Ask) -> Violation | None:
    """The rule that the VAE's width alone breaks, on the first plan that would be legal without it."""
    others = {name: value for name, value in ask.fixed.items() if name != "vae"}
    for plan in candidates.legal_plans(ask.template, ask.gpus, replace(ask, fixed=others).given):
        wide = replace(plan, degrees=replace(plan.degrees, vae=ask.fixed["vae"]))  # type: ignore[arg-type]
        return next(iter(registry.violations(wide)), None)
    return None


def illegal(found: Recommendation) -> Iterator[Rejected]:
    """Plans near the request that break a rule, one for each rule and value, with the legal one most like each."""
    ask, seen = found.ask, set()
    for degrees in _near(found):
        plan = replace(ask.template, degrees=degrees)
        for violation in registry.violations(plan)[:1]:
            if (violation.rule, violation.message) in seen:
                continue
            seen.add((violation.rule, violation.message))
            near = min(found.candidates, key=lambda c: candidates.distance(degrees, c.plan.degrees))
            yield Rejected(plan, violation.rule, violation.message, near.config)


def _near(found: Recommendation) -> Iterator[Degrees]:
    """Degree sets with one more axis than any legal plan has, or another width of it, the rest on a grid."""
    world, best = found.ask.gpus, found.best.plan.degrees
    halves = (2, 1) if world % 2 == 0 else (1,)
    for cfg in halves:
        rest = world // cfg
        for size in divisors(rest)[1:]:
            grid = _grid(rest // size)
            yield Degrees(cfg=cfg, ulysses=size, attn2d=grid)
            yield Degrees(cfg=cfg, tp=size, attn2d=grid)
            yield Degrees(cfg=cfg, pipefusion=size, attn2d=grid)
    if best.cp > 1 and math.isqrt(best.cp) ** 2 == best.cp:
        side = math.isqrt(best.cp)
        yield replace(best, ring=side, attn2d=(side, 1), vae=1)
    for vae in (world // best.cfg + 1, 2 * best.vae + 1):
        yield replace(best, vae=vae)


def _grid(size: int) -> tuple[int, int]:
    """The squarest rows x cols."""
    rows = max(d for d in divisors(size) if d * d <= size)
    return size // rows, rows


def all_rejected(found: Recommendation) -> list[Rejected]:
    """What breaks a rule, then what breaks a limit."""
    return [*illegal(found), *found.rejected]
