"""All plans for a request: what is predicted for each, which fit, and in what order. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hybridgen.plan.plan import Plan
from hybridgen.plan.traffic import PHASES, Term
from hybridgen.planner.choose.ask import Ask, Recommendation, Rejected
from hybridgen.planner.choose.orders import best_order
from hybridgen.planner.choose.ranking import Candidate, ranked, tie_share
from hybridgen.planner.choose.reasons import explained
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.price import memory
from hybridgen.planner.price import vae as vae_price
from hybridgen.planner.price.cost import cost, one_gpu_seconds
from hybridgen.recipe import legal as candidates


def search(ask: Ask) -> Recommendation:
    """All plans for exactly `ask.gpus` GPUs that are legal and fit, ranked; there may be none."""
    one_gpu = one_gpu_seconds(ask.template, ask.hardware)
    fitting, rejected = [], []
    for plan in candidates.legal_plans(ask.template, ask.gpus, ask.given):
        candidate = priced(plan, ask, one_gpu)
        found = rejections(candidate, ask)
        rejected += found
        if not found:
            fitting.append(candidate)
    order = ranked(fitting, tie_share(ask.hardware))
    return Recommendation(ask, tuple(explained(order, ask.hardware)), tuple(_with_nearest(rejected, order)), ask.gpus)


def priced(plan: Plan, ask: Ask, one_gpu: float) -> Candidate:
    """A plan with VAE width, mesh order, seconds and memory."""
    if "vae" not in ask.fixed:
        half = plan.world_size // plan.degrees.cfg
        plan = _with_width(
            plan, vae_price.best_width(plan, ask.hardware, half, plan.world_size, tie_share(ask.hardware))
        )
    plan = replace(plan, order=ask.order) if ask.order else best_order(plan, ask.hardware)
    return Candidate(plan, cost(plan, ask.hardware), one_gpu, held(plan, ask.hardware))


def _with_width(plan: Plan, width: int) -> Plan:
    return replace(plan, degrees=plan.degrees.changed(vae=width))


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
        message = f"needs {peak / 1e9:.1f} GB on a GPU, more than {whose}"
        found.append(Rejected(plan, "memory", message, excess=peak / ask.limit))
    if ask.max_time is not None and seconds > ask.max_time:
        taken = f"{seconds:,.{0 if seconds >= 100 else 1}f}"
        message = f"takes {taken} s end to end, more than --max-time {ask.max_time:g}s"
        found.append(Rejected(plan, "max-time", message, excess=seconds / ask.max_time))
    return found


def _with_nearest(rejected: Sequence[Rejected], order: Sequence[Candidate]) -> Iterator[Rejected]:
    """Each with the fitting plan that is most like it."""
    for one in rejected:
        near = sorted(order, key=lambda c: candidates.distance(one.plan.degrees, c.plan.degrees))[:1]
        yield replace(one, nearest="".join(c.config for c in near))
