"""What is left of a GPU's memory, and what helps where nothing fits."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from hybridgen.errors import RequestError
from hybridgen.models import catalogue
from hybridgen.plan.plan import Clip, Plan
from hybridgen.planner.choose import recommend
from hybridgen.planner.choose.ask import Ask
from hybridgen.planner.choose.remedies import REMEDIES, State, helps
from hybridgen.planner.hardware.lookup import find
from hybridgen.planner.price.cost import cost
from hybridgen.planner.price.memory import held
from hybridgen.strategies.registry import Degrees

CLIP = Clip(1280, 704, 121, 50, 5.0)


def ask(gpus: int, hardware: str, model: str = "wan2.2-5b", **changes: Any) -> Ask:
    return Ask(Plan(catalogue.find(model), CLIP, Degrees()), gpus, find(hardware), **changes)


def test_a_plan_that_nearly_fills_a_gpu_is_tight(plan: Any) -> None:
    out = plan("--gpus 1 --hardware h100")
    assert "79.9 of 80  recommended, tight" in out and "why 1    tight: it needs 79.9 of 80 GB" in out
    (one,) = json.loads(plan("--gpus 1 --hardware h100 --json"))["candidates"]
    assert one["tight"] and one["memory_limit_gb"] == 80 and one["memory_gb"]["peak"] == pytest.approx(79.995, abs=0.01)
    out = plan("--gpus 1 --hardware h200")
    assert "80 of 141" in out and "tight" not in out
    assert " of " not in plan("--gpus 1 --hardware cpu --model demo").split("# ")[1].split("recommended")[0]


@pytest.mark.parametrize(("share", "tight"), [(0.919, False), (0.921, True)])
def test_tight_is_above_92_percent(share: float, tight: bool) -> None:
    free = recommend.recommend(ask(1, "h100")).best
    limited = recommend.recommend(ask(1, "h100", memory=free.peak / share)).best
    assert limited.tight == tight and not free.tight


def test_a_refusal_names_the_part_that_is_too_large_and_what_helps(plan: Any) -> None:
    """The 5B model on one RTX 4090 is in the way of its own decoder alone."""
    first, *rest = plan("--gpus 1 --hardware rtx4090 --model wan2.2-5b", code=2).splitlines()
    assert re.search(r"the largest part, [\d.]+ GB while decoding, is vae decoding", first)
    lines = [line.removeprefix("  help: ") for line in rest if line.startswith("  help: ")]
    assert [line.partition(":")[0].partition(",")[0] for line in lines] == [
        "free the experts while decoding",
        "tile the VAE",
        "a smaller size",
        "another model",
    ]
    assert all(line.endswith("(not supported yet)") == (number < 2) for number, line in enumerate(lines))
    commands = [line.removeprefix("  try:  ") for line in rest if line.startswith("  try:  ")]
    assert "--size 832x480" in commands[0] and "--model wan2.1-t2v-1.3b" in commands[1] and "--gpus" in commands[2]
    for line, command in zip(lines[2:], commands, strict=False):
        gigabytes, seconds = re.findall(r"([\d.]+) (?:GB|s)", line)
        found = json.loads(plan(command.removeprefix("hybridgen plan ") + " --json"))["candidates"][0]
        assert found["memory_gb"]["peak"] == pytest.approx(float(gigabytes), abs=0.05)
        assert found["end_to_end_s"] == pytest.approx(float(seconds), abs=0.5)


@pytest.mark.parametrize(("gpus", "hardware", "model"), [(1, "rtx4090", "wan2.2"), (1, "l40s", "wan2.2-i2v")])
def test_what_is_not_enough_alone_adds_up_until_it_is(gpus: int, hardware: str, model: str) -> None:
    question = ask(gpus, hardware, model, approximate=False)
    question = replace(question, template=replace(question.template, clip=replace(CLIP, height=720, frames=81)))
    with pytest.raises(RequestError) as refusal:
        recommend.recommend(question)
    found = [one for one in helps(question, question.template) if one.change is None]
    assert refusal.value.helps[: len(found)] == tuple(one.text for one in found)
    together = [one for one in found if not one.fits or one.words.startswith("and ")]
    peaks = [one.peak for one in together]
    assert len(found) > 1 and peaks == sorted(peaks, reverse=True) and len(set(peaks)) == len(peaks)
    assert found[-1].fits and not any(one.fits for one in together[:-1])
    assert all(("still too large" in one.text) != one.fits for one in found)
    assert all((one.peak <= question.limit) == one.fits for one in found)
    assert [one.words.startswith("and ") for one in together] == [False] + [True] * (len(together) - 1)


def test_remedies_are_worked_out_from_the_plan_s_own_memory() -> None:
    """Each against the arithmetic, written out again."""
    plan, machine = Plan(catalogue.find("wan2.2"), replace(CLIP, height=720, frames=81), Degrees()), find("h100")
    terms = held(plan, machine)
    state = State(plan, machine, terms, cost(plan, machine).clip)
    by = {remedy.words: remedy.state(state) for remedy in REMEDIES if remedy.state is not None}

    def weights(found: State) -> int:
        return sum(term.size for term in found.terms if term.name == "weights")

    def decoding(found: State) -> int:
        return sum(term.size for term in found.terms if "decode" in term.phases)

    assert decoding(state) - decoding(by["free the experts while decoding"]) == weights(state)
    assert weights(by["free the experts while decoding"]) == weights(state)
    assert weights(by["swap the experts"]) == weights(state) // 2
    assert weights(by["offload the weights"]) == pytest.approx(weights(state) / 2 * 2 / 40, rel=0.05)
    tiled = by["tile the VAE"]
    own, after = (next(t.size for t in one.terms if t.name == "vae decoding") for one in (state, tiled))
    assert after == pytest.approx(own * 32 * 32 / (90 * 160), rel=1e-6)
    assert tiled.seconds - state.seconds == pytest.approx(((256 / 192) ** 2 - 1) * cost(plan, machine).decode)
