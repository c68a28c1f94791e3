"""All plans for a request: what is predicted for each, which fit, and in what order. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from hybridgen.errors import RequestError
from hybridgen.plan.plan import Plan
from hybridgen.plan.traffic import PHASES, Term
from hybridgen.planner.choose.ask import Ask, Recommendation, Rejected
from hybridgen.planner.choose.orders import best_order
from hybridgen.planner.choose.ranking import Candidate, ranked, tie_share
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.hardware.hosts import ranks_of_domain
from hybridgen.planner.hardware.topology import Span, span
from hybridgen.planner.price import memory
from hybridgen.planner.price import vae as vae_price
from hybridgen.planner.price.cost import cost, one_gpu_seconds
from hybridgen.planner.price.vae import Tail
from hybridgen.recipe import legal as candidates
from hybridgen.strategies.registry import Degrees


def search(ask: Ask) -> Recommendation:
    """All plans for exactly `ask.gpus` GPUs that are legal and fit, ranked; there may be none."""
    price = _pricer(ask)
    fitting, rejected = [], []
    for plan in candidates.legal_plans(ask.template, ask.gpus, ask.given):
        candidate = price(plan)
        found = rejections(candidate, ask)
        rejected += found
        if not found:
            fitting.append(candidate)
    order = ranked(fitting, tie_share(ask.hardware))
    if order:
        rejected = [one._replace(nearest=nearest(one.plan.degrees, order).config) for one in rejected]
    return Recommendation(ask, tuple(order), tuple(rejected), ask.gpus)


def _pricer(ask: Ask) -> Callable[[Plan], Candidate]:
    """What gives a legal plan VAE width, mesh order, seconds and memory. What plans have in common is priced once."""
    template, hardware, gpus = ask.template, ask.hardware, ask.gpus
    one_gpu, domain = one_gpu_seconds(template, hardware), ranks_of_domain(gpus, hardware)

    @cache
    def width(half: int) -> int:
        return vae_price.best_width(template, hardware, half, gpus, tie_share(hardware))

    @cache
    def tail(width: int, where: Span) -> Tail:
        return vae_price.tail(replace(template, degrees=Degrees(vae=width)), hardware, where)

    def price(plan: Plan) -> Candidate:
        if "vae" not in ask.fixed:
            plan = replace(plan, degrees=plan.degrees.changed(vae=width(gpus // plan.degrees.cfg)))
        plan = replace(plan, order=ask.order) if ask.order else best_order(plan, hardware)
        around = tail(plan.degrees.vae, span(plan.layout, "vae", domain))
        return Candidate(plan, cost(plan, hardware, tail=around), one_gpu, held(plan, hardware))

    return price


def held(plan: Plan, hardware: Hardware) -> tuple[Term, ...]:
    """Memory of the fullest rank on this machine."""
    _, own = memory.fullest(plan)
    terms = [*own, Term("context", int(hardware.reserve.value), PHASES)]
    return tuple(term for term in terms if term.size)


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
