"""What is worth saying of a request before it runs: what is not read, what a model was not made for. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hybridgen.plan.plan import Plan
from hybridgen.recipe.fields import Recipe

CAPTION = re.compile(
    r"a (red|green|blue|yellow|white|purple) (circle|square|triangle|cross) moves (left|right|up|down)"
)
"""Captions that the demo model was trained on, all of them."""
TRAINED = {(64, 64): (9, 17, 33), (80, 48): (17,), (48, 80): (17,)}
"""Clips that the demo model was trained on: numbers of frames, by width and height."""


def remarks(recipe: Recipe, plan: Plan) -> list[str]:
    """Warnings that need no machine to be seen."""
    return [*_unread(recipe, plan), *(_demo(recipe, plan) if plan.facts.name == "demo" else ())]


def _unread(recipe: Recipe, plan: Plan) -> Iterator[str]:
    if recipe.request.negative_prompt and plan.branches == 1:
        yield (
            f"--negative-prompt is not read: guidance is off ({plan.clip.guidance:g}), so the prompt alone runs; "
            "--guidance 3, for example, turns it on"
        )


def _demo(recipe: Recipe, plan: Plan) -> Iterator[str]:
    clip, prompt = plan.clip, recipe.request.prompt
    if prompt and not CAPTION.fullmatch(prompt.strip()):
        yield (
            'the demo model knows captions like "a red circle moves right" alone (red, green, blue, yellow, white, '
            "purple; circle, square, triangle, cross; left, right, up, down): this prompt may give noise"
        )
    if clip.frames not in TRAINED.get((clip.width, clip.height), ()):
        yield (
            "the demo model was trained on 17 frames of 64x64, 80x48 or 48x80, and on 9 or 33 frames of 64x64: "
            f"{clip.frames} of {clip.width}x{clip.height} may give noise"
        )
