"""Recipes of Wan 2.2 in the words of another engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hybridgen.recipe.compose import compose
from hybridgen.recipe.fields import Recipe, Request
from hybridgen.recipe.flags import flag
from hybridgen.recipe.resolve import resolve


@dataclass
class More(Request):
    """A request with a field that no export knows."""

    flow_shift: float | None = flag("Shift of the noise.", default=5.5)


def recipe_of(**flags: Any) -> Recipe:
    return compose(None, [], {"model": "wan2.2", **flags})


def exported(engine: Any, **flags: Any) -> Any:
    recipe = recipe_of(**flags)
    return engine.export(recipe, resolve(recipe))
