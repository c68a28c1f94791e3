"""Copies of a plan side by side: how many have room, what they make and cost, and which plan is chosen for it."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import hybridgen
from hybridgen.cli.main import call
from hybridgen.errors import RequestError
from hybridgen.plan.plan import Plan
from hybridgen.planner.choose import fleet, recommend
from hybridgen.planner.choose.ask import Ask
from hybridgen.planner.choose.objective import Aim, Objective
from hybridgen.planner.choose.ranking import TIE, Candidate
from hybridgen.planner.hardware.copies import copies
from hybridgen.planner.hardware.lookup import find
from hybridgen.strategies.registry import Degrees
from tests.support.published import PUBLISHED_CLIP, WAN22

THROUGHPUT, COST = Aim(Objective.throughput), Aim(Objective.cost)


def ask_for(gpus: int, aim: Aim, machine: str = "h100", /, **limits: Any) -> Ask:
    return Ask(Plan(WAN22, PUBLISHED_CLIP, Degrees()), gpus, find(machine), aim=aim, **limits)


# How many have room


@pytest.mark.parametrize(
    ("machine", "gpus", "rooms"),
    [
        ("h100", 16, {1: 16, 2: 8, 3: 4, 5: 2, 8: 2, 9: 0, 12: 1, 16: 1}),  # 9 GPUs are 3 on each of 3 hosts
        ("h100", 9, {9: 1, 8: 1, 4: 2}),
        ("h100", 12, {4: 3, 6: 2, 8: 1, 12: 1}),
        ("h100", 40, {12: 2, 16: 2, 20: 1, 24: 1}),  # hosts are not shared by two that are wider
        ("gb200-nvl72", 144, {1: 144, 6: 18, 36: 4, 72: 2, 96: 1}),  # 6 are 3 on each of 2 hosts of a domain
        ("gb200-nvl72", 72, {5: 9, 10: 6, 34: 2, 40: 1}),
    ],
)
def test_copies_have_room_where_their_ranks_stand_as_priced(machine: str, gpus: int, rooms: dict[int, int]) -> None:
    assert {width: copies(width, gpus, find(machine)) for width in rooms} == rooms


def test_copies_on_unequal_hosts_stand_as_the_first_does() -> None:
    box = find("h100").joined((8, 8, 4))
    assert {n: copies(n, 20, box) for n in (1, 4, 5, 8, 12, 16, 20)} == {1: 20, 4: 5, 5: 2, 8: 2, 12: 1, 16: 1, 20: 1}
    assert copies(12, 24, find("h100").joined((8, 4, 8, 4))) == 2
    assert copies(12, 24, find("h100").joined((8, 4, 4, 8))) == 1  # 8 and 4 once, and 4 and 8 would be another plan


# What they make and cost


def candidate(seconds: float, width: int, number: int) -> Candidate:
    """Copies of a plan of so many GPUs whose clip takes so many seconds."""
    found = recommend.recommend(replace(ask_for(width, Aim()), fixed={"ulysses": width})).best
    rest = found.cost.clip - found.cost.denoise
    items = tuple(item._replace(seconds=0.0) for item in found.cost.items[1:])
    first = found.cost.items[0]._replace(seconds=seconds - rest)
    return replace(found, cost=replace(found.cost, items=(first, *items)), copies=number)


@pytest.mark.parametrize(
    ("clips", "room", "used", "turns"),
    [(None, 8, 8, None), (1, 8, 1, 1), (3, 8, 3, 1), (8, 8, 8, 1), (9, 8, 5, 2), (10, 4, 4, 3), (100, 16, 15, 7)],
)
def test_the_last_turn_counts_whole(clips: int | None, room: int, used: int, turns: int | None) -> None:
    """10 clips on 4 copies are 3 turns, the last of 2; 9 clips on 8 copies are 2, which 5 copies do as fast."""
    aim = Aim(Objective.throughput, 2.5, clips)
    assert aim.used(room) == used
    made = aim.output(candidate(120.0, 4, used))
    assert made.per_hour == pytest.approx(30 * used) and made.gpu_seconds == pytest.approx(480)
    assert made.money == pytest.approx(480 / 3600 * 2.5)
    if clips is None:
        assert made.seconds is None and made.total is None
    else:
        assert made.seconds == pytest.approx(120 * (turns or 0)) and made.total == pytest.approx(clips * 480 / 1440)
        assert math.ceil(clips / used) == turns and math.ceil(clips / room) == turns


# Which plan is chosen


@pytest.mark.parametrize("aim", [THROUGHPUT, COST, Aim(Objective.throughput, clips=5)], ids=str)
@pytest.mark.parametrize("machine", ["h100", "l40s"])
def test_the_recommended_copies_tie_with_the_best_of_all_plans(aim: Aim, machine: str) -> None:
    """Against every plan of every width, added up here."""
    ask = ask_for(16, aim, machine, memory=95e9)
    found = recommend.with_copies(ask)

    def loss(width: int, clip: float) -> float:
        if aim is COST:
            return width * clip
        room = copies(width, 16, ask.hardware)
        return math.ceil(5 / room) * clip if aim.clips else clip / room

    every = [(n, c.cost.clip) for n in (1, 2, 4, 8, 16) for c in recommend.recommend(replace(ask, gpus=n)).candidates]
    least, best = min(loss(*one) for one in every), found.best
    share = (1 + TIE.value) ** 2  # among the plans of a width, and among widths
    assert loss(best.plan.world_size, best.cost.clip) <= least * share
    losses = {one: loss(one.plan.world_size, one.cost.clip) for one in found.candidates}
    first = min(losses, key=lambda one: losses[one])
    limit = losses[first] * first.limit / first.cost.clip
    ties = [one for one in losses if losses[one] <= limit]
    assert all(one.tie == (one in ties and len(ties) > 1) for one in losses)
    assert best is min(ties, key=lambda one: one.cost.clip)
    rest = [loss(one.plan.world_size, one.cost.clip) for one in found.candidates[1:]]
    assert rest == sorted(rest) and len(rest) >= 3
    assert found.gpus == 16 and found.ask.gpus == best.plan.world_size


def test_copies_of_one_gpu_beat_one_wide_plan() -> None:
    """72 GPUs: audited runs, of 20 steps in fp8, made 0.496 clips a second as 72 copies, and 0.174 as one."""
    wide = recommend.recommend(ask_for(72, Aim(), "gb200-nvl72")).best
    many = recommend.with_copies(ask_for(72, THROUGHPUT, "gb200-nvl72")).best
    assert many.copies >= 36 and 1.5 < THROUGHPUT.output(many).per_hour / THROUGHPUT.output(wide).per_hour < 4


def test_limits_hold_for_every_copy() -> None:
    free, short, small = (
        recommend.with_copies(ask_for(16, COST, "h100", **limits))
        for limits in ({"memory": 95e9}, {"memory": 95e9, "max_time": 300.0}, {"memory": 66e9})
    )
    assert max(one.cost.clip for one in free.candidates) > 300 >= max(one.cost.clip for one in short.candidates)
    assert max(one.peak for one in free.candidates) > 66e9 >= max(one.peak for one in small.candidates)
    assert {one.error.rule for one in small.rejected} == {"memory"} and not free.rejected
    with pytest.raises(RequestError, match="nothing is fast enough on 16 x H100 SXM"):
        recommend.with_copies(ask_for(16, COST, max_time=5.0))


def test_given_degrees_are_those_of_one_copy() -> None:
    ask = replace(ask_for(64, THROUGHPUT), fixed={"cfg": 2, "ulysses": 3, "tp": 1, "ring": 1, "attn2d": (1, 1)})
    with pytest.raises(RequestError):
        recommend.with_copies(ask)  # 3 does not divide the heads
    ask = replace(ask, fixed={**ask.fixed, "ulysses": 4})
    (one,) = recommend.with_copies(ask).candidates
    assert one.plan.world_size == 8 and one.copies == 8


def test_the_frontier_is_what_nothing_beats() -> None:
    ask = ask_for(16, THROUGHPUT, memory=95e9)
    every = recommend.fleets(ask)
    kept = fleet.frontier(every, ask.aim)
    points = {(one.cost.clip, ask.aim.output(one).per_hour) for one in every}
    beaten = {(s, r) for s, r in points if any(t <= s and q >= r and (t, q) != (s, r) for t, q in points)}
    assert {(one.cost.clip, ask.aim.output(one).per_hour) for one in kept} == points - beaten
    assert len(kept) > 2 and len(beaten) > 50


# The command


def test_columns_are_there_only_when_asked(plan: Any) -> None:
    head = {flags: _titles(plan(f"--gpus 8 --hardware h200 {flags}")) for flags in ("", "--price 2.5", "--clips 10")}
    assert not {"copies", "clips/h", "money/clip"} & head[""]
    assert {"clips/h", "GPU s/clip", "money/clip"} <= head["--price 2.5"]
    assert {"clips/h", "10 clips"} <= head["--clips 10"] and "money/clip" not in head["--clips 10"]


def _titles(page: str) -> set[str]:
    line = next(line for line in page.splitlines() if line.startswith("#"))
    return {word.strip() for word in line.split("  ") if word}


@pytest.mark.parametrize("width", ["79", "120"])
def test_the_page_of_copies_fits_and_says_how_they_are_started(
    width: str, plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    out = plan("--gpus 72 --objective throughput --price 2.5 --clips 100")
    commands = [line for line in out.splitlines() if "hybridgen run" in line or "hybridgen plan" in line]
    assert max(len(line) for line in out.splitlines() if line not in commands) <= int(width)
    words = " ".join(out.split())
    start = "torchrun --nnodes 17 --nproc-per-node 4 ... -m hybridgen run"
    assert start in words and "--prompts FILE" in words and "on 72 x GB200" in words
    run = next(line for line in commands if line.startswith("run "))
    assert "--replicas 34 --count 100" in run
    tiny = ("--model", "tiny:wan2.2-t2v", "--frames", "5", "--device", "cpu", "--dry-run")
    assert call([*shlex.split(run.removeprefix("run"))[1:], *tiny]) == 0


def test_copies_that_do_not_fill_hosts_are_started_one_by_one(plan: Any) -> None:
    words = " ".join(plan("--gpus 12 --hardware h100 --cfg 2 --ring 3 --objective throughput").split())
    assert "2 copies of 6 GPUs" in words and "--replicas" not in words
    assert "--shard 1/2, 2/2" in words and "neither fill hosts nor share one evenly" in words


def test_copies_on_one_host_are_started_by_the_command_that_is_printed(
    plan: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    out = plan("--gpus 8 --hardware h100 --model wan2.1-1.3b --objective throughput")
    run = next(line for line in out.splitlines() if line.startswith("run "))
    words = shlex.split(run.removeprefix("run"))[1:]
    given = dict(pairwise(words))
    assert given["--replicas"] == given["--count"] == "8" and "--prompts FILE" in out
    dry = (*words, "--model", "tiny:wan2.2-t2v", "--frames", "5", "--device", "cpu", "--dry-run")
    assert call([*dry, "--gpus", "9"]) == 2
    assert call([*dry, "--gpus", "8"]) == 0


def test_json_and_python_say_the_same(plan: Any) -> None:
    flags = "--gpus 16 --hardware h200 --objective cost --price 2.5 --clips 7"
    data = json.loads(plan(f"{flags} --json"))
    found = hybridgen.plan(16, hardware="h200", objective="cost", price=2.5, clips=7)
    assert data["request"]["gpus"] == 16 and data["world_size"] == found.best.plan.world_size
    assert (data["request"]["objective"], data["request"]["price_per_gpu_hour"], data["request"]["clips"]) == (
        "cost", 2.5, 7,
    )  # fmt: skip
    first, made = data["candidates"][0], found.ask.aim.output(found.best)
    assert first["copies"] == found.best.copies and first["clips_s"] == pytest.approx(made.seconds, rel=1e-4)
    assert first["gpu_seconds_per_clip"] == pytest.approx(first["end_to_end_s"] * data["world_size"], rel=1e-4)
    assert first["money_per_clip"] == pytest.approx(first["gpu_seconds_per_clip"] * 2.5 / 3600, rel=1e-4)
    assert first["clips_money"] == pytest.approx(7 * first["money_per_clip"], rel=1e-3)
    plain = json.loads(plan("--gpus 16 --hardware h200 --json"))["candidates"][0]
    assert plain["copies"] == 1 and plain["money_per_clip"] is plain["clips_s"] is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--price 0", "error[objective]: --price 0.0: is not an amount of money above 0; nearest: 2.5"),
        ("--price=-1", "error[objective]: --price -1.0: is not an amount of money above 0; nearest: 2.5"),
        ("--price nan", "error[objective]: --price nan: is not an amount of money above 0; nearest: 2.5"),
        ("--clips 0", "error[objective]: --clips 0: is not 1 to 1,000,000,000 clips; nearest: 1"),
        ("--objective fast", "error[usage]: --objective fast: is not one of the choices"),
        ("--objective cost --fewer", "error[objective]: --objective cost: chooses the number of GPUs of a clip itself"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_does(flags: str, says: str, plan: Any) -> None:
    first, *_, last = plan(f"--gpus 8 {flags}", code=2).splitlines()
    assert first.startswith(says)
    assert plan(f"{last.removeprefix('  try:  hybridgen plan ')} -q")


@pytest.mark.parametrize("flags", ["--objective throughput --memory 95GB", "--price 2"])
def test_the_picture_marks_the_frontier_and_the_recommended_plan(
    flags: str, plan: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from matplotlib.axes import Axes

    drawn: dict[str, list[tuple[float, float]]] = {}
    usual = Axes.plot

    def plot(self: Axes, *points: Any, label: str = "", **style: Any) -> Any:
        drawn[label] = list(zip(*points[:2], strict=True))
        return usual(self, *points, label=label, **style)

    monkeypatch.setattr(Axes, "plot", plot)
    found = json.loads(plan(f"--gpus 8 --hardware h200 {flags} --json --plot {tmp_path / 'p.png'}"))
    every, kept, (best,) = (drawn[label] for label in ("possible plans", "frontier (copies x GPUs)", "recommended"))
    assert (tmp_path / "p.png").stat().st_size > 10_000 and len(every) > 50
    first = found["candidates"][0]
    assert best == pytest.approx((first["end_to_end_s"], first["clips_per_hour"]), rel=1e-3) and best in every
    beaten = {(s, r) for s, r in every if any(t <= s and q >= r and (t, q) != (s, r) for t, q in every)}
    assert {*kept} == {*every} - beaten and kept == sorted(kept)
