"""Several kinds of cards in one run: the slowest rate, the smallest memory, and that it is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridgen.errors import RequestError
from hybridgen.plan.plan import Plan
from hybridgen.planner.choose.ask import Ask
from hybridgen.planner.choose.recommend import recommend
from hybridgen.planner.hardware.hosts import borders, hosts_of
from hybridgen.planner.hardware.known import MACHINES
from hybridgen.planner.hardware.lookup import find
from hybridgen.strategies.registry import Degrees
from tests.support.published import PUBLISHED_CLIP, WAN22

PAIRS = [("h100", "a100"), ("a100", "h100"), ("h200", "h20"), ("l40s", "h100-pcie"), ("rtx4090", "rtx3090")]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_no_plan_is_faster_or_has_more_room_than_on_either_kind(one: str, other: str) -> None:
    """Split by split, on 16 GPUs of two hosts."""
    template = Plan(WAN22, PUBLISHED_CLIP, Degrees())
    both = find(f"{one}:8,{other}:8")
    found = {box.name: recommend(Ask(template, 16, box, memory=200e9)) for box in (both, find(one), find(other))}
    clips = {name: {c.config: c.cost.clip for c in every.candidates} for name, every in found.items()}
    shared = clips[both.name].keys() & clips[one].keys() & clips[other].keys()
    assert len(shared) > 20
    for config in shared:
        slower = max(clips[one][config], clips[other][config])
        assert slower * (1 - 1e-9) <= clips[both.name][config], config
    assert both.memory.value == min(find(one).memory.value, find(other).memory.value)
    assert both.reserve.value == max(find(one).reserve.value, find(other).reserve.value)


def test_every_constant_is_the_worst_one(tmp_path: Path) -> None:
    """A machine that is worse in some figures and better in others."""
    file = tmp_path / "box.yaml"
    worse = "step: 1s, launch: 1ms, pixels: 1s, writing: 1000, decoder: 1e9, float32: 0.01"
    better = "reserve: 1MB, memory: 900GB, matmul: 1e18, fixed: 1us, slowdown: 0.001"
    link = "inside: {latency: 1s, hop: 1ns, bandwidth: 1e6, gather: 9}"
    file.write_text("base: h100\n" + "\n".join(f"{worse}, {better}".split(", ")) + f"\n{link}\n")
    usual, other = (dict(find(name).constants()) for name in ("h100", str(file)))
    for name, constant in find(f"h100:8,{file}:8").constants():
        words = "step launch pixels writing decoder float32 inside.latency inside.bandwidth"
        assert constant == (other if name in words.split() else usual)[name], name


def test_a_kind_mixed_with_itself_is_that_kind() -> None:
    usual = dict(find("h100").constants())
    assert dict(find("h100:8,h100:8").constants()) == usual and not find("h100:8,h100:8").cards
    assert {**dict(find("h100:8").constants())} == usual and find("h100:12").hosts == (8, 4)


def test_each_kind_has_hosts_of_its_own() -> None:
    box = find("h100:12,a100:8")
    assert box.hosts == (8, 4, 8) and borders(20, box).sizes(20) == [8, 4, 8]
    assert hosts_of(10, box).sizes == (8, 2)
    racks = find("gb200-nvl72:72,gb300-nvl72:8")
    assert borders(80, racks).sizes(80) == [72, 8] and racks.per_node == 4
    assert borders(16, find("gb200-nvl72:8,b200:8")).sizes(16) == [4, 4, 8]
    assert find("h100-nvl:8,h200-nvl:8").near is None and find("h100-nvl:8,h100-nvl:8").near == find("h100-nvl").near


def test_it_is_said(plan: Any) -> None:
    out = plan("--hardware h100:8,a100:8")
    words = " ".join(out.split())
    assert "8 x H100 SXM and 8 x A100 SXM 80 GB: every rate is that of the slowest, and every memory 80 GB" in words
    assert "in 2 nodes of 8" in out and "--nproc-per-node 8" in out
    data = json.loads(plan("--hardware h100:8,a100:8 --json"))
    assert data["request"]["cards"] == ["8 x H100 SXM", "8 x A100 SXM 80 GB"] and data["world_size"] == 16
    assert json.loads(plan("--hardware a100 --gpus 16 --json"))["request"]["cards"] == []
    assert "nodes of" not in plan("--hardware rtx4090:2,rtx3090:2 --nodes 1 --model wan2.1-1.3b").split("plan ")[0]


@pytest.mark.parametrize(
    ("name", "says", "near"),
    [
        ("h100:8,a100", "a100 is not NAME:GPUS", "h100:8,a100:8"),
        ("h100:8,", "nothing is not NAME:GPUS", "h100:8,a100:8"),
        ("h100:0,a100:8", "h100:0 is not NAME:GPUS", "h100:8,a100:8"),
        ("h100:-1", "h100:-1 is not NAME:GPUS", "h100:8,a100:8"),
        ("h100:8,l40z:8", ": l40z is not a known machine or a YAML file", "(known: gb200-nvl72"),
        ("h100:2,cpu:2", "do not share a run", "h100:4"),
        ("mi300x:8,h100:8", "do not share a run", "mi300x:16"),
        ("h100:8,nowhere.yaml:8", "No such file", ""),
    ],
)
def test_what_is_no_machine_is_refused_with_one(name: str, says: str, near: str) -> None:
    with pytest.raises(RequestError) as refused:
        find(name)
    assert says in refused.value.message and near in refused.value.message


def test_all_cards_that_are_named_are_used(plan: Any, tmp_path: Path) -> None:
    assert "nearest: 16" in plan("--hardware h100:8,a100:8 --gpus 8", code=2)
    assert "nearest: 16" in plan("--hardware h100:8,a100:8 --gpus 24", code=2)
    assert plan("--hardware h100:8,a100:8 --gpus 16 -q") == plan("--hardware h100:8,a100:8 -q")
    file = tmp_path / "box.yaml"
    file.write_text("base: h100\nhosts: [8, 4]\n")
    assert "nearest: 12" in plan(f"--hardware {file} --gpus 24", code=2) and plan(f"--hardware {file} --gpus 8 -q")
    file.write_text("base: h100\ncards: [x]\n")
    assert "cards: is not known" in plan(f"--hardware {file} --gpus 8", code=2)


def test_bridged_cards_are_known() -> None:
    sizes = {name: box.near.size for name, box in MACHINES.items() if box.near is not None}
    assert sizes == {"h100-nvl": 2, "h200-nvl": 4}
    assert all(box.near.bandwidth.value > box.inside.bandwidth.value for box in MACHINES.values() if box.near)
