"""From a request and a number of GPUs to ranked plans. The one door to the planner for `plan` and `run`. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from hybridgen.degrees import Degrees
from hybridgen.errors import RequestError
from hybridgen.models import catalogue
from hybridgen.models.facts import ModelFacts
from hybridgen.plan import Plan
from hybridgen.planner import candidates, decode, memory
from hybridgen.planner.candidates import Fixed
from hybridgen.planner.cost import cost, one_gpu_seconds
from hybridgen.planner.hardware import Hardware
from hybridgen.planner.orders import best_order
from hybridgen.planner.ranking import Candidate, ranked, tie_share
from hybridgen.planner.reasons import explained
from hybridgen.recipe import Recipe
from hybridgen.resolve import given_degrees, order_of, template
from hybridgen.strategies.parallel_vae import rules as parallel_vae
from hybridgen.traffic import PHASES, Term

RULES = {
    "memory": "Every GPU must hold its part of the weights, the activations of its tokens, and what is exchanged, or "
    "decode its strip of the picture, whichever is more. Sequence parallelism shards no weights; tp, pipefusion do.",
    "max-time": "The fastest plan is predicted to take longer than --max-time allows.",
    "no-plan": "A plan's degrees multiply to the number of GPUs, and every strategy's rules hold.",
}


@dataclass(frozen=True)
class Ask:
    """What is to be planned. `template` gives the model, clip, dtype, patches and warm-up; its degrees are ignored."""

    template: Plan
    gpus: int
    hardware: Hardware
    fixed: Fixed = field(default_factory=dict)
    """Degrees that are not open, by field of Degrees."""
    order: tuple[str, ...] | None = None
    """The mesh order, all axes; None: the one that suits the machine."""
    approximate: bool = False
    memory: float | None = None
    """Bytes that a GPU may use, instead of all it has."""
    max_time: float | None = None
    """Seconds that a clip may take, end to end."""

    @property
    def limit(self) -> float:
        """Bytes of a GPU; infinite where the machine sets no limit."""
        return self.memory or self.hardware.memory.value or math.inf


def ask_for(recipe: Recipe, gpus: int, hardware: Hardware, facts: ModelFacts | None = None) -> Ask:
    """What a recipe leaves open, for so many GPUs: its degrees and mesh order are kept. Raises RequestError."""
    facts = facts or catalogue.find(recipe.model or catalogue.DEFAULT_MODEL)
    given, order = given_degrees(recipe.parallel), recipe.parallel.order
    return Ask(
        template(recipe, facts),
        gpus,
        hardware,
        given,
        order_of(order, Degrees(**given)) if order else None,  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class Rejected:
    """A plan that cannot be, the rule it breaks, and the plan most like it that can."""

    plan: Plan
    rule: str
    message: str
    nearest: str = ""
    excess: float = math.inf
    """How many times a limit of memory or time it needs."""


@dataclass(frozen=True)
class Recommendation:
    """Ranked plans, the recommended one first."""

    ask: Ask
    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]
    """Legal plans that break a limit of memory or time."""

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def one_gpu(self) -> float:
        """Denoise seconds on one GPU."""
        return self.best.one_gpu


def anchored(hardware: Hardware, plan: Plan, seconds: float) -> Hardware:
    """The machine on which one GPU denoises in `seconds`: its rates scaled together. Raises RequestError (anchor)."""
    alone = cost(_alone(plan), hardware)
    scaled = sum(item.seconds for item in alone.items if item.bound in ("compute", "memory"))
    factor = (seconds - (alone.denoise - scaled)) / scaled
    if not (math.isfinite(factor) and factor > 0):
        raise RequestError(
            "anchor",
            f"--anchor {seconds:g} is no denoise time of one {hardware.title}; predicted: {alone.denoise:.3g} s",
            tries=[{"anchor": None}],
        )
    return hardware.slower(factor, f"scaled to --anchor {seconds:g} s")


def _alone(plan: Plan) -> Plan:
    return replace(plan, degrees=Degrees(), patches=0, warmup=0)


def recommend(ask: Ask, retry: bool = True) -> Recommendation:
    """All plans for exactly `ask.gpus` GPUs that are legal and fit, ranked.

    Without `retry` a refusal does not look for a larger number of GPUs. Raises RequestError: the rule that a given
    degree breaks, no-plan, memory or max-time; each names what would do.
    """
    one_gpu = one_gpu_seconds(ask.template, ask.hardware)
    fitting, rejected = [], []
    for plan in candidates.legal_plans(ask.template, ask.gpus, competing(ask)):
        candidate = priced(plan, ask, one_gpu)
        found = rejections(candidate, ask)
        rejected += found
        if not found:
            fitting.append(candidate)
    if not fitting:
        from hybridgen.planner.refusals import refusal

        raise refusal(ask, rejected, look_further=retry)
    order = ranked(fitting, tie_share(ask.hardware))
    return Recommendation(ask, tuple(explained(order, ask.hardware)), tuple(_with_nearest(rejected, order)))


def competing(ask: Ask) -> Fixed:
    """The degrees that are fixed; pipefusion is 1 unless it is given or may compete."""
    return ask.fixed if ask.approximate else {"pipefusion": 1, **ask.fixed}


def priced(plan: Plan, ask: Ask, one_gpu: float) -> Candidate:
    """A plan with VAE width, mesh order, seconds and memory."""
    if "vae" not in ask.fixed:
        half = plan.world_size // plan.degrees.cfg
        plan = _with_width(plan, decode.best_width(plan, ask.hardware, half, plan.world_size, tie_share(ask.hardware)))
    plan = replace(plan, order=ask.order) if ask.order else best_order(plan, ask.hardware)
    return Candidate(plan, cost(plan, ask.hardware), one_gpu, held(plan, ask.hardware))


def _with_width(plan: Plan, width: int) -> Plan:
    return replace(plan, degrees=replace(plan.degrees, vae=width))


def held(plan: Plan, hardware: Hardware, rank: int | None = None) -> tuple[Term, ...]:
    """Memory of a rank on this machine; of the fullest one unless said."""
    rank = memory.fullest_rank(plan) if rank is None else rank
    context = int(hardware.reserve.value + (hardware.first.value if rank == 0 else 0))
    kernels = parallel_vae.workspace(plan, rank, hardware.unfolded.value, int(hardware.channel_block.value))
    freed = int(hardware.freed.value) if rank in plan.layout.vae_ranks() else 0
    terms = [
        *memory.terms(plan, rank),
        Term("packed matrices", min(memory.largest_matrix(plan), int(hardware.packed.value)), ("denoise", "decode")),
        Term("convolutions", kernels, ("decode",)),
        Term("freed blocks", freed, ("decode",)),
        Term("context", context, PHASES),
    ]
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
        message = f"takes {seconds:.3g} s end to end, more than --max-time {ask.max_time:g}s"
        found.append(Rejected(plan, "max-time", message, excess=seconds / ask.max_time))
    return found


def _with_nearest(rejected: Sequence[Rejected], order: Sequence[Candidate]) -> Iterator[Rejected]:
    """Each with the fitting plan that is most like it."""
    for one in rejected:
        near = min(order, key=lambda c: candidates.distance(one.plan.degrees, c.plan.degrees))
        yield replace(one, nearest=near.config)


def rounder(gpus: int) -> list[int]:
    """The multiples of 2, 4 and 8 next to a number of GPUs, below and above."""
    near = {gpus // step * step for step in (2, 4, 8)} | {-(-gpus // step) * step for step in (2, 4, 8)}
    return sorted(near - {0, gpus})


def widths(gpus: int) -> list[int]:
    """Numbers of GPUs worth comparing up to `gpus`: powers of two, shares of the whole, rounder ones below it."""
    shares = {gpus // part for part in (1, 2, 3, 4) if gpus % part == 0}
    return sorted({2**i for i in range(gpus.bit_length())} | shares | {near for near in rounder(gpus) if near < gpus})


def scaling(ask: Ask) -> list[Recommendation]:
    """The recommendation at every width up to `ask.gpus` at which there is one."""
    found = []
    for width in widths(ask.gpus):
        try:
            found.append(recommend(replace(ask, gpus=width), retry=False))
        except RequestError:
            continue
    return found


def fewer(ask: Ask) -> Recommendation:
    """The recommendation for the fewest GPUs that are no slower than the best width, within the model's error."""
    found = scaling(ask)
    if not found:
        return recommend(ask)  # says why there is none
    fastest = min(found, key=lambda r: r.best.cost.clip).best.cost
    limit = fastest.clip + tie_share(ask.hardware) * fastest.denoise
    return next(r for r in found if r.best.cost.clip <= limit)
