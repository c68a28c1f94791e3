"""Configurations of TensorRT-LLM are written and read."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from hybridgen.cli.main import call
from hybridgen.errors import RequestError
from hybridgen.interop import trtllm
from hybridgen.interop.trtllm_import import load
from hybridgen.recipe import library
from hybridgen.recipe.compose import compose
from hybridgen.recipe.fields import Parallel, Recipe, Request, Runtime
from hybridgen.recipe.resolve import resolve
from tests.support.exports import More, exported, recipe_of

NVL72 = Path("wan22-t2v-720p-gb200-nvl72")


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
    assert pictured.warnings[0].endswith(", the image, last image b.png")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"pipefusion": 2}, "no pipefusion (--pipefusion 2)"),
        ({"size": "832x480", "ring": 16}, "its 16 sequence ranks must divide the 32760 tokens"),
        ({"dtype": "float16"}, "computes in bfloat16 (--dtype float16)"),
        ({"attention": "cudnn"}, "no kernel cudnn (--attention cudnn); nearest: sdpa, flash-attn-4"),
        ({"attn2d": "2x2", "attention": "sdpa"}, "its VANILLA kernel cannot be merged"),
        ({"model": "demo", "dtype": "bfloat16"}, "demo is not a model of the hub"),
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
            "yaml:1:12: parallel.dit_cgf_size: is not a key of VisualGen, old or new; nearest: dit",
        ),
        (
            "\nparalel: {}\n",
            "import-key",
            "yaml:2:1: paralel: is not a key of VisualGen, old or new; nearest: parallel",
        ),
        (
            "parallel: {dit_fsdp_size: 2}\n",
            "import-foreign",
            "1:12: parallel.dit_fsdp_size 2: is a split that hybridgen does not have",
        ),
        ("parallel_config: {attn2d_size: 9}\n", "import-value", "attn2d_size 9: must be [rows, columns]"),
        ("parallel_config: {cfg_size: two}\n", "import-value", "cfg_size 'two': must be a whole number"),
        ("parallel_config: 2\n", "import-value", "parallel_config 2: must hold keys"),
        ("- 1\n", "import-unreadable", "holds no keys"),
        ("a: [\n", "import-unreadable", "yaml:2:1: is not YAML"),
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


def test_what_trtllm_is_not_told_is_said() -> None:
    recipe = recipe_of(ulysses=8, vae=8, seed=3)
    recipe.request = More(prompt="a boat", negative_prompt="blur", seed=3)
    made = trtllm.export(recipe, resolve(recipe))
    said = " ".join((made.text, *made.warnings))
    assert "--flow-shift 5.5" in said and "a boat" in said and "blur" in said
    names = {item.name for section in (Request, Runtime) for item in fields(section)}
    assert set(trtllm.KNOWN) <= names
