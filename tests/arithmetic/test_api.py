"""hybridgen from Python: what it offers, that it is light, and that it plans and refuses as the command does."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

import hybridgen
from hybridgen.planner.choose.ask import Recommendation


def test_public_names_are_shown_and_documented() -> None:
    public = ["Engine", "Recipe", "Recommendation", "Report", "RequestError", "RunFailed", "generate", "plan"]
    assert dir(hybridgen) == sorted([*public, "__version__"])
    assert all(inspect.getdoc(getattr(hybridgen, name)) for name in public)
    for function in (hybridgen.generate, hybridgen.plan):
        about = inspect.getdoc(function) or ""
        assert [name for name in inspect.signature(function).parameters if f"{name}:" not in about] == []


def test_importing_it_loads_nothing() -> None:
    program = "import sys, hybridgen; print([m for m in sys.modules if m.startswith(('hybridgen.', 'typer', 'yaml'))])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_plan_is_the_function_although_a_package_has_its_name() -> None:
    assert import_module("hybridgen.plan.degrees").__name__ == "hybridgen.plan.degrees"
    assert inspect.isfunction(hybridgen.plan)


def test_a_name_that_is_not_offered_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'generte'"):
        hybridgen.generte  # type: ignore[attr-defined]  # noqa: B018


def test_plan_recommends_what_the_command_does(plan: Any) -> None:
    found = hybridgen.plan(8, model="demo", hardware="h100", cfg=2, size=(64, 64))
    assert isinstance(found, Recommendation)
    shown = json.loads(plan("--gpus 8 --model demo --hardware h100 --cfg 2 --size 64x64 --json"))
    assert [one.config for one in found.candidates] == [one["config"] for one in shown["candidates"]]


def test_what_cannot_be_is_refused_as_by_the_command() -> None:
    with pytest.raises(hybridgen.RequestError) as refusal:
        hybridgen.generate("x", model="demo", attn2d=(2, 2), ring=2)
    assert refusal.value.rule == "ring-attn2d"
    with pytest.raises(hybridgen.RequestError) as refusal:
        hybridgen.plan(7, model="demo", ulysses=4)
    assert refusal.value.rule == "no-plan"


@pytest.mark.parametrize("function", [hybridgen.plan, hybridgen.generate])
def test_an_unknown_keyword_is_named_with_the_nearest(function: Any) -> None:
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) has no option setps; did you mean steps"):
        function(8, setps=3)


def test_types_know_what_there_is() -> None:
    """These lines are read by mypy as well."""
    recipe = hybridgen.Recipe()
    recipe.parallel.cfg = 2
    version: str = hybridgen.__version__
    assert recipe.parallel.cfg == 2 and version


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"max_time": 0}, "--max-time 0: is not an amount above 0"),
        ({"max_time": "20m"}, None),
        ({"max_time": "soon"}, "--max-time soon: is not"),
        ({"max_time": float("nan")}, "--max-time nan: is not"),
        ({"memory": -1}, "--memory -1: is not an amount above 0"),
        ({"memory": "180GB"}, None),
        ({"memory": 180e9}, None),
        ({"gpus": 0}, "--gpus 0: must be 1 to 65536"),
        ({"heads": 0}, "--heads 0: does not"),
        ({"anchor": 0}, "--anchor 0: must be"),
        ({"settings": ["request.steps"]}, "--set request.steps: is not KEY=VALUE"),
    ],
)
def test_limits_of_plan_are_those_of_the_command(given: dict[str, Any], says: str | None) -> None:
    given = {"gpus": 8, "hardware": "h200", **given}
    if says is None:
        assert hybridgen.plan(**given).candidates
        return
    with pytest.raises(hybridgen.RequestError, match=re.escape(says)):
        hybridgen.plan(**given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"gpus": "8"}, "plan() takes a whole number as gpus, not '8'"),
        ({"gpus": True}, "plan() takes a whole number as gpus, not True"),
        ({"gpus": 8, "memory": [1]}, "plan() takes a number, or text with a unit, as memory, not [1]"),
        ({"gpus": 8, "fewer": "yes"}, "plan() takes True or False as fewer, not 'yes'"),
        ({"gpus": 8, "settings": "request.steps=20"}, "plan() takes a list of texts as settings"),
        ({"gpus": 8, "recipe": 3}, "plan() takes a path as recipe, not 3"),
    ],
)
def test_values_of_another_type_are_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=re.escape(says)):
        hybridgen.plan(**given)


def test_generate_takes_what_the_command_takes() -> None:
    for given in ({"gpus": "8"}, {"settings": "request.steps=20"}, {"overwrite": 1}, {"out": 3}):
        name = next(iter(given))
        with pytest.raises(TypeError, match=rf"generate\(\) takes .* as {name}, not "):
            hybridgen.generate("x", model="demo", **given)
    with pytest.raises(hybridgen.RequestError, match="--engine foo: is not one of native, xfuser"):
        hybridgen.generate("x", model="demo", engine="foo")  # type: ignore[arg-type]
