"""Recipes of Wan 2.2 in the words of another engine."""

from __future__ import annotations

from typing import Any

from hybridgen.recipe.fields import Recipe, compose
from hybridgen.recipe.resolve import resolve


def recipe_of(**flags: Any) -> Recipe:
    return compose(None, [], {"model": "wan2.2", **flags})


def exported(engine: Any, **flags: Any) -> Any:
    recipe = recipe_of(**flags)
    return engine.export(recipe, resolve(recipe))
