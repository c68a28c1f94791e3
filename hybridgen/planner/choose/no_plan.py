"""Errors for requests without a possible plan, and illegal plans near a request. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from hybridgen.errors import Change, RequestError, counted
from hybridgen.plan.axes import Degree, Value
from hybridgen.plan.numbers import divisors
from hybridgen.plan.plan import Plan
from hybridgen.plan.traffic import PHASES, Phase
from hybridgen.planner.choose.ask import Ask, Recommendation, Rejected, rounder
from hybridgen.planner.choose.remedies import helps
from hybridgen.planner.choose.search import nearest, search
from hybridgen.planner.price.memory import held, phase_sizes
from hybridgen.recipe import legal as candidates
from hybridgen.recipe.resolve import MAX_RANKS
from hybridgen.strategies import registry
from hybridgen.strategies.registry import Degrees

RULES = {
    "memory": "Every GPU must hold its part of the weights, the activations of its tokens, and what is exchanged, or "
    "decode its strip of the frames, whichever is more. Sequence parallelism shards no weights; tp, pipefusion do.",
    "max-time": "The fastest plan is predicted to take longer than --max-time allows.",
    "no-plan": "A plan's degrees multiply to the number of GPUs, and every strategy's rules hold.",
}
WHILE: dict[Phase, str] = {
    "setup": "while the text is encoded",
    "condition": "while given frames are encoded",
    "denoise": "while denoising",
    "decode": "while decoding",
}
"""Phases in words."""
MORE = (2, 4, 8, 16)
"""Largest multiple of the number of GPUs that is tried when no plan is possible."""
FEW = 8
"""Values of a degree up to here are tried whether they divide the number of GPUs or not."""
MOST_OF_A_RULE = 3
"""Most plans near a request that are shown for breaking one rule by one degree."""


def refusal(ask: Ask, rejected: Sequence[Rejected]) -> RequestError:
    """The error that says why there is no plan: a broken rule, or a limit of memory or time, with what would do."""
    if not rejected:
        return _no_plan(ask)
    too_large = {one.plan for one in rejected if one.error.rule == "memory"}
    slow = [one for one in rejected if one.plan not in too_large]
    rule = "max-time" if slow else "memory"
    closest = min(slow or (one for one in rejected if one.error.rule == rule), key=lambda one: one.excess)
    error = _limit_error(ask, rule, closest)
    if rule == "memory":
        ways = helps(ask, closest.plan)
        error = error.changed(tries=[*(way.change for way in ways if way.change), *error.tries])
        error.helps = tuple(way.text for way in ways)
    return error


def _limit_error(ask: Ask, rule: str, closest: Rejected) -> RequestError:
    """The error of a limit that the closest plan breaks, with the plan for more GPUs that keeps it."""
    found = _with_more(ask)
    if found.candidates:
        return RequestError(rule, "", None, _complaint(ask, closest), [_hint(ask, found)], [_more(ask, found)])
    if ask.fixed:
        return _with_others(ask, RequestError(rule, "", None, _complaint(ask, closest, f" with {_named(ask)}")))
    why = _unsplit(found) if rule == "memory" else ""
    lacks = "fits" if rule == "memory" else "is fast enough"
    problem = f"{_complaint(ask, closest)}; no plan for up to {found.ask.gpus} GPUs {lacks}{why}"
    return RequestError(rule, "", None, problem)


def _complaint(ask: Ask, closest: Rejected, given: str = "") -> str:
    place, plan = f"{ask.gpus} x {ask.hardware.title}{given}", closest.plan.degrees
    if closest.error.rule == "memory":
        return (
            f"nothing fits on {place}: the smallest plan, {plan}, {closest.error.complaint}; {_largest(ask, closest)}"
        )
    return f"nothing is fast enough on {place}: the fastest plan, {plan}, {closest.error.complaint}"


def _largest(ask: Ask, closest: Rejected) -> str:
    """The component that takes most of what a plan needs: "most of it, 20.1 GB, is vae decoding, while decoding"."""
    terms = held(closest.plan, ask.hardware)
    sizes = phase_sizes(terms)
    phase = max(PHASES, key=lambda phase: sizes[phase])
    term = max((term for term in terms if phase in term.phases), key=lambda term: term.size)
    return f"the largest part, {term.size / 1e9:.1f} GB {WHILE[phase]}, is {term.name}"


def _hint(ask: Ask, found: Recommendation) -> str:
    """What _with_more() found: "32 GPUs as cfg2 tp8 ulysses2 (14 GB, 12.3 s)"."""
    best, gpus = found.best, found.ask.gpus
    name = f"{counted(gpus, 'GPU')} as {best.config}" if gpus != ask.gpus else f"{best.config}, which is approximate"
    return f"{name} ({best.peak / 1e9:.0f} GB, {best.cost.clip:,.{0 if best.cost.clip >= 100 else 1}f} s)"


def _more(ask: Ask, found: Recommendation) -> Change:
    """Changes of flags that ask for the plan that _with_more() found."""
    if found.ask.gpus != ask.gpus:
        return {"gpus": str(found.ask.gpus)}
    return {**found.best.plan.degrees.named(), **registry.NO_SHORTHANDS}


def _with_more(ask: Ask) -> Recommendation:
    """The plan for the fewest GPUs that keeps the limits, or an approximate one for this many; else the widest search.

    Rounder numbers close by come first: 71 GPUs can be split in one way, 64 and 72 in many.
    """
    tries = sorted({*rounder(ask.gpus), *(ask.gpus * factor for factor in MORE)})
    tried = []
    for other in [*(replace(ask, gpus=gpus) for gpus in tries if gpus <= MAX_RANKS), replace(ask, approximate=True)]:
        tried.append(search(other))
        if tried[-1].candidates:
            return tried[-1]
    return max(tried, key=lambda found: (len(found.rejected) > 0, found.ask.gpus))


def _unsplit(found: Recommendation) -> str:
    """The component that alone exceeds the limit for any number of GPUs; "" if there is none."""
    limit, least = found.ask.limit, Counter[tuple[str, tuple[Phase, ...]]]()
    for number, one in enumerate(found.rejected):
        sizes = Counter({(term.name, term.phases): term.size for term in held(one.plan, found.ask.hardware)})
        least = least & sizes if number else sizes  # the smaller of both, by component
    for phase in PHASES:
        parts = sorted(((size, name) for (name, phases), size in least.items() if phase in phases), reverse=True)
        if sum(size for size, _ in parts) > limit:
            count = next(n for n in range(1, len(parts) + 1) if sum(size for size, _ in parts[:n]) > limit)
            total = sum(size for size, _ in parts[:count]) / 1e9
            names = " and ".join(f"the {name}" for _, name in parts[:count])
            return f": {names} alone take{'s' * (count == 1)} {total:.1f} GB, which no split reduces"
    return ""


def _no_plan(ask: Ask) -> RequestError:
    """The error of given degrees that break a rule on their own, or that do not multiply to the number of GPUs."""
    given = _given(ask)
    for broken in registry.violations(replace(ask.template, degrees=given)):
        if broken.flag not in registry.OVERLAID or given.world == ask.gpus:
            return _with_others(ask, broken)
    if too_wide := _laid_over(ask):
        return _with_other_width(ask, too_wide)
    problem = f"no legal plan has {counted(ask.gpus, 'GPU')}" + (f" with {_named(ask)}" if ask.fixed else "")
    if len(ask.fixed) > 1 and ask.gpus % given.world:
        problem += f": that takes a multiple of {given.world}"
    return _with_others(ask, RequestError("no-plan", "", None, problem))


def _with_others(ask: Ask, broken: RequestError) -> RequestError:
    """The error with the plans for this many GPUs that are most like the given degrees and keep the limits.

    If there are none, the error says so, and what would do without the given degrees.
    """
    given = _given(ask)
    anything = replace(ask, fixed={}, template=replace(ask.template, stages=()))  # stages are of one degree alone
    kept = replace(anything, fixed={name: width for name, width in ask.fixed.items() if name in registry.OVERLAID})
    found = search(kept)
    if not found.candidates:
        found = search(anything)
    if found.candidates:
        near = sorted(found.candidates, key=lambda c: candidates.distance(given, c.plan.degrees))[:2]
        return broken.changed(nearest=", ".join(c.config for c in near), tries=[_change(ask, near[0].plan, found.ask)])
    if not found.rejected:
        return broken.changed(nearest="none", tries=[])
    other = refusal(anything, found.rejected)
    problem = other.problem if broken.rule == other.rule else f"{broken.complaint}; {other.problem}"
    changes = [{**_change(ask, None, anything), **c} for c in other.tries if not isinstance(c, str)]
    return other.changed(problem=problem, tries=changes)


def _given(ask: Ask) -> Degrees:
    return Degrees(**ask.fixed)


def _named(ask: Ask) -> str:
    """The given degrees as flags, including those of 1."""
    texts = {name: "x".join(map(str, v)) if isinstance(v, tuple) else str(v) for name, v in ask.fixed.items()}
    return " ".join(f"--{name} {value}" for name, value in texts.items())


def _change(ask: Ask, plan: Plan | None, found: Ask) -> Change:
    """Changes that set the given flags to those of a plan, or remove them with their options."""
    named = plan.degrees.named() if plan else {}
    changes: dict[str, str | None] = {name: named.get(name) for name in ask.fixed if name not in found.fixed}
    for strategy in registry.STRATEGIES if not ask.approximate else ():
        if all(changes.get(degree.name, "kept") is None for degree in strategy.degrees):
            changes |= dict.fromkeys(option.name for option in strategy.options)  # which are for this strategy alone
    if ask.order and {name for name, value in changes.items() if value} - set(_given(ask).named()):
        changes["order"] = None  # which must name every axis that is given
    return {**changes, **registry.NO_SHORTHANDS}


def _with_other_width(ask: Ask, broken: RequestError) -> RequestError:
    """The error with the legal values next to the given one of a degree laid over the mesh, if they keep the limits."""
    widths = [width for width in broken.nearest if isinstance(width, int)]
    near = [width for width in widths if search(replace(ask, fixed={**ask.fixed, broken.flag: width})).candidates]
    if not near:
        return _with_others(ask, broken)
    return broken.changed(nearest=near, tries=None)


def _laid_over(ask: Ask) -> RequestError | None:
    """The error of a degree laid over the mesh, such as the VAE's width, on the first plan that is legal without it."""
    laid = {name: value for name, value in ask.fixed.items() if name in registry.OVERLAID}
    others = {name: value for name, value in ask.fixed.items() if name not in laid}
    for plan in candidates.legal_plans(ask.template, ask.gpus, replace(ask, fixed=others).given) if laid else ():
        wide = replace(plan, degrees=plan.degrees.changed(**laid))
        return next(iter(registry.violations(wide)), None)
    return None


def illegal(found: Recommendation) -> Iterator[Rejected]:
    """Illegal plans near the request: for every degree that is not given and every rule, those of the nearest values,
    each with the legal plan most like it.
    """
    for degree in registry.DEGREES:
        shown = Counter[str]()
        for degrees in _near(found, degree) if degree.name not in found.ask.fixed else ():
            plan = replace(found.ask.template, degrees=degrees)
            for broken in registry.violations(plan)[:1]:
                shown[broken.rule] += 1
                if shown[broken.rule] <= MOST_OF_A_RULE:
                    yield Rejected(plan, broken, nearest=nearest(degrees, found.candidates).config)


def _near(found: Recommendation, degree: Degree) -> Iterator[Degrees]:
    """Degree sets with another value of one degree, those nearest to the best plan's value first."""
    world, best = found.ask.gpus, found.best.plan.degrees
    numbers = range(1, min(world, FEW) + 1)
    values: list[Value] = [*product(numbers, numbers)] if len(degree.axes) == 2 else [*{*numbers, *divisors(world)}]
    for value in sorted(values, key=lambda value: _apart(value, best.value(degree))):
        yield _others_kept(found, degree, value)


def _apart(one: Value, other: Value) -> tuple[int, Value]:
    pairs = zip(*(value if isinstance(value, tuple) else (value,) for value in (one, other)), strict=True)
    return sum(abs(a - b) for a, b in pairs), one


def _others_kept(found: Recommendation, degree: Degree, value: Value) -> Degrees:
    """The best plan with another value of a degree; with the other ranks on a grid where that makes as many GPUs."""
    fixed, world, best = found.ask.fixed, found.ask.gpus, found.best.plan.degrees
    small = Degrees(**{"cfg": best.cfg, **fixed, degree.name: value})
    if small.cp == 1 and "attn2d" not in (*fixed, degree.name) and not degree.is_overlaid and world % small.world == 0:
        return small.changed(attn2d=_grid(world // small.world))
    laid = {other.name: other.one for other in registry.DEGREES if other.is_overlaid and other.name not in fixed}
    return best.changed(**{**laid, degree.name: value})


def _grid(size: int) -> tuple[int, int]:
    """The squarest grid, rows x cols, of this many ranks."""
    rows = max(d for d in divisors(size) if d * d <= size)
    return size // rows, rows


def all_rejected(found: Recommendation) -> list[Rejected]:
    """Rejected plans: those that break a rule, then those that break a limit."""
    return [*illegal(found), *found.rejected]
