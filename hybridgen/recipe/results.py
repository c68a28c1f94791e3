"""Results in recipes, compared with the machine of a run or a plan. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import NamedTuple

from hybridgen.errors import counted
from hybridgen.models import catalogue
from hybridgen.plan.plan import Plan
from hybridgen.recipe import library, source
from hybridgen.recipe.fields import FILE, Measured, Recipe, Request
from hybridgen.recipe.resolve import published_frames, resolve
from hybridgen.recipe.typed import trusted


def mismatch(recipe: Recipe, device: str, ranks: int) -> str | None:
    """A sentence for a recipe that was measured on, or is for, other hardware than this; None when it fits.

    `device` is "cpu" or the name that the driver gives a GPU ("NVIDIA H100 80GB HBM3"), `ranks` how many are used.
    """
    hardware = recipe.hardware
    results = [one for one in recipe.measured if one.denoise_s or one.end_to_end_s]
    named = {name for one in results if (name := one.hardware or hardware.name)}
    known = sorted(named) or ([hardware.name] if hardware.name else [])
    what, so = ("was measured on", "; times will differ") if named else ("is for", "")
    if known and not any(_matches(name, device) for name in known):
        return f"this recipe {what} {' and '.join(known)}; here: {device}{so}"
    if hardware.gpus is not None and hardware.gpus != ranks:
        return f"this recipe {what} {counted(hardware.gpus, 'rank')}; here: {ranks}{so}"
    return None


def _matches(name: str, device: str) -> bool:
    """Whether a recipe's name of a GPU (gb200-nvl72, rtx-4090) is the driver's (NVIDIA GB200, ... RTX 4090)."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    model = next((word for word in words if re.search(r"\d", word)), words[0] if words else "")
    return model in re.findall(r"[a-z0-9]+", device.lower())


class Result(NamedTuple):
    """A denoise time that a recipe of the package records."""

    recipe: str
    plan: Plan
    measured: Measured


def results(wanted: Plan, gpus: int, hardware: str) -> Iterator[Result]:
    """Results of the wanted plan's model and clip on this many GPUs of a machine, however they were split.

    Only files that name machine, model and number of GPUs are parsed. Files of the package fit, since the tests check
    them.
    """
    names = (wanted.facts.name, *wanted.facts.aliases)
    for path in library.files():
        text = path.read_text(encoding="utf-8")
        if hardware not in text or not any(name in text for name in names):
            continue
        if re.search(rf"\bgpus: {gpus}\b", text) is None:
            continue
        recipe: Recipe = trusted(Recipe, source.read(path, FILE).content)
        if recipe.hardware.name != hardware or recipe.hardware.gpus != gpus:
            continue
        if catalogue.find(recipe.model).name == wanted.facts.name:
            yield from _comparable(path.stem, recipe, wanted)


def _comparable(name: str, recipe: Recipe, wanted: Plan) -> Iterator[Result]:
    """A recipe's denoise times of clips that take as long as the wanted one."""
    for measured in recipe.measured:
        given = {f.name: value for f in fields(Request) if (value := getattr(measured.request, f.name)) is not None}
        as_run = replace(recipe, request=replace(recipe.request, **given))
        plan = resolve(published_frames(as_run, wanted.facts))
        if measured.denoise_s and _work(plan) == _work(wanted):
            yield Result(name, plan, measured)


def _work(plan: Plan) -> tuple[object, ...]:
    """A key that is equal for clips of a model that take equally long on the same ranks."""
    changed = tuple(plan.settings.changing.items())
    return plan.latent_shape, plan.clip.steps, plan.branches, plan.clip.image, plan.dtype, changed
