"""Recipes in the words of xDiT and TensorRT-LLM: what is written, what is refused, what is said. No torch, no GPU.

Where the formats were read: docs/recipes.md.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hybridgen.cli.main import call
from hybridgen.errors import RequestError
from hybridgen.interop import trtllm, xdit, xfuser
from hybridgen.interop.trtllm_import import load
from hybridgen.recipe import library
from hybridgen.recipe.fields import Parallel, Recipe, compose
from hybridgen.recipe.resolve import resolve

NVL72 = Path("wan22-t2v-720p-gb200-nvl72")


def recipe_of(**flags: Any) -> Recipe:
    return compose(None, [], {"model": "wan2.2", **flags})


def exported(engine: Any, **flags: Any) -> Any:
    recipe = recipe_of(**flags)
    return engine.export(recipe, resolve(recipe))


# xDiT


def test_the_xdit_command() -> None:
    made = exported(xdit, ulysses=4, ring=2, vae=8, prompt="a boat", seed=3, attention="flash", size="832x480")
    assert made.text == (
        "xdit --model Wan-AI/Wan2.2-T2V-A14B-Diffusers --prompt 'a boat' --negative_prompt '' --height 480 "
        "--width 832 --num_frames 81 --num_inference_steps 40 --guidance_scale 4.0 --guidance_scale_2 3.0 --seed 3 "
        "--ulysses_degree 4 --ring_degree 2 --attention_backend SDPA_FLASH --use_parallel_vae\n"
    )
    alone = shlex.split(exported(xdit, model="wan2.1-14b", prompt="--x").text)
    assert "--prompt=--x" in alone  # else argparse takes it for an option
    assert not {"--guidance_scale_2", "--ulysses_degree", "--ring_degree", "--use_parallel_vae"} & set(alone)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"cfg": 2}, "no cfg parallelism for text-to-video (--cfg 2); nearest: --ulysses 2 --vae 2"),
        ({"attn2d": "3x3", "ulysses": 8}, "no attention2d (--attn2d 3x3); nearest: --ring 9 --ulysses 8 --vae 72"),
        ({"tp": 2}, "no tensor parallelism for Wan (--tp 2)"),
        ({"pipefusion": 2}, "no pipefusion for Wan (--pipefusion 2)"),
        ({"ulysses": 4, "vae": 2}, "decodes on one rank or on all 4 (--vae 2)"),
        ({"model": "wan2.1-1.3b"}, "Wan 2.1 and Wan 2.2 T2V with 14B parameters only"),
        ({"dtype": "float32"}, "computes in bfloat16 (--dtype float32)"),
        ({"fps": 24}, "writes 16 frames a second (--fps 24)"),
        ({"attention": "cpu"}, "no kernel cpu (--attention cpu)"),
        ({"device": "cpu"}, "needs GPUs"),
    ],
)
def test_xdit_is_not_given_what_it_lacks(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError) as error:
        exported(xdit, **flags)
    assert error.value.rule == "engine-lacks" and says in error.value.message


def test_what_xdit_refuses_is_said_at_once() -> None:
    with pytest.raises(RequestError) as error:
        exported(xdit, cfg=2, tp=2, vae=2)
    assert all(f"--{flag}" in error.value.message for flag in ("cfg 2", "tp 2", "vae 2"))


def test_xdit_is_said_to_attend_to_padding() -> None:
    """832x480 at 81 frames has 32760 tokens, which 16 ranks do not divide: xDiT pads and attends to the padding."""
    uneven = exported(xdit, size="832x480", ulysses=8, ring=2).warnings
    assert uneven[0].startswith("wrong: xDiT pads the 32760 tokens to a multiple of 16")
    assert not any("wrong" in warning for warning in exported(xdit, size="832x480", ulysses=8).warnings)
    words = " ".join(exported(xdit, revision="0" * 40, order="ulysses,ring", ulysses=2, ring=2).warnings)
    assert "flow shift to 12" in words and "takes 42" in words and "0" * 40 in words and "--order" in words


def test_the_flow_shift_comes_from_the_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "scheduler_config.json"
    config.write_text(json.dumps({"flow_shift": 3.0}))
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: str(config))
    made = exported(xdit)
    assert "--flow_shift 3.0" in made.text and not any("flow shift" in warning for warning in made.warnings)


# TensorRT-LLM


def test_the_published_configuration_is_written() -> None:
    """What NVIDIA publishes for the rack, but for the model (there on the command line) and 81 frames."""
    recipe = compose(library.located(NVL72), [], {})
    made = yaml.safe_load(trtllm.export(recipe, resolve(recipe)).text)
    assert made == {
        "model": "Wan-AI/Wan2.2-T2V-A14B-Diffusers",
        "revision": recipe.checkpoint.revision,
        "attention_config": {"backend": "FA4"},
        "parallel_config": {"cfg_size": 2, "ulysses_size": 4, "attn2d_size": [3, 3], "parallel_vae_size": 8},
        "compilation_config": {"resolutions": [[720, 1280]], "num_frames": [81]},
    }


def test_the_trtllm_text() -> None:
    made = exported(trtllm, ring=2, tp=2, vae=2, size="720x1280", seed=7)
    assert made.text == (
        "model: Wan-AI/Wan2.2-T2V-A14B-Diffusers\n"
        "attention_config: {backend: FA4}\n"
        "parallel_config: {ring_size: 2, tp_size: 2, parallel_vae_size: 2, parallel_vae_split_dim: height}\n"
        "compilation_config:\n  resolutions:\n  - [1280, 720]\n  num_frames: [81]\n"
    )
    assert "40 steps, guidance 4, low-noise expert 3, seed 7" in made.warnings[0]
    assert yaml.safe_load(exported(trtllm).text)["attention_config"] == {"backend": "VANILLA"}
    pictured = exported(trtllm, model="wan2.2-i2v", last_image="b.png")  # it needs a first one, too
    assert pictured.warnings[0].endswith(", a picture, last picture b.png")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"pipefusion": 2}, "no pipefusion (--pipefusion 2)"),
        ({"size": "832x480", "ring": 16}, "its 16 sequence ranks must divide the 32760 tokens"),
        ({"dtype": "float16"}, "computes in bfloat16 (--dtype float16)"),
        ({"attention": "cudnn"}, "no kernel cudnn (--attention cudnn); nearest: sdpa, flash-attn-4"),
        ({"attn2d": "2x2", "attention": "sdpa"}, "its VANILLA kernel cannot be merged"),
        ({"model": "demo", "dtype": "bfloat16"}, "demo is no model of the hub"),
    ],
)
def test_trtllm_is_not_given_what_it_lacks(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError) as error:
        exported(trtllm, **flags)
    assert error.value.rule == "engine-lacks" and says in error.value.message


CURRENT = """
attention_config: {backend: FA4}
parallel_config: {cfg_size: 2, ulysses_size: 4, attn2d_size: [3, 3], parallel_vae_size: 8, async_ulysses: true}
compilation_config: {resolutions: [[720, 1280]], num_frames: [80], skip_warmup: true}
quant_config: {quant_algo: NVFP4, dynamic: true}
cuda_graph_config: {enable: false}
"""
OLDER = """
checkpoint_path: Wan-AI/Wan2.2-T2V-A14B-Diffusers
attention: {backend: FA4}
parallel:
  dit_cfg_size: 2
  dit_ulysses_size: 4
  dit_attn2d_row_size: 3
  dit_attn2d_col_size: 3
  dit_dp_size: 1
  parallel_vae_size: 8
teacache: {enable_teacache: true}
cuda_graph: {enable_cuda_graph: true}
compilation: {resolutions: [[720, 1280]], num_frames: [80]}
"""


def imported(text: str, tmp_path: Path, model: str | None = None) -> tuple[Recipe, tuple[str, ...]]:
    file = tmp_path / "visual_gen.yaml"
    file.write_text(text)
    return load(file, model)


def test_both_generations_are_read(tmp_path: Path) -> None:
    current, left_out = imported(CURRENT, tmp_path, "wan2.2")
    older, older_left_out = imported(OLDER, tmp_path)
    for recipe in (current, older):
        assert recipe.parallel == Parallel(cfg=2, ulysses=4, attn2d="3x3", vae=8)
        assert (recipe.request.size, recipe.request.frames, recipe.runtime.attention) == (
            "1280x720",
            77,
            "flash-attn-4",
        )
        assert resolve(recipe).tokens.tokens == 72000  # 20 latent frames, as published
    assert any("NVFP4" in one for one in left_out) and any("async_ulysses" in one for one in left_out)
    assert any("teacache" in one for one in older_left_out) and any("CUDA graphs" in one for one in older_left_out)
    assert not any("CUDA graphs" in one for one in left_out)
    assert all(one in str(current.notes) for one in left_out)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("linear: {type: trtllm-fp4}", "linear layers of type trtllm-fp4"),
        ("linear: trtllm-fp8-blockwise", "linear layers of type trtllm-fp8-blockwise"),
        ("linear: {type: default}", ""),
        ("linear: {}", ""),
        ("skip_components: [text_encoder]", "skipped components (text_encoder)"),
        ("skip_components: []", ""),
        ("text_encoder_path: /models/gemma", "a text encoder of its own"),
        ("text_encoder_path: ''", ""),
        ("device: cpu", "the device cpu"),
        ("device: cuda", ""),
        ("skip_warmup: true", ""),
    ],
)
def test_older_keys_that_change_picture_or_speed_are_named(text: str, says: str, tmp_path: Path) -> None:
    _, left_out = imported(text + "\n", tmp_path, "wan2.2")
    assert len(left_out) == bool(says) and all(one.startswith(says) for one in left_out)


def test_the_older_parallel_vae_takes_all_ranks(tmp_path: Path) -> None:
    text = "parallel: {dit_cfg_size: 2, dit_ulysses_size: 4, enable_parallel_vae: %s}\n"
    assert imported(text % "true", tmp_path, "wan2.2")[0].parallel.vae == 8
    assert imported(text % "false", tmp_path, "wan2.2")[0].parallel.vae is None


@pytest.mark.parametrize("path", [p for p in library.files() if p.stem != "demo"], ids=lambda path: path.stem)
def test_what_is_exported_is_imported(path: Path, tmp_path: Path) -> None:
    recipe = compose(path, [], {})
    plan = resolve(recipe)
    back, left_out = imported(trtllm.export(recipe, plan).text, tmp_path)
    again = resolve(back)
    assert (again.degrees, again.facts, again.latent_shape) == (plan.degrees, plan.facts, plan.latent_shape)
    assert left_out == ()


@pytest.mark.parametrize(
    ("text", "rule", "says"),
    [
        (
            "parallel: {dit_cgf_size: 2}\n",
            "import-key",
            "yaml:1:12: unknown key parallel.dit_cgf_size; did you mean dit",
        ),
        ("\nparalel: {}\n", "import-key", "yaml:2:1: unknown key paralel; did you mean parallel?"),
        ("parallel: {dit_fsdp_size: 2}\n", "import-foreign", "dit_fsdp_size is 2; hybridgen has no such split"),
        ("parallel_config: {attn2d_size: 9}\n", "import-value", "attn2d_size is 9 and must be [rows, columns]"),
        ("parallel_config: {cfg_size: two}\n", "import-value", "cfg_size is 'two'"),
        ("parallel_config: 2\n", "import-value", "parallel_config is 2 and must hold keys"),
        ("- 1\n", "import-unreadable", "holds no keys"),
        ("a: [\n", "import-unreadable", "yaml:2:1 is not YAML"),
    ],
)
def test_what_cannot_be_imported(text: str, rule: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as error:
        imported(text, tmp_path, "wan2.2")
    assert error.value.rule == rule and says in error.value.message


def test_the_verbs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written, recipe = tmp_path / "t.yaml", tmp_path / "r.yaml"
    assert call(["recipes", "export", str(NVL72), "--to", "trtllm", "--out", str(written)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{written}\n" and err.startswith("warning: ")
    assert call(["recipes", "import", str(written), "--out", str(recipe)]) == 0
    assert call(["recipes", "import", str(written), "--out", str(recipe)]) == 2
    assert call(["recipes", "import", str(tmp_path / "none.yaml")]) == 2
    capsys.readouterr()
    for command in (
        "show nope",
        f"export {NVL72} --to xdit",
        "export wan22-t2v-720p-8gpu --to xdit --set request.steps=9",
    ):
        assert call(["recipes", *command.split()]) == 2
        tried = capsys.readouterr().err.splitlines()[-1].removeprefix("  try:  hybridgen ")
        assert call(tried.split()) == 0
        assert ("--ulysses_degree 8" in capsys.readouterr().out) == ("export" in command)
    assert call(["run", "--recipe", str(recipe), "--dry-run"]) == 0
    assert "cfg2 ulysses4 attn2d3x3 vae8" in capsys.readouterr().out
    written.write_text("parallel_config: {cfg_size: 2}\n")
    assert call(["recipes", "import", str(written)]) == 2
    assert "error[import-model]" in capsys.readouterr().err


# Running with xDiT's runner


def test_the_processes_of_xdit(tmp_path: Path) -> None:
    recipe = recipe_of(ulysses=8, vae=8, prompt="a boat", seed=3)
    words = xfuser.command(recipe, resolve(recipe), tmp_path)
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=8", "-m", "xfuser.runner"]
    assert words[: len(start)] == start and words[-2:] == ["--output_directory", str(tmp_path)]
    assert words[len(start) : -2] == xdit.arguments(recipe, resolve(recipe))


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if xfuser and enough GPUs were here."""
    monkeypatch.setattr(xfuser, "is_installed", lambda _: True)
    monkeypatch.setattr(xfuser, "device_of", lambda device: device)
    monkeypatch.setattr(xfuser, "check_machine", lambda *_: None)
    monkeypatch.setattr("hybridgen.cli.run.device_name", lambda _: "NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize(("ending", "code"), [("", 0), ("raise SystemExit(3)", 1), ("os.remove(name)", 1)])
def test_the_video_of_xdit_is_moved(
    ending: str,
    code: int,
    gpus: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def runner(recipe: Recipe, plan: Any, folder: Path) -> list[str]:
        assert recipe.request.seed is not None and plan.world_size == 2
        name = str(folder / "wan2.2_t2v_u2r1_tc_False_720x1280_0.mp4")
        return [sys.executable, "-c", f"import os; name = {name!r}; open(name, 'w').write('clip'); print(1)\n{ending}"]

    monkeypatch.setattr(xfuser, "command", runner)
    monkeypatch.chdir(tmp_path)
    words = "run --engine xfuser --recipe wan22-t2v-720p-2gpu --set parallel.cfg=1 --ulysses 2 -p boat --out a.mp4"
    assert call(shlex.split(words)) == code
    out, err = capfd.readouterr()
    assert [path.name for path in tmp_path.iterdir()] == (["a.mp4"] if code == 0 else [])
    assert out == ("a.mp4\n" if code == 0 else "") and "was measured on gb200; here: NVIDIA H100" in err
    assert code == 0 or "error[engine-failed]" in err


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        ("--cfg 2", "engine-lacks"),
        ("--latents a.safetensors", "engine-output"),
        ("--out a.avi", "output-format"),
    ],
)
def test_the_engine_is_refused_before_it_starts(
    flags: str, rule: str, gpus: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(shlex.split(f"run --engine xfuser --model wan2.2 -p boat {flags}")) == 2
    assert capsys.readouterr().err.startswith(f"error[{rule}]: ")


def test_without_xfuser_the_engine_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xfuser, "is_installed", lambda _: False)
    assert call(shlex.split("run --engine xfuser --model wan2.2 -p boat")) == 2
    assert "error[engine-missing]" in capsys.readouterr().err
    assert call(shlex.split("run --engine xfuser --model wan2.2 --ulysses 8 --dry-run")) == 0
    assert "--ulysses_degree 8" in capsys.readouterr().out
