"""A measured denoise time of this clip, by which a machine's rates are scaled. No torch."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, NamedTuple

from hybridgen.errors import RequestError, counted
from hybridgen.plan.plan import Plan
from hybridgen.planner.choose.orders import best_order
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.price.cost import cost
from hybridgen.recipe import quantity
from hybridgen.recipe.legal import Fixed, nearest_plans
from hybridgen.recipe.resolve import MAX_RANKS
from hybridgen.strategies import registry
from hybridgen.strategies.registry import DEGREES, Degrees

RULES = {
    "anchor": "--anchor scales the machine's rates so that the split that was measured denoises this clip in the given "
    "time. What does not scale, such as exchanges and the host's launches, must fit into it. Several GPUs can be split "
    "in several ways, so that their split belongs to the time.",
}
FORM = "SECONDS, GPUS:SECONDS or GPUS:SECONDS:SPLIT"
MAX_SURPRISE = 3
"""Factor by which a measured time may differ from the prediction without a warning."""
LONGEST = 10**9
"""Most seconds that may have been measured: 30 years."""
HALVINGS = 60
"""Steps of the search for a factor; each halves what it may be off."""


class Anchor(NamedTuple):
    """A measured denoise time."""

    given: str
    """As it was typed."""
    seconds: float
    plan: Plan
    """The plan that was measured."""
    predicted: float
    """Seconds that are predicted without the anchor."""

    @property
    def gpus(self) -> int:
        return self.plan.world_size

    def as_data(self) -> dict[str, Any]:
        """The anchor as JSON has it."""
        split = {"gpus": self.gpus, "seconds": self.seconds, "split": str(self.plan.degrees)}
        return {**split, "predicted_s": round(self.predicted, 4)}

    def doubts(self, title: str) -> list[str]:
        """A warning where the time is far from what is predicted: minutes for seconds, or another clip."""
        if max(self.seconds / self.predicted, self.predicted / self.seconds) <= MAX_SURPRISE:
            return []
        words = f"--anchor {self.given} is far from the {three_digits(self.predicted)} s predicted for "
        return [f"warning: {words}{_place(title, self.plan)}; is it in seconds, and of this clip?"]


def read(given: str | float, template: Plan, hardware: Hardware, fixed: Fixed, known: int = MAX_RANKS) -> Anchor:
    """The measured time that --anchor gives: of one GPU, or of several with their split.

    Without a split it is the one that the given degrees describe, if they multiply to the number of GPUs. `known` is
    the number of GPUs that there are. Raises RequestError (anchor).
    """
    text = f"{given:g}" if isinstance(given, int | float) else given.strip()
    *first, rest = text.split(":", 1)
    if not first:
        return _checked(text, text, replace(template, degrees=Degrees()), hardware)
    seconds, _, split = rest.partition(":")
    gpus = _number(text, first[0], known)
    degrees = _split(text, split) if split.strip() else Degrees(**fixed)
    plan = replace(template, degrees=degrees.changed(vae=1), stages=() if split.strip() else template.stages)
    wrong = [one for one in registry.violations(plan) if one.flag not in registry.OVERLAID]
    if plan.world_size == gpus and not wrong:
        return _checked(text, seconds, best_order(plan, hardware), hardware)
    if problem := _no_time(_time(text, seconds)):
        raise _refused(text, problem, [])
    near = [f"{gpus}:{seconds.strip()}:{one.degrees.changed(vae=1)}" for one in nearest_plans(plan, gpus)]
    if not split.strip():
        problem = f"{gpus} GPUs can be split in several ways; which split was measured?"
    elif plan.world_size != gpus:
        problem = f"{plan.degrees} makes {counted(plan.world_size, 'GPU')}, not {gpus}"
    else:
        problem = f"no clip can be made with this split: {wrong[0].complaint}"
    raise _refused(text, problem, near)


def _number(text: str, word: str, known: int) -> int:
    """The number of GPUs of an anchor. Raises RequestError (anchor)."""
    if not re.fullmatch(r"\s*\d{1,9}\s*", word):
        raise _refused(text, f"is not {FORM}", ["54.3", "8:54.3:cfg2 ulysses4"])
    if not 1 <= int(word) <= known:
        near = min(max(int(word), 1), known)
        raise _refused(text, f"names {int(word)} GPUs; there are 1 to {known}", [text.replace(word, str(near), 1)])
    return int(word)


def _split(text: str, split: str) -> Degrees:
    """The degrees of a split as tables name it: "cfg2 ulysses4 attn2d3x3". Raises RequestError (anchor)."""
    found: dict[str, Any] = {}
    for word in split.replace(",", " ").split():
        named = [degree for degree in DEGREES if re.fullmatch(rf"{degree.name}\d{{1,9}}(x\d{{1,9}})?", word)]
        degree = max(named, key=lambda one: len(one.name), default=None)
        value = word.removeprefix(degree.name) if degree else ""
        if degree is None or ("x" in value) != (len(degree.axes) == 2) or degree.name in found:
            names = ", ".join(one.name for one in DEGREES)
            raise _refused(text, f"{word} is not a part of a split; parts are: {names}, each once with its ranks", [])
        found[degree.name] = degree.parse(value)
    return Degrees(**found)


def _time(text: str, seconds: str) -> float:
    """The seconds of an anchor, which may be no time. Raises RequestError (anchor) where they are no number."""
    taken = quantity.amount(seconds, quantity.SECONDS)
    try:
        return float(seconds) if taken is None else taken
    except ValueError:
        raise _refused(text, f"is not {FORM}", ["54.3", "8:54.3:cfg2 ulysses4"]) from None


def _no_time(taken: float) -> str:
    """What is wrong with a number of seconds; "" if nothing is."""
    limits = f"up to {LONGEST:,}" if taken > LONGEST else "above 0"
    return "" if 0 < taken <= LONGEST else f"must be a number of seconds {limits}"


def _checked(text: str, seconds: str, plan: Plan, hardware: Hardware) -> Anchor:
    """The anchor of a plan. Raises RequestError (anchor) for a time that is none."""
    predicted, taken = cost(plan, hardware).denoise, _time(text, seconds)
    if problem := _no_time(taken):
        raise _refused(text, f"{problem}; predicted: {three_digits(predicted)}", [])
    return Anchor(text, taken, plan, predicted)


def _refused(text: str, problem: str, near: list[str]) -> RequestError:
    tries = [{"anchor": near[0]}] if near else [{"anchor": None}]
    return RequestError("anchor", "anchor", text, problem, near, tries)


def anchored(hardware: Hardware, anchor: Anchor) -> Hardware:
    """The machine on which the measured plan denoises in the measured time: its rates are scaled together.

    Raises RequestError (anchor) where no GPU is fast enough for that.
    """

    def seconds(factor: float) -> float:
        return cost(anchor.plan, hardware.slower(factor, "")).denoise

    low, high = 0.0, 1.0
    if seconds(2.0**-HALVINGS) >= anchor.seconds:
        place = _place(hardware.title, anchor.plan)
        problem = f"is less than {place} can take; predicted: {three_digits(anchor.predicted)}"
        raise RequestError("anchor", "anchor", anchor.given, problem, tries=[{"anchor": None}])
    while seconds(high) < anchor.seconds:
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if seconds(middle) < anchor.seconds else (low, middle)
    return hardware.slower(high, f"scaled to --anchor {anchor.given}")


def _place(title: str, plan: Plan) -> str:
    """The GPUs that were measured, in words: "one H200", "8 H200 as cfg2 ulysses4"."""
    return f"one {title}" if plan.world_size == 1 else f"{plan.world_size} {title} as {plan.degrees}"


def three_digits(seconds: float) -> str:
    """A number with three digits: 1450, 57.4, 0.0131."""
    return f"{float(f'{seconds:.3g}'):g}"
