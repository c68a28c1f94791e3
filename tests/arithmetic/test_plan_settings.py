"""Settings of a plan: one table, read everywhere, refused by `run`, and never taken for exact."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from hybridgen.api import spine
from hybridgen.cli.main import call
from hybridgen.engine.inputs import Conditioning
from hybridgen.engine.outputs import Outputs
from hybridgen.engine.prepare import make_job
from hybridgen.engine.report import RequestSummary
from hybridgen.errors import RequestError
from hybridgen.interop import trtllm
from hybridgen.plan.settings import KERNEL_LIKE, RULES, SETTINGS, Cached, Settings, settings
from hybridgen.recipe.compose import compose
from hybridgen.recipe.fields import Recipe, Runtime, options
from hybridgen.recipe.resolve import resolve, settings_of

GIVEN: dict[str, str | bool] = {
    "attention": "fp8", "weights": "int8", "compile": True, "cache": "mag:0.1", "timesteps": "1000,757,522",
}  # fmt: skip
"""A value of each setting, as a recipe has it."""
FLAGS = {name: [f"--{name}", *([] if value is True else [str(value)])] for name, value in GIVEN.items()}


def recipe(**given: Any) -> Recipe:
    return compose(None, [], {"model": "wan2.2", "guidance": 1.0, **given})


def plan(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert call(f"plan --gpus 4 --hardware b200 --model wan2.2 {words}".split()) == 0
    return capsys.readouterr().out


def test_every_setting_is_a_flag_a_key_and_part_of_the_report() -> None:
    held = {name: item for _, name, item in options()}
    assert SETTINGS.keys() == GIVEN.keys() == {item.name for item in fields(Settings)}
    for name, setting in SETTINGS.items():
        assert held[name].metadata["description"] == setting.help
        assert name in {item.name for item in fields(RequestSummary)}
    assert not {item.name for item in fields(Runtime)} - SETTINGS.keys() - {"device", "dtype"}


def test_settings_come_back_from_a_recipe() -> None:
    found = settings_of(recipe(**GIVEN))
    assert found == Settings("fp8", "int8", True, Cached("mag", 0.1), (1000, 757, 522))
    assert found.as_data() == GIVEN and settings(**found.as_data()) == found
    assert settings_of(recipe()).as_data() == {} and settings_of(recipe(attention="cudnn")).unable == {}
    with pytest.raises(RequestError, match="--compile: "):
        settings_of(recipe(compile=True)).refuse_unable()


@pytest.mark.parametrize("name", GIVEN)
def test_run_refuses_what_it_cannot_do_before_anything_loads(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = spine._opened

    def only_what_runs(given: Recipe) -> Conditioning:
        assert not settings_of(given).unable  # what is suggested instead is tried
        return opened(given)

    monkeypatch.setattr(spine, "_opened", only_what_runs)
    file = tmp_path / "r.yaml"
    section = "request" if name == "timesteps" else "runtime"
    value = json.dumps(GIVEN[name])
    file.write_text(f"schema: 1\nmodel: wan2.2\n{section}: {{{name}: {value}}}\n")
    for words in ([*FLAGS[name], "--model", "wan2.2"], ["--recipe", str(file)]):
        for more in (["--dry-run"], ["-p", "a lake"]):
            assert call(["run", *words, *more]) == 2
            told = capsys.readouterr().err
            assert told.startswith(f"error[plan-only]: {' '.join(FLAGS[name])}: is for planning")
            assert RULES["plan-only"] in told


@pytest.mark.parametrize(
    ("given", "rule", "message"),
    [
        ({"weights": "fp4"}, "setting", "--weights fp4: is not one of fp8, int8, nvfp4; nearest: nvfp4, fp8, int8"),
        ({"cache": "tea"}, "setting", "--cache tea: is not one of first-block, mag, teacache"),
        ({"cache": "teacache:x"}, "setting", "nearest: teacache:0.2"),
        ({"cache": "teacache:-1"}, "setting", "--cache teacache:-1: has no threshold of 0 or more"),
        ({"cache": "mag:inf"}, "setting", "--cache mag:inf"),
        ({"attention": "sag"}, "attention-unknown", "--attention sag: is not a kernel; nearest: sage"),
        ({"timesteps": "1000,1000"}, "timesteps", "each less than the one before; nearest: 1000,757,522"),
        ({"timesteps": "1001"}, "timesteps", "from 1000 down"),
        ({"timesteps": "5,0"}, "timesteps", "--timesteps 5,0"),
        ({"timesteps": ""}, "timesteps", "must be numbers"),
        ({"timesteps": "9,8", "steps": 3}, "timesteps", "--timesteps 9,8: are 2 steps, and --steps says 3"),
        ({"cache": "mag", "pipefusion": "2"}, "pipefusion-cache", "--pipefusion 2: excludes --cache mag:0.06"),
    ],
)
def test_what_is_no_setting_is_refused(given: dict[str, Any], rule: str, message: str) -> None:
    with pytest.raises(RequestError) as error:
        resolve(recipe(**given))
    assert error.value.rule == rule and message in error.value.message


def test_a_distilled_schedule_has_as_many_steps_as_timesteps() -> None:
    assert resolve(recipe(timesteps="1000,757,522")).clip.steps == 3
    assert resolve(recipe(timesteps="1000,757", steps=2)).clip.steps == 2


def test_only_compiling_is_exact() -> None:
    exact = {name: resolve(recipe(**{name: value})).exact for name, value in GIVEN.items()}
    assert exact == {name: name == "compile" for name in GIVEN}
    split = resolve(recipe(weights="fp8", pipefusion="2", steps=9))
    assert not split.exact and not split.exact_split and resolve(recipe(weights="fp8")).exact_split


def test_a_setting_never_makes_pipefusion_hold_or_keep_what_it_does_not() -> None:
    """Whether K/V is kept depends on the split alone."""
    from hybridgen.strategies.pipefusion.rules import memory

    kept = {
        weights: [term.name for term in memory(resolve(recipe(weights=weights, pipefusion="2", warmup=40)), 0)]
        for weights in (None, "fp8")
    }
    assert kept[None] == kept["fp8"] == ["hidden states on their way"]


def test_the_plan_says_its_settings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = "--weights fp8 --compile --cache teacache"
    page = plan(capsys, words)
    assert "with " in page and "(approximate)" in page and "nothing: it cannot do --weights fp8, --compile" in page
    file = tmp_path / "r.yaml"
    found = json.loads(plan(capsys, f"{words} --save {file} --json"))
    assert found["request"]["settings"] == {"weights": "fp8", "compile": True, "cache": "teacache:0.2"}
    assert not any(one["exact"] for one in found["candidates"])
    assert settings_of(compose(file, [], {})).as_data() == found["request"]["settings"]
    assert "approximate" in plan(capsys, f"{words} --explain 1")
    assert "approximate" not in plan(capsys, "--compile").partition("why 1")[0]


def test_a_published_time_is_shown_beside_plans_of_the_same_clip_only(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan --gpus 72 --model wan2.2 --frames 80"
    for more, shown in ("", True), ("--compile", True), ("--attention flash-attn-4", True), ("--weights fp8", False):
        assert call([*words.split(), *more.split()]) == 0
        assert ("known " in capsys.readouterr().out) == shown, more


def test_nothing_approximate_is_chosen_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(plan(capsys, "--approximate --json"))
    assert found["request"]["settings"] == {}
    chosen = [resolve(recipe(**{name: value})).settings for name, value in GIVEN.items()]
    assert all(one.chosen for one in chosen) and not Settings().chosen and not KERNEL_LIKE.keys() & {"auto", "sdpa"}


def test_a_clip_that_an_engine_is_asked_for_is_refused_as_well() -> None:
    asked = recipe(timesteps="1000,757", prompt="a lake", seed=1)
    with pytest.raises(RequestError, match="--timesteps 1000,757: is for planning"):
        make_job(asked, resolve(asked), Outputs())


def test_tensorrt_llm_is_told_how_weights_are_held() -> None:
    import yaml

    made = trtllm.export(asked := recipe(weights="nvfp4", compile=True), resolve(asked))
    found = yaml.safe_load(made.text)
    assert found["quant_config"] == {"quant_algo": "NVFP4", "dynamic": True}
    assert found["torch_compile_config"] == {"enable": True} and "weights" not in " ".join(made.warnings)
    assert yaml.safe_load(trtllm.export(recipe(), resolve(recipe())).text).keys() == found.keys() - {
        "quant_config",
        "torch_compile_config",
    }
    for given, lacking in ({"weights": "int8"}, "no int8 weights"), ({"attention": "sage"}, "no kernel sage"):
        with pytest.raises(RequestError, match=lacking):
            trtllm.export(recipe(**given), resolve(recipe(**given)))
    skipping = recipe(cache="mag")
    assert "--cache mag" in " ".join(trtllm.export(skipping, resolve(skipping)).warnings)
