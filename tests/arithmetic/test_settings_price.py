"""What settings save: rates, steps and bytes, each from a published figure, and only where the GPU can."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import precision
from benchmarks.published import rows
from hybridgen.cli.main import call
from hybridgen.errors import RequestError
from hybridgen.models import catalogue
from hybridgen.plan.plan import Clip, Plan
from hybridgen.plan.settings import KERNEL_LIKE, SETTINGS, Settings, settings
from hybridgen.planner.hardware.known import MACHINES
from hybridgen.planner.hardware.lookup import find
from hybridgen.planner.hardware.rates import GENERATIONS, has_kernel
from hybridgen.planner.price.compute import eager_seconds
from hybridgen.planner.price.cost import cost
from hybridgen.planner.price.memory import terms
from hybridgen.planner.price.settings import SKIPPING, check_card, computed, factors
from hybridgen.strategies.registry import Degrees

WAN = catalogue.find("wan2.2")
MATRICES = WAN.experts * WAN.transformer.layers * (WAN.transformer.matrix_params + 2 * 5120 * 5120)
"""Parameters of the matrices of all blocks, those for K and V of the text among them."""
CLIP = Clip(1280, 720, 81, 40, 5.0)


def plan(steps: int = 40, degrees: Degrees = Degrees(cfg=2, ulysses=4, vae=8), **given: Any) -> Plan:
    return Plan(WAN, replace(CLIP, steps=steps), degrees, settings=settings(**given))


def seconds(made: Plan, machine: str = "b200") -> dict[str, float]:
    """Denoise seconds by what they are spent on."""
    return {item.name: item.seconds for item in cost(made, find(machine)).items}


def changed(machine: str = "b200", **given: Any) -> dict[str, float]:
    """How many times as fast each item is with these settings, where it is not as fast."""
    before, after = seconds(plan(), machine), seconds(plan(**given), machine)
    found = {name: round(before[name] / after[name], 4) for name in before if after[name]}
    return {name: factor for name, factor in found.items() if factor != 1}


def test_published_rows_in_few_bits_are_predicted_without_an_anchor() -> None:
    """MLPerf's rows in fp8 on one to 72 GPUs, and those of TensorRT-LLM with NVFP4: within 12% each."""
    lines = precision.lines(rows())
    assert sum("mlcommons" in line.row.source for line in lines) == 6 and len(lines) == 13
    for line in lines:
        assert abs(line.error) < 0.12, (line.row.gpu, line.row.gpus, line.row.config, line.error)
        assert not line.row.plan().exact
    plans = [(line.row, replace(line.row.plan(), settings=Settings())) for line in lines]
    unpriced = [abs(cost(plan, row.machine).clip / row.seconds - 1) for row, plan in plans]
    assert sum(unpriced) > 2 * sum(abs(line.error) for line in lines)  # bf16's prices would not do


@pytest.mark.parametrize(
    ("given", "items"),
    [
        ({"weights": "fp8"}, {"matrix products": 1.486}),
        ({"weights": "nvfp4"}, {"matrix products": 1.952}),
        ({"attention": "fp8"}, {"attention": 2223 / 1634}),
        ({"attention": "sage"}, {"attention": 1.115}),
        ({"weights": "fp8", "attention": "fp8"}, {"matrix products": 1.486, "attention": 2223 / 1634}),
    ],
)
def test_a_setting_changes_the_rate_of_its_own_items(given: dict[str, str], items: dict[str, float]) -> None:
    found = changed(**given)
    assert {name: factor for name, factor in found.items() if name in items} == pytest.approx(items, rel=1e-3)
    assert found.keys() - items.keys() <= {"waiting for the slowest GPU"}


def test_skipped_steps_take_no_time_but_the_scheduler_s() -> None:
    found = changed(cache="teacache:0.2")
    assert {round(factor, 2) for factor in found.values()} == {2.0} and not {"steps", "text"} & found.keys()
    assert found.keys() >= {"attention", "matrix products", "norms, rope, residuals", "ulysses"}
    assert changed(cache="first-block:0") == {}


@pytest.mark.parametrize("method", SKIPPING)
def test_more_steps_are_skipped_the_higher_the_threshold(method: str) -> None:
    faster, _ = SKIPPING[method]
    thresholds = [0.01 * n for n in range(60)]
    shares = [computed(plan(steps=1000, cache=f"{method}:{x}")).value for x in thresholds]
    assert shares == sorted(shares, reverse=True) and shares[0] == 1 and shares[-1] == shares[-2]
    for threshold, speed in faster:
        assert computed(plan(steps=1000, cache=f"{method}:{threshold}")).value == pytest.approx(1 / speed, abs=1e-3)
    for steps in (1, 2, 4):
        share = computed(plan(steps=steps, cache=f"{method}:1")).value
        assert share * steps == round(share * steps) >= 1  # whole steps, and never none


def test_eager_blocks_take_longer_and_compiled_ones_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    eager, skipping = eager_seconds(plan(), find("b200")), eager_seconds(plan(cache="teacache:0.2"), find("b200"))
    other = seconds(plan())["norms, rope, residuals"]
    assert eager == pytest.approx(other * (find("b200").eager.value - 1)) and skipping < 0.51 * eager
    assert eager_seconds(plan(compile=True), find("b200")) == 0 and seconds(plan(compile=True)) == seconds(plan())
    for more, told in ("", True), ("--compile", False):
        words = f"plan --gpus 8 --hardware b200 --model wan2.2 --cfg 2 --ulysses 4 {more}".split()
        assert call([*words, "--explain", "1"]) == 0
        assert ("run has them eager" in capsys.readouterr().out) == told
        assert call([*words, "--json"]) == 0
        assert (json.loads(capsys.readouterr().out)["candidates"][0]["eager_s"] > 0) == told


def test_few_steps_take_the_time_of_few_steps() -> None:
    listed = replace(plan(timesteps="1000,757,522"), clip=replace(CLIP, steps=3))
    assert seconds(listed) == seconds(plan(steps=3))


def test_a_gpu_without_such_numbers_gains_memory_and_no_time() -> None:
    assert changed("a100", weights="fp8") == {} and changed("a100", weights="int8")["matrix products"] > 1.2
    whole, held = (next(t.size for t in terms(plan(weights=w)) if t.name == "weights") for w in (None, "fp8"))
    assert whole - held == MATRICES and held > MATRICES  # what is no matrix stays in bf16
    four = next(t.size for t in terms(plan(weights="nvfp4")) if t.name == "weights")
    assert held - four == pytest.approx(MATRICES * (1 - 0.5625), rel=1e-6)


def test_tensor_parallelism_cuts_matrices_of_few_bits_as_others() -> None:
    sizes = {
        tp: next(t.size for t in terms(plan(weights="fp8", degrees=Degrees(tp=tp))) if t.name == "weights")
        for tp in (1, 2)
    }
    assert sizes[1] - sizes[2] == pytest.approx(MATRICES / 2, rel=0.01)


@pytest.mark.parametrize("machine", MACHINES)
def test_what_tensor_cores_cannot_do_is_refused_by_name(machine: str) -> None:
    hardware = find(machine)
    for choice in SETTINGS["weights"].choices:
        if choice.name == "nvfp4" and "blackwell" not in hardware.generation:
            with pytest.raises(RequestError, match=f"--weights nvfp4: is not possible on {hardware.title}") as error:
                check_card(settings(weights=choice.name), hardware)
            assert list(error.value.nearest) == ["fp8", "int8"] and error.value.rule == "setting-card"
        else:
            check_card(settings(weights=choice.name), hardware)
            assert cost(plan(weights=choice.name), hardware).denoise <= cost(plan(), hardware).denoise
    for name in KERNEL_LIKE:
        if has_kernel(hardware.generation, name):
            assert cost(plan(attention=name), hardware).denoise < cost(plan(), hardware).denoise
        else:
            with pytest.raises(RequestError, match=f"--attention {name}: has no kernel"):
                check_card(settings(attention=name), hardware)


def test_every_factor_has_an_origin(capsys: pytest.CaptureFixture[str]) -> None:
    for name in GENERATIONS:
        for kernel in KERNEL_LIKE:
            if has_kernel(name, kernel):
                assert GENERATIONS[name].others[kernel].origin.startswith(("published: ", "assumed: "))
    used = factors(plan(weights="fp8", attention="sage", cache="mag"), find("b200"))
    assert len(used) == 3 and all(one.origin.startswith(("published: ", "assumed: ")) for _, one in used)
    words = "plan --gpus 8 --hardware b200 --model wan2.2 --weights fp8 --cache mag"
    assert call([*words.split(), "--explain", "1"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert all(name in page and one.origin in page for name, one in used if "attention" not in name)
    assert call([*words.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["request"]["settings"] == {"weights": "fp8", "cache": "mag:0.06"}


def test_plan_refuses_what_the_card_cannot_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan --gpus 8 --hardware h100 --model wan2.2 --weights nvfp4".split()) == 2
    told = capsys.readouterr().err
    assert told.startswith("error[setting-card]: --weights nvfp4: is not possible on H100 SXM") and "  try:  " in told
