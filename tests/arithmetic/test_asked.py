"""What people ask `hybridgen plan`: every page of an answer says the same, and what was typed is read as meant."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

from hybridgen.cli.main import call
from hybridgen.planner.choose import recommend
from hybridgen.planner.choose.options import PlanOptions
from hybridgen.recipe.compose import compose

H100 = "--gpus 8 --hardware h100"


def test_a_limit_of_time_is_told_of_the_plans_that_fit(plan: Any) -> None:
    fastest = json.loads(plan(f"{H100} --memory 40GB --json"))["candidates"]
    best = min(fastest, key=lambda one: one["end_to_end_s"])
    said = plan(f"{H100} --memory 40GB --max-time 60s", code=2)
    assert f"the fastest plan, {best['config']}, takes {best['end_to_end_s']:.0f} s" in said
    none = plan(f"{H100} --memory 15GB --max-time 60s", code=2)
    assert none.startswith("error[memory]: nothing fits on 8 x H100 SXM")


def test_the_first_thing_that_helps_follows_nothing(plan: Any) -> None:
    helps = [line for line in plan(f"{H100} --memory 10GB", code=2).splitlines() if line.startswith("  help: ")]
    assert [line.startswith("  help: and ") for line in helps] == [False, True]


def test_a_plan_that_breaks_two_limits_is_counted_once(plan: Any) -> None:
    every = json.loads(plan(f"{H100} --json"))["candidates"]
    head = plan(f"{H100} --memory 40GB --max-time 143s")
    fit, others = map(int, re.findall(r"(\d+) exact plans fit, (\d+) legal ones do not", head)[0])
    assert fit + others == len(every)


def test_hosts_that_are_named_are_the_hosts_that_are_used(plan: Any) -> None:
    assert "in 3 nodes of 8, 8 and 4," in plan("--gpus 20 --hardware h100 --gpus-per-node 8,8,8")
    named, counted = (
        json.loads(plan(f"--gpus 24 --hardware h100 {hosts} --json"))["candidates"]
        for hosts in ("--gpus-per-node 8,8,8", "--nodes 3")
    )
    assert named == counted


@pytest.mark.parametrize(("flags", "end"), [("", ""), ("--clips 1", ""), ("--clips 100", " --count 100")])
def test_the_command_makes_the_clips_that_were_asked_for(flags: str, end: str, plan: Any) -> None:
    (line,) = (one for one in plan(f"{H100} {flags}").splitlines() if one.startswith("run "))
    assert line.endswith(f"-p 'a lighthouse in a storm'{end}")


@pytest.mark.parametrize(("given", "seconds"), [("15m", 900), ("900s", 900), ("9e2", 900), ("0.25h", 900)])
def test_a_measured_time_may_have_its_unit(given: str, seconds: float) -> None:
    found = recommend.plan_for(compose(None, [], {}), PlanOptions(gpus=8, hardware="h100", anchor=given))
    assert found.ask.anchor is not None and found.ask.anchor.seconds == seconds
    assert found.one_gpu == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--anchor 1e300", "must be a number of seconds up to 1,000,000,000; predicted: "),
        ("--price 1e308 --clips 100", "is not an amount of money up to 1,000,000,000"),
        ("--price 1e-300", "is not an amount of money above 0"),
        ("--memory 64", "is not an amount above 0 with its unit; nearest: 64GB"),
        ("--cfg 2 --ulysses 8", "no legal plan has 8 GPUs with --cfg 2 --ulysses 8: that takes a multiple of 16; "),
        ("--usp 4x2 --ulysses 4", "--usp 4x2: says the same as --ulysses 4; give --usp, or --ulysses and --ring"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_plain_words(flags: str, says: str, plan: Any) -> None:
    first, *_, last = plan(f"{H100} {flags}", code=2).splitlines()
    assert says in first
    assert call([*shlex.split(last.removeprefix("  try:  hybridgen ")), "-q"]) == 0


def test_a_machine_without_a_name_is_refused(plan: Any) -> None:
    assert plan("--gpus 8 --hardware ''", code=2).startswith("error[unknown-hardware]")


@pytest.mark.parametrize(
    ("driver", "name"),
    [("NVIDIA GeForce RTX 4090", "rtx4090"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-80GB", "a100")],
)
def test_a_machine_has_the_name_that_its_driver_gives(driver: str, name: str, plan: Any) -> None:
    assert json.loads(plan(f"--gpus 8 --hardware '{driver}' --json"))["hardware"] == name


def test_more_memory_than_the_card_has_is_doubted(capsys: pytest.CaptureFixture[str]) -> None:
    for memory, said in (("40GB", ""), ("200GB", "warning: --memory 200GB is more than the 80 GB of one H100 SXM\n")):
        assert call(["plan", *H100.split(), "--memory", memory, "-q"]) == 0
        assert capsys.readouterr().err == said


def test_one_kind_of_cards_that_is_faster_alone_is_named(plan: Any) -> None:
    alone = json.loads(plan("--hardware h100:4 --json"))["candidates"][0]
    mixed = "--hardware h100:4,a100:4"
    assert json.loads(plan(f"{mixed} --json"))["candidates"][0]["end_to_end_s"] > alone["end_to_end_s"]
    line = f"fewer!   4 x H100 SXM alone are faster than all 8: {alone['config']}, "
    assert line in plan(mixed)
    assert "alone are faster" not in plan("--hardware h100:4,h800:4")


def test_a_range_says_in_one_sentence_what_it_is_made_of(plan: Any) -> None:
    said = " ".join(plan("--gpus 128 --hardware h100").split())
    words = (
        "range the predicted time plus or minus 24%: 15% for one GPU's time, 8% for several GPUs, 15% for the network, "
        "over which no run was published, 8% for more than 72 GPUs, which nobody measured, added as squares. "
    )
    assert words in said
    assert "plus or minus 35% for one GPU's time (assumed: nothing was published" in " ".join(
        plan("--gpus 1 --hardware mi300x").split()
    )
