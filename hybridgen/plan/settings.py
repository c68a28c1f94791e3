"""Settings of a plan beside its degrees, in one table: attention, weights, compiling, caching, few steps. No torch.

Flags, keys of a recipe, help, checks, JSON, reports and what `run` refuses are made from the table. What a setting
costs or saves is in hybridgen/planner/price/settings.py. Those that change the clip are never chosen unasked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

from hybridgen.errors import RequestError, did_you_mean
from hybridgen.plan import kernels

RULES = {
    "plan-only": "The setting has a price, so that a plan for another engine or a later version can be compared. Ranks "
    "cannot do it yet, and it is refused rather than left out.",
    "setting": "A setting takes one of a few words, some with a number after a colon.",
    "timesteps": "A distilled checkpoint was trained for a few timesteps, which fall from 1000 towards 0; there are as "
    "many steps.",
}
MOST_TIME = 1000
"""The timestep of pure noise."""


class Choice(NamedTuple):
    """One value of a setting."""

    name: str
    words: str
    """What it does, as a phrase."""
    exact: bool = False
    """Whether the clip differs by rounding only."""
    runs: bool = False
    """Whether `run` can do it."""
    size: float = 0.0
    """Bytes of a weight that is held so, scales included; 0 where weights are held as they are."""
    threshold: float | None = None
    """Threshold above which a step is computed, where the setting takes one; unless another is given."""


class Setting(NamedTuple):
    """One setting: a flag of `run` and `plan`, and a key of a recipe."""

    name: str
    help: str
    metavar: str | None
    changes: str
    """What it changes of a plan, as a phrase."""
    choices: tuple[Choice, ...]
    """Its values; of attention those that are not kernels of plan/kernels.py."""

    def choice(self, name: str) -> Choice:
        """The value of this name. Raises RequestError (setting)."""
        names = [choice.name for choice in self.choices]
        if name not in names:
            near = list(dict.fromkeys((*did_you_mean(name, names), *names)))
            raise RequestError("setting", self.name, name, f"is not one of {', '.join(names)}", near)
        return self.choices[names.index(name)]


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            "attention",
            "Attention kernel (sdpa, cudnn, flash, cpu ...); chosen for you by default. sage and fp8 change the clip.",
            "NAME",
            "the rate of attention",
            (
                Choice("sage", "SageAttention: Q and K in int8, V in fp8 or fp16"),
                Choice("fp8", "Q, K and V in fp8, one scale each"),
            ),
        ),
        Setting(
            "weights",
            "Hold the weights of matrices as fp8, int8 or nvfp4, and multiply so where the GPU can; changes the clip.",
            "NAME",
            "the rate of matrix products, and bytes of weights",
            (
                Choice("fp8", "matrices in fp8, one scale a channel", size=1.0),
                Choice("int8", "matrices in int8, one scale a channel", size=1.0),
                Choice("nvfp4", "matrices in 4 bits, with an fp8 scale for 16 of them", size=0.5 + 1 / 16),
            ),
        ),
        Setting(
            "compile",
            "Compile the blocks with torch.compile before the first step.",
            None,
            "norms, rope and residuals, and the host's launches",
            (Choice("compile", "blocks compiled", exact=True),),
        ),
        Setting(
            "cache",
            "Skip steps that change little: first-block, mag or teacache, with its threshold; changes the clip.",
            "NAME:X",
            "the number of steps that are computed",
            (
                Choice("first-block", "steps skipped where the first block's output changes little", threshold=0.06),
                Choice("mag", "steps skipped by the magnitude of residuals", threshold=0.06),
                Choice("teacache", "steps skipped where the modulated input changes little", threshold=0.2),
            ),
        ),
        Setting(
            "timesteps",
            "Timesteps of a distilled checkpoint instead of the schedule's own, as in 1000,757,522.",
            "LIST",
            "the number of steps that are computed",
            (Choice("timesteps", "a distilled schedule"),),
        ),
    )
}
"""Every setting by name."""
APART = " (approximate)"
KERNEL_LIKE = {choice.name: choice for choice in SETTINGS["attention"].choices}
"""Values of attention that are not exact, by name."""


class Cached(NamedTuple):
    """How steps are skipped."""

    method: str
    threshold: float

    def __str__(self) -> str:
        return f"{self.method}:{self.threshold:g}"


@dataclass(frozen=True)
class Settings:
    """The settings of one plan; by default what `run` does unasked."""

    attention: str = "auto"
    """Name of an attention kernel, "auto", or a value of the table."""
    weights: str | None = None
    """How matrices are held; None means in the plan's dtype."""
    compile: bool = False
    cache: Cached | None = None
    timesteps: tuple[float, ...] = ()
    """Timesteps of a distilled schedule; empty means the schedule's own."""

    @cached_property
    def chosen(self) -> dict[str, Choice]:
        """The values of the table that are used, by setting."""
        names = {
            "attention": self.attention if self.attention in KERNEL_LIKE else None,
            "weights": self.weights,
            "compile": "compile" if self.compile else None,
            "cache": self.cache and self.cache.method,
            "timesteps": "timesteps" if self.timesteps else None,
        }
        return {setting: SETTINGS[setting].choice(name) for setting, name in names.items() if name}

    @property
    def exact(self) -> bool:
        """Whether the clip differs by rounding only from that of the model's own weights, steps and attention."""
        return all(choice.exact for choice in self.chosen.values())

    def as_data(self) -> dict[str, Any]:
        """What is not as by default, as recipes have it."""
        texts = {"cache": self.cache and str(self.cache), "timesteps": ",".join(f"{t:g}" for t in self.timesteps)}
        values = {item.name: texts.get(item.name, getattr(self, item.name)) for item in fields(self)}
        return {name: value for name, value in values.items() if value and value != "auto"}

    def size_of_weight(self, itemsize: int) -> float:
        """Bytes of one weight of a matrix, given those of an element of the plan's dtype."""
        return SETTINGS["weights"].choice(self.weights).size if self.weights else itemsize

    @property
    def changing(self) -> dict[str, Any]:
        """What changes the clip, as recipes have it."""
        given = self.as_data()
        return {name: given[name] for name, choice in self.chosen.items() if not choice.exact}

    @property
    def described(self) -> list[str]:
        """What is used in words, as in "weights fp8: matrices in fp8, one scale a channel (approximate)"."""
        given = self.as_data()
        return [
            f"{name}{'' if given[name] is True else f' {given[name]}'}: {choice.words}" + APART * (not choice.exact)
            for name, choice in self.chosen.items()
        ]

    @property
    def unable(self) -> dict[str, str]:
        """The settings that `run` cannot do, with their values as a flag has them ("" for one without)."""
        given = self.as_data()
        return {name: "" if given[name] is True else str(given[name]) for name, c in self.chosen.items() if not c.runs}

    def refuse_unable(self) -> None:
        """Raise RequestError (plan-only) for the first setting that `run` cannot do."""
        for name, value in self.unable.items():
            words = self.chosen[name].words
            problem = f"is for planning: run cannot do it yet ({words})"
            near = f"run without --{name}; hybridgen plan prices it"
            raise RequestError("plan-only", name, value or None, problem, near, [{name: None}])


def settings(
    attention: str | None = None,
    weights: str | None = None,
    compile: bool | None = None,
    cache: str | None = None,
    timesteps: str | None = None,
) -> Settings:
    """Settings from flags or keys. Raises RequestError: attention-unknown, setting, timesteps."""
    if attention is not None and attention not in KERNEL_LIKE:
        kernels.check_name(attention, KERNEL_LIKE)
    if weights is not None:
        SETTINGS["weights"].choice(weights)
    return Settings(
        attention or "auto", weights, bool(compile), cached(cache) if cache else None, tuple(_falling(timesteps))
    )


def cached(text: str) -> Cached:
    """How steps are skipped, from "teacache:0.2" or "teacache". Raises RequestError (setting)."""
    method, colon, given = text.partition(":")
    choice = SETTINGS["cache"].choice(method)
    assert choice.threshold is not None
    threshold = _number(given) if colon else choice.threshold
    if not 0 <= threshold < math.inf:
        near = str(Cached(method, choice.threshold))
        raise RequestError("setting", "cache", text, "has no threshold of 0 or more after the colon", [near])
    return Cached(method, threshold)


def _falling(text: str | None) -> Iterator[float]:
    """Timesteps from "1000,757,522". Raises RequestError (timesteps)."""
    before = math.inf
    for part in text.split(",") if text is not None else ():
        time = _number(part)
        if not 0 < time <= MOST_TIME or time >= before:
            problem = f"must be numbers from {MOST_TIME} down to more than 0, each less than the one before"
            raise RequestError("timesteps", "timesteps", text, problem, ["1000,757,522"])
        before = time
        yield time


def _number(text: Any) -> float:
    """The number in a text; NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
