"""From a request and a number of GPUs to ranked plans. The one door to the planner for `plan` and `run`. No torch."""

from __future__ import annotations

import math
from dataclasses import replace

from hybridgen.errors import RequestError
from hybridgen.plan.degrees import Degrees
from hybridgen.plan.plan import Plan
from hybridgen.planner.choose.ask import Ask, Recommendation, rounder
from hybridgen.planner.choose.no_plan import refusal
from hybridgen.planner.choose.ranking import tie_share
from hybridgen.planner.choose.search import search
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.price.cost import cost, one_gpu_seconds

MAX_SURPRISE = 3
"""How many times as long or as short as predicted a measured time may be without a word."""


def recommend(ask: Ask) -> Recommendation:
    """All plans for exactly `ask.gpus` GPUs that are legal and fit, ranked.

    Raises RequestError: the rule that a given degree breaks, no-plan, memory or max-time; each names what would do.
    """
    found = search(ask)
    if not found.candidates:
        raise refusal(ask, found.rejected)
    return found


def anchored(hardware: Hardware, plan: Plan, seconds: float) -> Hardware:
    """The machine on which one GPU denoises in `seconds`: its rates scaled together. Raises RequestError (anchor)."""
    alone = cost(replace(plan, degrees=Degrees(), patches=0, warmup=0), hardware)
    scaled = sum(item.seconds for item in alone.items if item.bound in ("compute", "memory"))
    factor = (seconds - (alone.denoise - scaled)) / scaled
    if math.isfinite(seconds) and factor > 0:
        return hardware.slower(factor, f"scaled to --anchor {seconds:g} s")
    possible = math.isfinite(seconds) and seconds > 0
    complaint = f"is no denoise time of one {hardware.title}" if possible else "must be a number of seconds above 0"
    message = f"--anchor {seconds:g} {complaint}; predicted: {_three_digits(alone.denoise)} s"
    raise RequestError.told("anchor", message, tries=[{"anchor": None}])


def doubts(hardware: Hardware, plan: Plan, seconds: float) -> list[str]:
    """A warning where a measured denoise time is far from what is predicted: minutes for seconds, or another clip."""
    predicted = one_gpu_seconds(plan, hardware)
    if max(seconds / predicted, predicted / seconds) <= MAX_SURPRISE:
        return []
    words = f"--anchor {seconds:g} s is far from the {_three_digits(predicted)} s predicted for one {hardware.title}"
    return [f"warning: {words}; is it in seconds, and of this clip on one GPU?"]


def _three_digits(seconds: float) -> str:
    """1450, 57.4, 0.0131"""
    return f"{float(f'{seconds:.3g}'):g}"


def widths(gpus: int) -> list[int]:
    """Numbers of GPUs worth comparing up to `gpus`: powers of two, shares of the whole, rounder ones below it."""
    shares = {gpus // part for part in (1, 2, 3, 4) if gpus % part == 0}
    return sorted({2**i for i in range(gpus.bit_length())} | shares | {near for near in rounder(gpus) if near < gpus})


def scaling(ask: Ask) -> list[Recommendation]:
    """The recommendation at every width up to `ask.gpus` at which there is one."""
    found = (search(replace(ask, gpus=width)) for width in widths(ask.gpus))
    return [one for one in found if one.candidates]


def fewer(ask: Ask) -> Recommendation:
    """The recommendation for the fewest GPUs that are no slower than the best width, within the model's error."""
    found = scaling(ask)
    if not found:
        return recommend(ask)  # says why there is none
    fastest = min(found, key=lambda r: r.best.cost.clip).best.cost
    limit = fastest.clip + tie_share(ask.hardware) * fastest.denoise
    return next(r for r in found if r.best.cost.clip <= limit)
