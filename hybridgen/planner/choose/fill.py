"""The planner's choice for a run that leaves its degrees open. No torch."""

from __future__ import annotations

from dataclasses import replace

from hybridgen.errors import RequestError
from hybridgen.planner.choose.ask import ask_for
from hybridgen.planner.choose.ranking import Candidate
from hybridgen.planner.choose.recommend import recommend
from hybridgen.planner.choose.report import with_parallel
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.hardware.known import MACHINES
from hybridgen.recipe.fields import Recipe
from hybridgen.recipe.resolve import given_degrees
from hybridgen.strategies.registry import OVERLAID

INSTEAD = "--hardware NAME or FILE.yaml, or the degrees"
"""What to give where the planner does not know a machine."""


def is_open(recipe: Recipe) -> bool:
    """Whether a recipe says nothing of how many ranks there are."""
    return all(name in OVERLAID for name in given_degrees(recipe.parallel))


def fill(recipe: Recipe, gpus: int, hardware: Hardware, video_frames: int | None = None) -> tuple[Recipe, Candidate]:
    """The recipe with the best plan's degrees and mesh order, those that it gives kept; and that plan.

    `video_frames`: frames of the given video, as for clip_of().
    PipeFusion, which is approximate, is never chosen unasked. Raises RequestError as recommend() does.
    """
    best = recommend(ask_for(recipe, gpus, hardware, video_frames=video_frames)).best
    return replace(recipe, parallel=with_parallel(recipe.parallel, best.plan)), best


def machine_of(device: str) -> Hardware:
    """The machine with this device: "cpu", or what the driver calls a GPU. Raises RequestError (unknown-hardware)."""
    words = device.lower().replace(" ", "").replace("-", "")
    for name in sorted(MACHINES, key=len, reverse=True):
        kind, *rest = name.split("-")
        if kind in words and all(part in words for part in rest if part == "pcie"):
            return MACHINES[name]
    raise RequestError("unknown-hardware", "", None, f"{device} is not a machine that the planner knows", INSTEAD)
