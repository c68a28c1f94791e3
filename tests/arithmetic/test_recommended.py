"""Which plans are recommended, and how sure the planner is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hybridgen.cli.main import call
from hybridgen.models import catalogue
from hybridgen.plan.plan import Clip, Plan
from hybridgen.planner.choose import recommend
from hybridgen.planner.choose.ask import Ask
from hybridgen.planner.choose.ranking import oblong
from hybridgen.planner.hardware.constants import Constant
from hybridgen.planner.hardware.known import MACHINES
from hybridgen.planner.hardware.lookup import find
from hybridgen.strategies.registry import Degrees

ROOT = Path(__file__).parents[2]
WAN22 = catalogue.find("wan2.2")
PUBLISHED_CLIP = Clip(1280, 720, 77, 40, 4.0)
CLIP_480P = Clip(832, 480, 81, 50, 5.0)


def ask(gpus: int, hardware: str = "gb200-nvl72", **changes: Any) -> Ask:
    return Ask(Plan(WAN22, PUBLISHED_CLIP, Degrees()), gpus, find(hardware), **changes)


@pytest.mark.parametrize(
    ("gpus", "config"),
    [(72, "cfg2 ulysses4 attn2d3x3 vae8"), (16, "cfg2 ulysses8 vae8"), (8, "cfg2 ulysses4 vae8"), (1, "one rank")],
)
@pytest.mark.parametrize("frames", [77, 81])
def test_the_published_splits_are_recommended(gpus: int, config: str, frames: int) -> None:
    template = Plan(WAN22, Clip(1280, 720, frames, 40, 4.0), Degrees())
    assert recommend.recommend(Ask(template, gpus, find("gb200-nvl72"))).best.config == config


def test_ring_is_never_above_attention2d_at_cp_9() -> None:
    order = [c.plan.degrees for c in recommend.recommend(ask(72)).candidates]
    rings = [d for d in order if d.ring == 9]
    assert len(rings) > 3
    for ring in rings:
        twin = ring.changed(ring=1, attn2d=(3, 3))
        assert order.index(twin) < order.index(ring)


@pytest.mark.parametrize("hardware", sorted(MACHINES))
@pytest.mark.parametrize("gpus", [2, 12, 72])
def test_every_machine_gets_ranked_plans(hardware: str, gpus: int) -> None:
    template = Plan(catalogue.find("wan2.1-1.3b"), CLIP_480P, Degrees())
    found = recommend.recommend(Ask(template, gpus, find(hardware)))
    first, *rest = found.candidates
    assert rest == sorted(rest, key=lambda c: c.cost.clip)
    assert first.cost.clip <= rest[0].cost.clip or (first.tie and rest[0].tie)
    assert all(c.plan.exact and c.plan.world_size == gpus and c.peak <= found.ask.limit for c in found.candidates)


def test_ties_prefer_cfg_then_ulysses_then_a_square() -> None:
    for gpus, hardware in ((16, "gb200-nvl72"), (8, "h200"), (24, "gb200-nvl72"), (64, "h200")):
        found = recommend.recommend(ask(gpus, hardware))
        tied = [c.plan.degrees for c in found.candidates if c.tie]
        assert len(tied) > 1 and tied[0] == found.best.plan.degrees
        widest = max(d.ulysses for d in tied if d.cfg == 2)
        assert (tied[0].cfg, tied[0].ulysses) == (2, widest)
        alike = [d for d in tied if (d.cfg, d.ulysses) == (2, widest)]
        assert oblong(tied[0]) == min(map(oblong, alike))


def test_approximate_plans_never_win_unasked() -> None:
    exact = recommend.recommend(ask(8, "l40s"))
    assert all(c.plan.degrees.pipefusion == 1 for c in exact.candidates)
    asked = recommend.recommend(ask(8, "l40s", approximate=True))
    assert any(not c.plan.exact for c in asked.candidates)
    assert asked.best.cost.clip < exact.best.cost.clip  # on PCIe it sends least


def test_fewer_gpus_where_more_are_no_faster() -> None:
    machine = find("rtx4090")
    slow = replace(machine.inside, bandwidth=Constant(1e8, "made up"), hop=Constant(0.05, "made up"))
    many = Ask(Plan(catalogue.find("wan2.1-1.3b"), CLIP_480P, Degrees()), 8, replace(machine, inside=slow))
    found, everything = recommend.with_fewer(many), recommend.recommend(many)
    assert found.ask.gpus == 2 and found.best.config.startswith("cfg2")
    assert found.best.cost.clip < everything.best.cost.clip
    assert recommend.with_fewer(ask(8)).ask.gpus == 8


def test_fewer_says_what_the_rest_could_do(plan: Any) -> None:
    out = plan("--gpus 5 --hardware rtx4090 --model demo --fewer")
    assert (
        "5 GPUs would be no faster than 2" in out and "the other 3 make 1 more clip" in out and "1 GPU is free" in out
    )
    assert "hybridgen plan --gpus 5 --model demo --hardware rtx4090 --fewer" in out


def test_an_anchor_sets_one_gpu_s_time_and_narrows_the_range() -> None:
    template = Plan(WAN22, PUBLISHED_CLIP, Degrees())
    machine = recommend.anchored(find("h200"), template, 500)
    before, found = (recommend.recommend(Ask(template, 8, m)) for m in (find("h200"), machine))
    assert found.one_gpu == pytest.approx(500) and before.one_gpu > 700
    assert recommend.doubts(find("h200"), template, 500) == []
    (low, high), (wide_low, wide_high) = found.best.cost.range, before.best.cost.range
    assert high / low < wide_high / wide_low


def test_an_anchor_far_from_the_prediction_is_doubted(plan: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for seconds, far in ((5.7, True), (130, False), (1000, False), (1200, True)):
        assert call(["plan", "--gpus", "8", "--anchor", str(seconds), "-q"]) == 0
        said = capsys.readouterr().err
        assert said.startswith(f"warning: --anchor {seconds:g} s is far from the") == far
        assert said.count("\n") == far


def test_the_range_asks_for_an_anchor_until_it_is_given(plan: Any) -> None:
    for flags, share, asks in (("", "20%", True), ("--anchor 2000", "25%", False)):
        (line,) = (one for one in plan(f"--gpus 8 --hardware rtx4090 {flags}").splitlines() if one.startswith("range"))
        assert f"plus or minus {share}" in line and ("Give --anchor" in line) == asks
