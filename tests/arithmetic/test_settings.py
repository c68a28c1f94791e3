"""What --set and flags may hold, and what stands above what: flag, --set, file, the model's default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hybridgen.errors import RequestError
from hybridgen.recipe.compose import compose
from hybridgen.recipe.fields import Measured, Recipe

SCALARS = "model: demo\nrequest: {steps: 9, frames: 5, prompt: old}\nparallel: {usp: 2x1, pipefusion: 2}\n"


@pytest.mark.parametrize(
    ("setting", "way", "value"),
    [
        ("request.steps=20", "request.steps", 20),
        ("request.guidance=3", "request.guidance", 3.0),
        ("request.steps=null", "request.steps", None),
        ("request.prompt=a = b, [c ${d}", "request.prompt", "a = b, [c ${d}"),
        ("request.prompt=7", "request.prompt", "7"),
        ("request.prompt=null", "request.prompt", None),
        ("parallel.usp=null", "parallel.usp", None),
        ("parallel.order=[cfg, ulysses]", "parallel.order", ["cfg", "ulysses"]),
        ("parallel.order=cfg,ulysses", "parallel.order", ["cfg", "ulysses"]),
        ("parallel.pipefusion=2:1,3", "parallel.pipefusion", "2:1,3"),
        ("hardware.gpus=8", "hardware.gpus", 8),
        ("measured=[{status: planned, n: 2}]", "measured", [Measured("planned", n=2)]),
        ("model=wan2.2", "model", "wan2.2"),
    ],
)
def test_a_setting_changes_one_key(setting: str, way: str, value: Any, tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(SCALARS)
    before, after = compose(file, [], {}), compose(file, [setting], {})
    *sections, name = way.split(".")
    for recipe in (before, after):
        held: Any = recipe
        for section in sections:
            held = getattr(held, section)
        if recipe is after:
            assert getattr(held, name) == value and type(getattr(held, name)) is type(value)
        setattr(held, name, None)
    assert before == after


@pytest.mark.parametrize(
    ("setting", "rule", "says"),
    [
        ("request.stps=3", "recipe-key", "--set request.stps=3: is not known; nearest: request.steps"),
        ("hardware=h100", "recipe-value", "--set hardware=h100: must hold keys of its own"),
        ("request.steps='3'", "recipe-value", "--set request.steps='3': must be a whole number"),
        ("request.steps=true", "recipe-value", ": must be a whole number"),
        ("request.steps=1.5", "recipe-value", ": must be a whole number"),
        ("request={steps: x}", "recipe-value", "--set request={steps: x}: request.steps must be a whole number"),
        ("measured=[{n: x}]", "recipe-value", ": measured.0.n must be a whole number"),
        ("request.seed=1" + 30 * "0", "recipe-value", "--seed of 31 digits: is too large"),
        ("=3", "recipe-key", "--set =3: is not known"),
    ],
)
def test_a_setting_that_does_not_fit(setting: str, rule: str, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        compose(None, [setting], {})
    assert caught.value.rule == rule and says in caught.value.message


def test_flags_of_python_are_held_to_their_types() -> None:
    """Whole numbers are numbers, paths are text; all else must have the type that the command line gives it."""
    given = {"steps": 3, "guidance": 3, "image": Path("a.png"), "order": "cfg,tp", "pipefusion": 2, "prompt": None}
    recipe = compose(None, [], given)
    assert (recipe.request.steps, recipe.request.guidance, recipe.request.image) == (3, 3.0, "a.png")
    assert recipe.parallel.order == ["cfg", "tp"] and recipe.parallel.pipefusion == 2
    assert compose(None, [], {}) == Recipe()
    for name, value in (("steps", "3"), ("steps", True), ("steps", 1.5), ("prompt", 3), ("guidance", "high")):
        with pytest.raises(RequestError, match=f"^--{name} .*: must be "):
            compose(None, [], {name: value})
    with pytest.raises(RequestError, match="^--steps of 5001 digits: is too large; nearest: 18446744073709551616"):
        compose(None, [], {"steps": 10**5000})


def test_a_flag_stands_above_a_setting_and_that_above_the_file(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(SCALARS)
    settings = ["request.steps=4", "request.frames=9", "request.frames=13"]
    request = compose(file, settings, {"steps": 2}).request
    assert (request.steps, request.frames, request.prompt) == (2, 13, "old")
