"""hybridgen from Python: what it offers, that it is light, and that it plans and refuses as the command does."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

import hybridgen
from hybridgen.planner.choose.ask import Recommendation


def test_public_names_are_shown_and_documented() -> None:
    public = ["Recipe", "RequestError", "RunFailed", "generate", "plan"]
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
