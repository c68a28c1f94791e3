"""All plans for a request: predictions for each, which fit, and their order. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache

from hybridgen.errors import RequestError
from hybridgen.planner.choose.ask import Ask, Recommendation, Rejected
from hybridgen.planner.choose.orders import best_order
from hybridgen.planner.choose.ranking import Candidate, ranked
from hybridgen.planner.hardware.hosts import borders
from hybridgen.planner.hardware.topology import Span, span
from hybridgen.planner.price import vae as vae_price
from hybridgen.planner.price.cost import Exchanges, cost, one_gpu_seconds
from hybridgen.planner.price.vae import Tail
from hybridgen.recipe import legal as candidates
from hybridgen.strategies.registry import Degrees

ASKED_AGAIN = 32
"""Answers that are remembered: pages, comparisons of widths and suggestions ask for the same plans again."""


@lru_cache(ASKED_AGAIN)
def search(ask: Ask) -> Recommendation:
    """All plans for exactly `ask.gpus` GPUs that are legal and fit, ranked; there may be none."""
    fitting, rejected = [], []
    for candidate in _priced(ask):
        found = rejections(candidate, ask)
        rejected += found
        if not found:
            fitting.append(candidate)
    order = ranked(fitting)
    if order:
        rejected = [one._replace(nearest=nearest(one.plan.degrees, order).config) for one in rejected]
    return Recommendation(ask, tuple(order), tuple(rejected), ask.gpus)


@lru_cache(ASKED_AGAIN)
def search_best(ask: Ask) -> Recommendation:
    """The best plans of search(); memory is counted only for these."""
    order = sorted(_priced(ask), key=lambda c: c.cost.clip)
    fastest = next((c for c in order if not rejections(c, ask)), None)
    limit = fastest.limit if fastest else 0.0
    near = [c for c in order if c.cost.clip <= limit and not rejections(c, ask)]
    return Recommendation(ask, tuple(ranked(near)), (), ask.gpus)


def _priced(ask: Ask) -> Iterator[Candidate]:
    """Legal plans with VAE width, mesh order, seconds and memory; what they have in common is priced once."""
    template, hardware, gpus = ask.template, ask.hardware, ask.gpus
    one_gpu, places = one_gpu_seconds(template, hardware), borders(gpus, hardware)

    @cache
    def width(half: int) -> int:
        return vae_price.best_width(template, hardware, half, gpus)

    @cache
    def tail(width: int, where: Span) -> Tail:
        return vae_price.tail(replace(template, degrees=Degrees(vae=width)), hardware, where)

    for legal in candidates.legal_plans(template, gpus, ask.given, lambda degrees: {"vae": width(degrees.half)}):
        exchanges = Exchanges(legal, hardware)
        plan = replace(legal, order=ask.order) if ask.order else best_order(legal, hardware, exchanges)
        around = tail(plan.degrees.vae, span(plan.layout, "vae", places))
        yield Candidate(plan, cost(plan, hardware, tail=around, exchanges=exchanges), one_gpu, hardware, ask.limit)


def rejections(candidate: Candidate, ask: Ask) -> list[Rejected]:
    """The limits that a plan breaks."""
    plan, peak, seconds, found = candidate.plan, candidate.peak, candidate.cost.clip, []
    if peak > ask.limit:
        limit = f"{ask.limit / 1e9:g}"
        whose = f"--memory {limit}GB" if ask.memory else f"the {limit} GB of {ask.hardware.title}"
        problem = f"needs {peak / 1e9:.1f} GB on a GPU, more than {whose}"
        found.append(Rejected(plan, RequestError("memory", "", None, problem), peak / ask.limit))
    if ask.max_time is not None and seconds > ask.max_time:
        taken = f"{seconds:,.{0 if seconds >= 100 else 1}f}"
        problem = f"takes {taken} s end to end, more than --max-time {ask.max_time:g}s"
        found.append(Rejected(plan, RequestError("max-time", "", None, problem), seconds / ask.max_time))
    return found


def nearest(degrees: Degrees, order: Sequence[Candidate]) -> Candidate:
    """The candidate whose degrees are most like these."""
    return min(order, key=lambda c: candidates.distance(degrees, c.plan.degrees))
