"""From a request and a number of GPUs to ranked plans: the entry to the planner for `plan` and `run`. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hybridgen.errors import RequestError
from hybridgen.models import catalogue
from hybridgen.plan.facts import ModelFacts
from hybridgen.plan.numbers import divisors
from hybridgen.planner.choose.ask import Ask, Recommendation, ask_for, rounder
from hybridgen.planner.choose.counts import count_gpus, with_counts
from hybridgen.planner.choose.objective import Objective
from hybridgen.planner.choose.options import PlanOptions
from hybridgen.planner.choose.ranking import Candidate
from hybridgen.planner.choose.reasons import explained
from hybridgen.planner.choose.report import with_parallel
from hybridgen.planner.choose.search import search, search_best
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.hardware.known import DEFAULT
from hybridgen.planner.hardware.lookup import find
from hybridgen.recipe.fields import Recipe
from hybridgen.recipe.resolve import MAX_RANKS, given_degrees, published_frames, refuse_idle_options, with_heads
from hybridgen.strategies.registry import OVERLAID, Degrees

MOST_NARROWER = 4
"""Most numbers of GPUs that are compared with a larger one."""


def plan_for(recipe: Recipe, options: PlanOptions) -> Recommendation:
    """Ranked plans for what a recipe leaves open, the recommended one first; without a number of GPUs, hosts or the
    recipe's degrees say how many there are. Raises RequestError.
    """
    if options.fewer and options.objective is not Objective.latency:
        problem = "chooses the number of GPUs of a clip itself, so that --fewer has no meaning"
        raise RequestError("objective", "objective", options.objective, problem, [Objective.latency])
    facts, parallel = facts_of(recipe, options.model_facts, options.heads), recipe.parallel
    gpus, nodes, memory, max_time = options.gpus, options.nodes, options.size, options.seconds
    machine = find(DEFAULT if options.hardware is None else options.hardware)
    count, hosts = count_gpus(gpus, nodes, options.gpus_per_node, given_degrees(parallel), machine)
    machine = machine.joined(hosts)
    if not options.approximate:
        refuse_idle_options(parallel, Degrees(**given_degrees(parallel)))
    try:
        ask = ask_for(published_frames(recipe, facts), count, machine, facts)
    except RequestError as error:
        raise error.changed(value=recipe.request.frames) if error.flag == "frames" else error from error
    if options.anchor is not None:
        from hybridgen.planner.choose import anchor

        known = sum(machine.hosts) or MAX_RANKS
        measured = anchor.read(options.anchor, ask.template, machine, ask.fixed, known)
        ask = replace(ask, hardware=anchor.anchored(machine, measured), anchor=measured)
    ask = replace(ask, approximate=options.approximate, memory=memory, max_time=max_time, aim=options.aim)
    try:
        if ask.aim.objective is not Objective.latency:
            return with_copies(ask)
        return with_fewer(ask) if options.fewer else recommend(ask)
    except RequestError as error:
        raise with_counts(error, count, gpus, nodes) from error


def facts_of(recipe: Recipe, own: Path | None = None, heads: int | None = None) -> ModelFacts:
    """Facts of the recipe's model, or of a file, with other heads if asked for. Raises RequestError."""
    if own is not None and recipe.model is not None:
        problem = f"--model {recipe.model} names another model; give one of the two"
        raise RequestError("model-facts", "model-facts", own, problem)
    if own is not None:
        from hybridgen.planner.facts_file import read

        facts = read(own)
    else:
        facts = catalogue.find(recipe.model)
    return facts if heads is None or heads == facts.transformer.heads else with_heads(facts, heads)


def recommend(ask: Ask) -> Recommendation:
    """All plans for exactly `ask.gpus` GPUs that are legal and fit, ranked.

    Raises RequestError: the rule that a given degree breaks, no-plan, memory or max-time; each names what would do.
    """
    found = search(ask)
    if not found.candidates:
        from hybridgen.planner.choose.no_plan import refusal

        raise refusal(ask, found.rejected)
    return explained(found)


def widths(gpus: int) -> list[int]:
    """Numbers of GPUs worth comparing, up to `gpus`: powers of two, shares of the whole, rounder numbers below it."""
    shares = {gpus // part for part in (1, 2, 3, 4) if gpus % part == 0}
    return sorted({2**i for i in range(gpus.bit_length())} | shares | {near for near in rounder(gpus) if near < gpus})


def scaling(ask: Ask, also: Iterable[int] = ()) -> list[Recommendation]:
    """Recommendations at every width up to `ask.gpus`, and at others, that has a plan."""
    found = (search(replace(ask, gpus=width)) for width in sorted({*widths(ask.gpus), *also}))
    return [explained(one) for one in found if one.candidates]


def with_fewer(ask: Ask) -> Recommendation:
    """The recommendation for the fewest GPUs that are no slower than the best width, within the model's error."""
    found = scaling(ask, _rounder_below(ask))
    if not found:
        return recommend(ask)  # says why there is none
    limit = min((one.fastest for one in found), key=lambda c: c.cost.clip).limit
    return replace(next(one for one in found if one.fastest.cost.clip <= limit), gpus=ask.gpus)


def with_copies(ask: Ask) -> Recommendation:
    """The recommendation for throughput or cost. Raises RequestError as recommend() does."""
    from hybridgen.planner.choose.fleet import best_fleet

    return best_fleet(ask, widths(ask.gpus)) or recommend(ask)  # which says why there is none


def fleets(ask: Ask) -> list[Candidate]:
    """Every possible plan of every width in as many copies as there is room for, to compare them."""
    from hybridgen.planner.choose.fleet import every_fleet

    return every_fleet(ask, widths(ask.gpus))


def faster_with_fewer(found: Recommendation) -> Recommendation | None:
    """The recommendation for a smaller number of GPUs, if it is faster than all of them; of ties, for the fewest.

    Of numbers that split well, those are looked at on which one GPU's work would not take too long, if it could be
    split without a loss. They are compared by plans that split guidance and weights as here.
    """
    ask, fastest = found.ask, found.fastest
    few = [gpus for gpus in _rounder_below(ask) if found.one_gpu / gpus < fastest.cost.clip]
    tried = [_narrower(found, gpus) for gpus in few]
    faster = [one for one in tried if one.candidates and one.fastest.limit < fastest.cost.clip]
    if not faster:
        return None
    limit = min(faster, key=lambda one: one.fastest.cost.clip).fastest.limit
    return min((one for one in faster if one.fastest.cost.clip <= limit), key=lambda one: one.ask.gpus)


def faster_alone(found: Recommendation) -> Recommendation | None:
    """The best recommendation for the cards of one kind alone, where it is faster than all kinds together.

    None for a machine of one kind, or where the time of the mixed machine was measured, which says nothing of a part.
    """
    ask = found.ask
    if not ask.hardware.cards or ask.anchor is not None:
        return None
    machines = [find(part) for part in ask.hardware.name.split(",")]
    tried = [search_best(replace(ask, gpus=sum(one.hosts), hardware=one)) for one in machines]
    faster = [one for one in tried if one.candidates and one.fastest.limit < found.fastest.cost.clip]
    return min(faster, key=lambda one: one.fastest.cost.clip, default=None)


def _rounder_below(ask: Ask) -> list[int]:
    """Smaller numbers of GPUs that split best: of multiples of powers of two and of what divides the heads, the next
    ones below, those with most divisors."""
    powers = {2**power for power in range(1, ask.gpus.bit_length())}
    steps = powers.union(divisors(ask.template.facts.transformer.heads)) - {1}
    below = {(ask.gpus - 1) // step * step for step in steps} - {0}
    return sorted(below, key=lambda gpus: (-len(divisors(gpus)), -gpus))[:MOST_NARROWER]


def _narrower(found: Recommendation, gpus: int) -> Recommendation:
    """The recommendation for a smaller number of GPUs: guidance split if it can be, weights and layers as here, and
    every other degree open. Where that does not fit, every degree is open.
    """
    branches, best = found.best.plan.branches, found.fastest.plan.degrees
    split = {"cfg": branches if gpus % branches == 0 else 1, "tp": best.tp, "pipefusion": best.pipefusion}
    open_ask = replace(found.ask, gpus=gpus, fixed=split, order=None)
    part = search_best(open_ask)
    return part if part.candidates else search_best(replace(open_ask, fixed={}))


def with_a_quarter(found: Recommendation) -> Recommendation | None:
    """The recommendation for about a quarter of the GPUs, where efficiency is higher; None if there is none."""
    gpus = found.ask.gpus
    part = _narrower(found, max(2 ** (gpus // 4).bit_length() // 2, 1))
    return part if gpus > 1 and part.candidates else None


def is_open(recipe: Recipe) -> bool:
    """Whether a recipe leaves the number of ranks open."""
    return all(name in OVERLAID for name in given_degrees(recipe.parallel))


def fill(recipe: Recipe, gpus: int, hardware: Hardware, video_frames: int | None = None) -> tuple[Recipe, Candidate]:
    """The recipe filled with the best plan's degrees and mesh order (given ones are kept), and that plan.

    `video_frames`: frames of the given video, as for clip_of().
    PipeFusion, which is approximate, is never chosen unasked. Raises RequestError as recommend() does.
    """
    best = recommend(ask_for(recipe, gpus, hardware, video_frames=video_frames)).best
    return replace(recipe, parallel=with_parallel(recipe.parallel, best.plan)), best
