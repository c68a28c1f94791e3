"""Recipes in the words of xDiT and TensorRT-LLM: what is written, what is refused, what is said. No torch, no GPU.

Where the formats were read: docs/recipes.md.
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from hybridgen.cli.main import call
from hybridgen.errors import RequestError
from hybridgen.interop import xdit, xfuser
from hybridgen.recipe.fields import Recipe, Request, Runtime
from hybridgen.recipe.resolve import resolve
from tests.support.exports import More, exported, recipe_of

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
        ({"cfg": 2}, "no cfg (--cfg 2); nearest: --ulysses 2 --vae 2"),
        ({"attn2d": "3x3", "ulysses": 8}, "no attn2d (--attn2d 3x3); nearest: --ring 9 --ulysses 8 --vae 72"),
        ({"tp": 2}, "no tp (--tp 2)"),
        ({"pipefusion": 2}, "no pipefusion (--pipefusion 2)"),
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
    monkeypatch.setattr("hybridgen.api.spine.device_name", lambda _: "NVIDIA H100 80GB HBM3")


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


def test_what_xdit_is_not_told_is_said() -> None:
    recipe = recipe_of(ulysses=8, vae=8, seed=3)
    recipe.request = More(prompt="a boat", negative_prompt="blur", seed=3)
    made = xdit.export(recipe, resolve(recipe))
    said = " ".join((made.text, *made.warnings))
    assert "--flow-shift 5.5" in said and "a boat" in said and "blur" in said
    names = {item.name for section in (Request, Runtime) for item in fields(section)}
    assert set(xdit.KNOWN) <= names
