"""Every axis and degree that strategies declare shows wherever axes show: one test over the table."""

from __future__ import annotations

import pickle
import re
from dataclasses import fields

import pytest

from hybridgen.cli import draw
from hybridgen.errors import RequestError
from hybridgen.interop import trtllm, xdit
from hybridgen.models import catalogue
from hybridgen.plan.axes import Degree, Value
from hybridgen.plan.plan import Clip, Plan
from hybridgen.planner.choose.ask import Ask
from hybridgen.planner.choose.report import with_parallel
from hybridgen.planner.choose.search import search
from hybridgen.planner.hardware.lookup import find
from hybridgen.planner.price.memory import peak
from hybridgen.recipe.fields import Parallel, Recipe, options
from hybridgen.recipe.resolve import degrees_of
from hybridgen.strategies import registry
from hybridgen.strategies.registry import Degrees
from tests.support import strategies

WAN22 = catalogue.find("wan2.2")
CLIP = Clip(1280, 720, 81, 40, 4.0)
EVERY = pytest.mark.parametrize("degree", registry.DEGREES, ids=lambda degree: degree.name)


def twice(degree: Degree) -> Value:
    """Two ranks along each axis."""
    return 2 if len(degree.axes) == 1 else (2, 2)


def plan_of(degree: Degree) -> Plan:
    """A legal plan that uses a degree; what is laid over the mesh lies over two ranks of ulysses."""
    beside = {"ulysses": 2} if degree.is_overlaid else {}
    plan = Plan(WAN22, CLIP, Degrees(**beside, **{degree.name: twice(degree)}))
    assert not registry.violations(plan)
    return plan


def drawn(plan: Plan) -> list[int]:
    """The ranks in the drawing of the mesh, in its order; labels of axes are left out."""
    text = " ".join(draw.mesh(plan)[1:])
    label = rf"({'|'.join(plan.degrees.axes)}) \d+(: (with prompt|without))?"
    cells = re.findall(r"(\d+)(?:- *(\d+))?", re.sub(label, "", text))
    return [rank for first, last in cells for rank in range(int(first), int(last or first) + 1)]


@EVERY
def test_it_multiplies_the_world_or_is_laid_over_it(degree: Degree) -> None:
    plan = plan_of(degree)
    assert plan.world_size == (2 if len(degree.axes) == 1 else 4)
    for axis in degree.axes:
        group = plan.layout.overlay(axis.name) if axis.place is None else plan.layout.group(0, [axis.name])
        assert len(group) == plan.degrees.size(axis.name) == 2
    assert (degree.name in {item.name for item in fields(Degrees)}) and plan.degrees.value(degree) == twice(degree)  # type: ignore[arg-type]


@EVERY
def test_it_has_a_name_a_place_and_words(degree: Degree) -> None:
    plan, text = plan_of(degree), degree.text(twice(degree))
    assert f"{degree.name}{text}" in str(plan.degrees).split() and f"--{degree.name} {text}" in plan.degrees.flags()
    assert all(axis.why and axis.exchanges for axis in degree.axes) and degree.help
    placed = [axis.name for axis in degree.axes if axis.place is not None]
    assert [name for name in registry.AXES if name in placed] == placed


@EVERY
def test_it_is_drawn_whole_with_what_it_exchanges(degree: Degree) -> None:
    plan = plan_of(degree)
    assert sorted(drawn(plan)) == list(range(plan.world_size))
    rows = "\n".join(draw.axes(plan))
    for axis in degree.axes:
        assert re.search(rf"^{axis.name} .*{re.escape(axis.exchanges)}", rows, re.M)
        assert any(message.axis == axis.name for message in registry.traffic(plan, 0))


@EVERY
def test_recipe_and_json_keep_it(degree: Degree) -> None:
    plan = plan_of(degree)
    assert degrees_of(with_parallel(Parallel(), plan)) == plan.degrees
    assert set(plan.degrees.as_data()) == {item.name for item in fields(Degrees)}  # type: ignore[arg-type]
    kept = plan.degrees.as_data()[degree.name]
    assert kept == (list(twice(degree)) if len(degree.axes) == 2 else twice(degree))  # type: ignore[arg-type]


@EVERY
def test_the_first_rank_holds_and_sends_most_where_ranks_are_declared_alike(degree: Degree) -> None:
    plan = plan_of(degree)
    for axis in (axis for axis in degree.axes if axis.alike):
        ranks = plan.layout.overlay(axis.name) if axis.place is None else plan.layout.group(0, [axis.name])
        assert max(peak(plan, rank) for rank in ranks) == peak(plan, 0)
        for phase in ("setup", "condition", "denoise"):
            sent = [{m: m.total for m in registry.traffic(plan, rank) if m.phase == phase} for rank in ranks]
            assert all(sum(one.values()) <= sum(sent[0].values()) for one in sent)


@EVERY
def test_what_is_laid_over_the_mesh_sends_nothing_that_is_not_priced(degree: Degree) -> None:
    """The planner prices such messages apart, so they are none of a denoising step."""
    plan, strategy = plan_of(degree), registry.BY_DEGREE[degree.name]
    sent = [message for rank in range(plan.world_size) for message in strategy.traffic(plan, rank)]
    assert sent and (not strategy.is_overlaid or all(message.phase != "denoise" for message in sent))


@EVERY
def test_it_competes_where_it_is_given(degree: Degree) -> None:
    template = Plan(WAN22, CLIP, Degrees())
    found = search(Ask(template, 8, find("gb200-nvl72"), {degree.name: twice(degree)}))
    assert found.candidates and all(c.plan.degrees.value(degree) == twice(degree) for c in found.candidates)
    assert any(axis.name in c.bytes_per_step or axis.place is None for c in found.candidates for axis in degree.axes)


@EVERY
@pytest.mark.parametrize(("target", "export"), [("xdit", xdit.export), ("trtllm", trtllm.export)])
def test_engines_name_it_or_refuse_it(degree: Degree, target: str, export: object) -> None:
    assert callable(export)
    plan, recipe = plan_of(degree), Recipe()
    if target in degree.engines:
        assert degree.engines[target] in export(recipe, plan).text
        return
    with pytest.raises(RequestError, match=re.escape(f"no {degree.name} (--{degree.name}")) as refused:
        export(recipe, plan)
    assert refused.value.rule == "engine-lacks"


def test_names_are_given_once() -> None:
    names = [setting.name for setting in registry.SETTINGS]
    assert len(set(names)) == len(names) and len({setting.listed for setting in registry.SETTINGS}) == len(names)
    flags = [name for _, name, _ in options()]
    assert len(set(flags)) == len(flags)  # of all sections of a recipe
    places = [axis.place for axis in Degrees.axes.values() if axis.place is not None]
    assert len(set(places)) == len(places)


def test_the_page_of_strategies_is_what_they_declare() -> None:
    assert strategies.DOCUMENT.read_text(encoding="utf-8") == strategies.document()


def test_degrees_are_sent_without_what_follows_from_them() -> None:
    degrees = Degrees(cfg=2, pipefusion=2, attn2d=(2, 1))
    assert str(degrees) and degrees.sizes  # kept once they are asked for
    sent = pickle.loads(pickle.dumps(degrees))
    assert sent == degrees and str(sent) == str(degrees) and hash(sent) == hash(degrees)
