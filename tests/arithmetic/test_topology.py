"""Which links a group's messages cross, and machines as data."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hybridgen.errors import RequestError
from hybridgen.plan.layout import Layout
from hybridgen.plan.plan import Plan
from hybridgen.planner.choose.orders import best_order, vae_span
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.hardware.hosts import Borders
from hybridgen.planner.hardware.known import MACHINES
from hybridgen.planner.hardware.lookup import find
from hybridgen.planner.hardware.topology import Span, span, span_of_axis
from hybridgen.planner.price import cost, memory
from hybridgen.recipe.legal import legal_plans
from hybridgen.strategies.registry import AXES, Degrees
from tests.support.published import PUBLISHED_CLIP, RACK, WAN22, wan


@pytest.mark.parametrize("domain", [4, 6, 8, 72])
@pytest.mark.parametrize(
    "degrees",
    [Degrees(cfg=2, ulysses=4, attn2d=(3, 3), vae=8), Degrees(cfg=2, tp=2, ring=3, ulysses=2, vae=5)],
    ids=str,
)
def test_spans_are_those_of_the_groups(degrees: Degrees, domain: int) -> None:
    """The formula for an axis against every group of the layout, in several orders."""
    for order in (AXES, AXES[::-1], ("ulysses", "cfg", "col", "row", "tp", "ring", "pipefusion")):
        layout = Layout(degrees, order)
        for axis in (a for a in AXES if degrees.size(a) > 1):
            crossing = any(len({rank // domain for rank in group}) > 1 for group in layout.groups(axis))
            assert crossing == span(layout, axis, Borders(domain)).crosses, (order, axis)
        assert vae_span(degrees.vae, layout.stride("cfg"), 2, Borders(domain)) == span(layout, "vae", Borders(domain))


def test_a_domain_that_holds_all_has_one_order() -> None:
    plan = wan(cfg=2, ulysses=4, attn2d=(3, 3), vae=8)
    assert best_order(plan, RACK).order == AXES
    assert span_of_axis(4, 3, 72, Borders(72)) == Span(3, 3)


@pytest.mark.parametrize("start", [AXES, AXES[::-1]], ids=["usual", "reversed"])
def test_cfg_crosses_nodes_and_ulysses_does_not(start: tuple[str, ...]) -> None:
    plan = best_order(replace(wan(cfg=2, ulysses=8, vae=8), order=start), find("h200"))
    assert not span(plan.layout, "ulysses", Borders(8)).crosses and span(plan.layout, "cfg", Borders(8)).crosses


@pytest.mark.parametrize(
    ("hardware", "degrees"),
    [
        ("h100", Degrees(cfg=2, tp=2, ulysses=2, ring=3, vae=8)),
        ("gb200-nvl72", Degrees(cfg=2, ulysses=8, attn2d=(36, 8), vae=8)),  # two axes of one size
        ("h200", Degrees(pipefusion=2, ulysses=4, attn2d=(4, 3), vae=16)),
    ],
    ids=str,
)
def test_the_chosen_order_is_the_fastest_of_all(hardware: str, degrees: Degrees) -> None:
    from itertools import permutations

    machine, plan = find(hardware), Plan(WAN22, PUBLISHED_CLIP, degrees)
    axes = [axis for axis in AXES if degrees.size(axis) > 1]

    def seconds(order: tuple[str, ...]) -> float:
        found = cost.cost(replace(plan, order=order), machine)
        return found.denoise + found.decode

    rest = [axis for axis in AXES if axis not in axes]
    every = [seconds((*order, *rest)) for order in permutations(axes)]
    assert seconds(best_order(plan, machine).order) == pytest.approx(min(every), rel=1e-12)
    assert max(every) > 1.05 * min(every)


def test_orders_that_are_left_out_would_not_have_been_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of random requests for several domains, against a search that leaves no order out."""
    draw = random.Random(7)
    drawn = list[tuple[Plan, Hardware]]()
    while len(drawn) < 300:
        hardware = find(draw.choice(["gb200-nvl72", "h100", "h100-nvl", "h200-nvl", "rtx4090", "a100"]))
        gpus = draw.choice([6, 12, 16, 24, 48, 64, 144, 216, 288])
        template = Plan(WAN22, PUBLISHED_CLIP, Degrees())
        plans = legal_plans(template, gpus, laid=lambda degrees: {"vae": draw.choice([1, 2, 4, degrees.half])})
        drawn += [(plan, hardware) for plan in draw.sample(plans, min(len(plans), 30))]
    found = [best_order(plan, hardware).order for plan, hardware in drawn]
    monkeypatch.setattr(Borders, "hold_evenly", lambda self, ranks: False)
    assert found == [best_order(plan, hardware).order for plan, hardware in drawn]
    assert sum(order != AXES for order in found) > 50


def test_the_span_of_an_axis_is_that_of_its_worst_group() -> None:
    """Every group of the axis rank by rank, where domains are filled in order and where a group ends within one."""
    draw = random.Random(8)
    for _ in range(300):
        stride, size, blocks = draw.randint(1, 9), draw.randint(2, 12), draw.randint(1, 5)
        world, domain = stride * size * blocks, draw.choice([2, 3, 4, 6, 8, 12, 72])
        firsts = [block + offset for block in range(0, world, stride * size) for offset in range(stride)]
        groups = [Counter(rank // domain for rank in range(first, first + stride * size, stride)) for first in firsts]
        fewest = min(min(group.values()) for group in groups)
        assert span_of_axis(stride, size, world, Borders(domain)).together == fewest, (stride, size, world, domain)


def test_every_constant_has_an_origin() -> None:
    for machine in MACHINES.values():
        for name, constant in machine.constants():
            first = constant.origin.split()[0].strip(":;")
            assert first in ("measured", "fitted", "datasheet", "published", "assumed", "mean", "the"), (
                machine.name,
                name,
            )
            assert math.isfinite(constant.value) and constant.value >= 0
    assert len(MACHINES) >= 14


def test_a_file_describes_a_machine(tmp_path: Path) -> None:
    file = tmp_path / "box.yaml"
    file.write_text(
        "base: cpu\nmatmul: {value: 75e9, origin: measured here}\nattention: 50000000000\ndomain: 4\n"
        "inside: {bandwidth: {value: 2.5e9, origin: measured here}}\n"
    )
    machine = find(str(file))
    assert (machine.name, machine.matmul.value, machine.matmul.origin) == ("box", 75e9, "measured here")
    assert machine.attention.origin == "given in box.yaml" and machine.inside.bandwidth.value == 2.5e9
    assert machine.domain == 4 and machine.inside.latency == find("cpu").inside.latency


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("matmul: 1e12\n", ":1:1: base: is missing"),
        ("base: h100\nmatmull: 1\n", ":2:1: matmull: is not known; nearest: matmul"),
        ("base: h100\ninside: {bandwith: 1}\n", ":2:10: inside.bandwith: is not known; nearest: bandwidth"),
        ("base: h100\nmatmul: fast\n", "must be a number"),
        ("base: h100\nmatmul: -1\n", "1 or more"),
        ("base: h100\nmatmul: {value: 1, from: x}\n", ":2:20: matmul.from: is not known"),
        ("base: h100\ndomain: 0\n", ":2:1: domain 0: must be 1 or more"),
        ("base: h10\n", "base 'h10': is not a known machine; nearest: gb200-nvl72"),
        ("a: [\n", "not YAML"),
    ],
)
def test_a_wrong_machine_file_is_refused(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "box.yaml"
    file.write_text(text)
    with pytest.raises(RequestError, match=says.replace("?", r"\?").replace(".", r"\.")):
        find(str(file))


@pytest.mark.parametrize("stages", [(), (2, 2, 30, 2, 4), (2, 2, 2, 4, 30), (8, 8, 8, 8, 8)], ids=str)
@pytest.mark.parametrize("order", [AXES, AXES[::-1]], ids=["usual", "reversed"])
def test_the_fullest_rank_is_that_of_all_stages(stages: tuple[int, ...], order: tuple[str, ...]) -> None:
    degrees = Degrees(cfg=2, pipefusion=5, ulysses=2, vae=8)
    plan = Plan(WAN22, PUBLISHED_CLIP, degrees, order, stages=stages)
    ranks = [plan.layout.rank({"pipefusion": stage}) for stage in range(degrees.pipefusion)]
    fullest = max(ranks, key=lambda rank: memory.peak(plan, rank))
    assert memory.fullest(plan)[1] == memory.terms(plan, fullest)
    assert not stages or fullest == ranks[stages.index(max(stages))]
