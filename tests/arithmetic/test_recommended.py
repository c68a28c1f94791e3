"""Which plans are recommended, and how sure the planner is."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ties
from benchmarks.published import rows
from hybridgen.cli.main import call
from hybridgen.models import catalogue
from hybridgen.plan.plan import Clip, Plan
from hybridgen.planner.choose import anchor, recommend
from hybridgen.planner.choose.ask import Ask
from hybridgen.planner.choose.ranking import GAINS, SAVING, TIE
from hybridgen.planner.choose.reasons import decisive
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
    ties, rest = ([c for c in found.candidates if c.tie == tie] for tie in (True, False))
    assert [*ties, *rest] == list(found.candidates) and len(ties) != 1
    assert rest == sorted(rest, key=lambda c: c.cost.clip)
    assert all(c.cost.clip <= found.fastest.limit for c in ties or [found.best])
    assert all(c.cost.clip > found.fastest.limit or c is found.best for c in rest)
    assert all(c.plan.exact and c.plan.world_size == gpus and c.peak <= found.ask.limit for c in found.candidates)


def test_a_tie_is_what_publications_of_one_set_up_differ_by() -> None:
    found = ties.spreads(rows())
    assert len(found) >= 2 and round(max(spread for _, _, spread in found), 2) == TIE.value


SEVERAL = [
    ask(8),
    ask(8, "h200"),
    ask(40, "h100"),
    ask(64, "h200"),
    ask(128, "a100"),
    ask(16, "gb200-nvl72", approximate=True),
    ask(4, "l40s", memory=42e9),
    Ask(Plan(catalogue.find("wan2.1-1.3b"), CLIP_480P, Degrees()), 8, find("h100-pcie")),
    Ask(Plan(catalogue.find("cosmos3"), Clip(1280, 720, 189, 35, 6.0), Degrees()), 24, find("h100")),
]


@pytest.mark.parametrize(
    "question", SEVERAL, ids=lambda one: f"{one.template.facts.name} {one.gpus} {one.hardware.name}"
)
def test_a_tie_is_decided_by_what_a_user_gains(question: Ask) -> None:
    """The recommended plan is at most a tie slower, and where a faster one stands below it, it saves something."""
    found = recommend.recommend(question)
    assert found.best.cost.clip <= found.fastest.cost.clip + TIE.value * found.fastest.cost.denoise
    for other in (c for c in found.candidates[1:] if c.tie):
        name = decisive(found.best, other)
        assert name or found.best.cost.clip <= other.cost.clip
        assert not name or GAINS[name](found.best) < GAINS[name](other)
        earlier = list(GAINS.values())[: list(GAINS).index(name)] if name else []
        assert all(value(found.best) <= (1 + SAVING.value) * value(other) for value in earlier)


@pytest.mark.parametrize(
    "question", SEVERAL, ids=lambda one: f"{one.template.facts.name} {one.gpus} {one.hardware.name}"
)
def test_no_reason_contradicts_the_table(question: Ask) -> None:
    found = recommend.recommend(question)
    for one in found.candidates[1:]:
        slower = re.match(r"([\d.]+) s slower", one.why[0])
        assert (slower is None) == (one.tie and decisive(found.best, one) != "")
        if slower:
            assert float(slower[1]) == pytest.approx(one.cost.clip - found.best.cost.clip, rel=0.06)


@pytest.mark.parametrize(("gpus", "hardware"), [(40, "h100"), (128, "a100"), (80, "a100"), (24, "h100-pcie")])
def test_wide_ulysses_over_nodes_is_no_preference(gpus: int, hardware: str) -> None:
    """A plan whose ulysses spans nodes is recommended only as the fastest, or where it sends less between nodes."""
    found = recommend.recommend(ask(gpus, hardware))
    for narrower in (c for c in found.candidates if c.plan.degrees.ulysses < found.best.plan.degrees.ulysses):
        name = decisive(found.best, narrower) if narrower.tie else ""
        assert found.best.cost.clip <= narrower.cost.clip or (narrower.tie and name in ("sent", "memory", "room"))


def test_a_plan_that_leaves_no_memory_comes_after_its_ties() -> None:
    easy = recommend.recommend(ask(8, "h20"))
    tied = [c for c in easy.candidates if c.tie]
    least = min(tied, key=lambda c: c.peak)
    assert any(c.peak > least.peak for c in tied) and not any(c.tight for c in tied)
    limited = replace(easy.ask, memory=least.peak / 0.919)  # all but the smallest are above 92%
    found = recommend.recommend(limited)
    assert found.best.peak == least.peak and not found.best.tight
    assert all(c.tight for c in found.candidates if c.tie and c.peak > least.peak)


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
    measured = anchor.read(500, template, find("h200"), {})
    machine = anchor.anchored(find("h200"), measured)
    before, found = (recommend.recommend(Ask(template, 8, m)) for m in (find("h200"), machine))
    assert found.one_gpu == pytest.approx(500) and before.one_gpu > 700
    assert measured.doubts("H200") == []
    (low, high), (wide_low, wide_high) = found.best.cost.range, before.best.cost.range
    assert high / low < wide_high / wide_low


def test_an_anchor_far_from_the_prediction_is_doubted(plan: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for seconds, far in ((5.7, True), (130, False), (1000, False), (1200, True)):
        assert call(["plan", "--gpus", "8", "--anchor", str(seconds), "-q"]) == 0
        said = capsys.readouterr().err
        assert said.startswith(f"warning: --anchor {seconds:g} is far from the") == far
        assert said.count("\n") == far


def test_the_range_asks_for_an_anchor_until_it_is_given(plan: Any) -> None:
    for flags, share, asks in (("", "27%", True), ("--anchor 2000", "22%", False)):
        (line,) = (one for one in plan(f"--gpus 8 --hardware rtx4090 {flags}").splitlines() if one.startswith("range"))
        assert f"plus or minus {share}" in line and ("Give --anchor" in line) == asks
