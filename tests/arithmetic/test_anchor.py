"""A measured time, on one GPU or on several with their split, as the scale of a machine's rates."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

import hybridgen
from hybridgen.cli.main import call
from hybridgen.errors import RequestError
from hybridgen.plan.plan import Plan
from hybridgen.planner.choose import anchor, recommend
from hybridgen.planner.choose.ask import Ask
from hybridgen.planner.hardware.lookup import find
from hybridgen.planner.price.cost import cost
from hybridgen.strategies.registry import Degrees
from tests.support.published import PUBLISHED_CLIP, WAN22

TEMPLATE = Plan(WAN22, PUBLISHED_CLIP, Degrees())


@pytest.mark.parametrize(
    "split", ["", "8:{}:cfg2 ulysses4", "8:{}:ulysses8,vae8", "8:{}:cfg2 attn2d2x2", "16:{}:cfg2 ulysses8"]
)
@pytest.mark.parametrize("machine", ["h200", "rtx4090"])
@pytest.mark.parametrize("factor", [0.6, 1.7])
def test_the_measured_split_takes_the_measured_time(split: str, machine: str, factor: float) -> None:
    box = find(machine)
    given = split or "{}"
    usual = anchor.read(given.format(1), TEMPLATE, box, {})
    measured = anchor.read(given.format(factor * usual.predicted), TEMPLATE, box, {})
    scaled = anchor.anchored(box, measured)
    assert cost(measured.plan, scaled).denoise == pytest.approx(factor * usual.predicted, rel=1e-6)
    assert measured.plan.world_size == int(given.partition(":")[0] if split else 1)
    (low, high), (least, most) = cost(measured.plan, scaled).range, cost(measured.plan, box).range
    assert machine != "h200" or high / low < most / least
    assert scaled.inside == box.inside and scaled.attention.origin.endswith(f"scaled to --anchor {measured.given}")


def test_an_anchor_of_several_gpus_agrees_with_that_of_one() -> None:
    """The time that eight GPUs take on a machine scaled by one is the anchor that scales it alike."""
    box = find("h200")
    one = anchor.anchored(box, anchor.read(1300, TEMPLATE, box, {}))
    plan = anchor.read("8:1:cfg2 ulysses4", TEMPLATE, box, {}).plan
    eight = anchor.anchored(box, anchor.read(f"8:{cost(plan, one).denoise}:cfg2 ulysses4", TEMPLATE, box, {}))
    assert eight.attention.value == pytest.approx(one.attention.value, rel=1e-6)
    found = recommend.recommend(Ask(TEMPLATE, 16, eight)).best
    assert found.cost.denoise == pytest.approx(recommend.recommend(Ask(TEMPLATE, 16, one)).best.cost.denoise, rel=1e-6)


def test_given_degrees_are_the_split_that_was_measured(plan: Any) -> None:
    flags = "--gpus 8 --hardware h200 --cfg 2 --ulysses 4"
    for given in ("8:120", "'8:120:cfg2 ulysses4'"):
        found = json.loads(plan(f"{flags} --anchor {given} --json"))
        assert found["candidates"][0]["denoise_s"] == pytest.approx(120, abs=1e-3)
        measured = found["request"]["anchor"]
        assert (measured["gpus"], measured["seconds"], measured["split"]) == (8, 120.0, "cfg2 ulysses4")
    out = plan("--gpus 16 --hardware h200 --anchor '8:120:cfg2 ulysses4'")
    assert (
        "(given by --anchor of 8 GPUs as cfg2 ulysses4)" in out and "--anchor '8:120:cfg2 ulysses4' --explain 1" in out
    )
    assert json.loads(plan("--gpus 8 --json"))["request"]["anchor"] is None
    assert hybridgen.plan(8, hardware="h200", anchor=1300).ask.anchor is not None


@pytest.mark.parametrize(
    ("given", "says", "near"),
    [
        ("8:54.3", "8 GPUs can be split in several ways; which split was measured?", "8:54.3:"),
        ("8:54.3:cfg2 ulysses2", "cfg2 ulysses2 makes 4 GPUs, not 8", "8:54.3:cfg2 ulysses4"),
        ("8:54.3:cfg2 ulysses4 tp2", "makes 16 GPUs, not 8", "8:54.3:"),
        ("6:54.3:cfg2 ulysses3", "no clip can be made with this split", "6:54.3:cfg2"),
        ("8:0:cfg2 ulysses4", "must be a number of seconds above 0; predicted: ", ""),
        ("8:nan:cfg2 ulysses4", "must be a number of seconds above 0; predicted: ", ""),
        ("8:0.01:cfg2 ulysses4", "is less than 8 H200 as cfg2 ulysses4 can take; predicted: ", ""),
        ("8:fast:cfg2 ulysses4", "is not SECONDS, GPUS:SECONDS or GPUS:SECONDS:SPLIT", "8:54.3:cfg2 ulysses4"),
        ("x:54.3", "is not SECONDS, GPUS:SECONDS or GPUS:SECONDS:SPLIT", "8:54.3:cfg2 ulysses4"),
        ("soon", "is not SECONDS, GPUS:SECONDS or GPUS:SECONDS:SPLIT", "54.3"),
        ("0:54.3:cfg2", "names 0 GPUs; there are 1 to 65536", "1:54.3:cfg2"),
        ("99999:54.3:cfg2", "names 99999 GPUs; there are 1 to 65536", "65536:54.3:cfg2"),
        ("8:54.3:cfg2 ulyses4", "ulyses4 is not a part of a split", ""),
        ("8:54.3:cfg2 cfg4", "cfg4 is not a part of a split", ""),
        ("8:54.3:attn2d8", "attn2d8 is not a part of a split", ""),
    ],
)
def test_what_cannot_be_measured_is_refused_with_what_can(given: str, says: str, near: str, plan: Any) -> None:
    first, *_, last = plan(f"--gpus 8 --hardware h200 --anchor '{given}'", code=2).splitlines()
    assert first.startswith(f"error[anchor]: --anchor {given}: ") and says in first
    assert f"nearest: {near}" in first or near in first
    words = shlex.split(last.removeprefix("  try:  hybridgen "))
    assert call([*words, "-q"]) == 0


def test_no_more_gpus_were_measured_than_there_are(plan: Any) -> None:
    flags = "--hardware h200 --gpus-per-node 8,4 --gpus 8"
    assert "names 16 GPUs; there are 1 to 12" in plan(f"{flags} --anchor '16:54:cfg2 ulysses8'", code=2)
    with pytest.raises(RequestError, match="must be a number of seconds"):
        anchor.read(float("inf"), TEMPLATE, find("h200"), {})
