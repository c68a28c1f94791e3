"""`hybridgen run` as its user runs it, on the demo model and CPU ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from hybridgen.distributed.progress import Progress
from hybridgen.engine.video import read_frames, read_tags
from hybridgen.models.catalogue import DEMO_FOLDER, find
from hybridgen.plan.plan import Plan
from hybridgen.plan.traffic import by_strategy
from hybridgen.recipe.fields import compose
from hybridgen.recipe.resolve import resolve
from hybridgen.strategies import registry
from tests.support import command

ROOT = Path(__file__).parents[2]
PROMPT = "a red circle moves right"
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def hybridgen(folder: Path, *words: str, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder, with a launcher as a program; it must succeed."""
    words = ("run", "-p", PROMPT, "--seed", "1", *words)
    if launcher:
        line = [*launcher, "hybridgen", *words]
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, env=ENVIRONMENT, timeout=400)
    else:
        done = command.hybridgen(folder, *words)
    assert done.returncode == 0, done.stderr
    return done


def files(name: str) -> list[str]:
    """Flags for every file a run can write."""
    return ["--out", f"{name}.mp4", "--latents", f"{name}.safetensors", "--report", f"{name}.json",
            "--preview", f"{name}.png"]  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the one-rank run's files: clip.mp4, .safetensors,"""
    folder = tmp_path_factory.mktemp("alone")
    done = hybridgen(folder, "--model", "demo", *files("clip"))
    assert done.stdout == "clip.mp4\n"
    return folder


def latents(path: Path) -> Tensor:
    return load_file(path)["latents"]


def error(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def pixels(path: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(Image.open(path)).astype(np.int64)


@lru_cache
def stock(folder: Path, dtype: str, steps: int) -> Tensor:
    """What diffusers' own pipeline makes of the request."""
    from diffusers import WanPipeline

    defaults = find("demo").defaults
    pipe = WanPipeline.from_pretrained(folder, dtype=getattr(torch, dtype))
    pipe.set_progress_bar_config(disable=True)
    found: Tensor = pipe(
        PROMPT,
        negative_prompt="",
        width=64,
        height=64,
        num_frames=17,
        num_inference_steps=steps,
        guidance_scale=defaults.guidance,
        generator=torch.Generator().manual_seed(1),
        output_type="latent",
    ).frames
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_rank_equals_the_stock_pipeline_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    hybridgen(tmp_path, "--model", "demo", "--dtype", dtype, "--steps", "12", *files("clip"))
    assert torch.equal(latents(tmp_path / "clip.safetensors"), stock(DEMO_FOLDER, dtype, 12))


def test_a_wan_21_folder_runs_by_its_path(tmp_path: Path) -> None:
    """One expert, no boundary: the same files without the second transformer, split over two ranks."""
    folder = tmp_path / "wan21"
    folder.mkdir()
    for part in ("text_encoder", "tokenizer", "transformer", "vae", "scheduler"):
        (folder / part).symlink_to(DEMO_FOLDER / part)
    index = json.loads((DEMO_FOLDER / "model_index.json").read_text())
    index |= {"transformer_2": [None, None], "boundary_ratio": None}
    (folder / "model_index.json").write_text(json.dumps(index))
    size = ("--size", "64x64", "--frames", "17", "--guidance", "3", "--steps", "3", "--dtype", "float32")
    hybridgen(tmp_path, "--model", str(folder), "--ulysses", "2", *size, *files("clip"))
    assert error(latents(tmp_path / "clip.safetensors"), stock(folder, "float32", 3)) <= 1e-5


def test_the_report_says_what_happened(alone: Path, tmp_path: Path) -> None:
    words = ["--model", "demo", "--cfg", "2", "--ulysses", "2", "--vae", "2"]
    done = hybridgen(tmp_path, *words, *files("clip"))
    assert done.stdout == "clip.mp4\n"
    report = json.loads((tmp_path / "clip.json").read_text())
    assert report["plan"]["degrees"] == {
        "cfg": 2, "pipefusion": 1, "tp": 1, "ring": 1, "attn2d": [1, 1], "ulysses": 2, "vae": 2
    }  # fmt: skip
    assert report["plan"]["world_size"] == 4 and report["plan"]["exact"] is True
    assert report["request"]["prompt"] == PROMPT and report["seed"] == 1 and report["output"] == "clip.mp4"
    times = report["timings_s"]
    assert set(times) == {"load", "encode", "denoise", "steps", "decode", "write", "total"}
    assert len(times["steps"]) == 20 and sum(times["steps"]) <= times["denoise"] <= times["total"]
    assert len(report["peak_memory_bytes"]) == 4 and min(report["peak_memory_bytes"]) > 1e6
    plan = resolve(compose(None, [], {"model": "demo", "cfg": 2, "ulysses": 2, "vae": 2}))
    assert_declared(plan, report)
    assert error(latents(tmp_path / "clip.safetensors"), latents(alone / "clip.safetensors")) <= 1e-5
    assert np.abs(pixels(tmp_path / "clip.png") - pixels(alone / "clip.png")).max() <= 1
    assert (
        "ulysses 3.3 MB" in done.stderr and f"repeat  hybridgen run --model demo -p '{PROMPT}' --seed 1" in done.stderr
    )


def assert_declared(plan: Plan, report: dict[str, Any]) -> None:
    """Sent bytes are declared bytes, of every strategy, set-up and the gather included."""
    for rank, sent in enumerate(report["traffic_bytes"]):
        assert {k: n for k, n in sent.items() if n} == by_strategy(registry.traffic(plan, rank))


def test_the_published_72_rank_recipe_equals_one_rank(alone: Path, tmp_path: Path) -> None:
    words = "--model demo --cfg 2 --ulysses 4 --attn2d 3x3 --vae 8".split()
    hybridgen(tmp_path, *words, *files("clip"))
    assert error(latents(tmp_path / "clip.safetensors"), latents(alone / "clip.safetensors")) <= 1e-5
    assert np.abs(pixels(tmp_path / "clip.png") - pixels(alone / "clip.png")).max() <= 1
    plan = resolve(compose(None, [], {"model": "demo", "cfg": 2, "ulysses": 4, "attn2d": "3x3", "vae": 8}))
    assert_declared(plan, json.loads((tmp_path / "clip.json").read_text()))


def test_the_video_shows_what_was_decoded_and_says_how_it_was_made(alone: Path) -> None:
    frames = read_frames(alone / "clip.mp4")
    assert frames.shape == (17, 64, 64, 3)
    first = pixels(alone / "clip.png")[:64, :64]
    assert np.abs(frames[0].astype(int) - first).mean() < 6  # h264 at quality 16
    tags = read_tags(alone / "clip.mp4")
    report = json.loads((alone / "clip.json").read_text())
    assert tags["request"] == report["request"] and tags["latents_sha256"] == report["latents_sha256"]


def test_the_last_step_is_logged_also_right_after_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("hybridgen.distributed.progress.time.monotonic", lambda: now)
    progress = Progress("lines")
    progress.start(20)
    for index in range(20):
        now += 1.5 if index == 18 else 0.05
        progress.step(0.05)
    assert [line.split()[2] for line in capsys.readouterr().err.splitlines()] == ["19/20", "20/20"]


def test_a_log_gets_lines_from_one_rank(tmp_path: Path) -> None:
    log = hybridgen(tmp_path, "--model", "demo", "--ring", "2", "--out", "clip.mp4").stderr
    assert "\r" not in log and "\x1b" not in log
    stages = [line.split()[0] for line in log.splitlines() if line.endswith(" s") and not line.startswith("load 0")]
    assert [s for s in stages if s in ("load", "encode", "denoise", "decode", "write")][:5] == [
        "load", "encode", "denoise", "decode", "write"
    ]  # fmt: skip
    assert "20/20" in log and "s/step" in log and "low-noise expert" in log


def test_quiet_prints_the_path_alone_and_names_the_file(tmp_path: Path) -> None:
    done = hybridgen(tmp_path, "--model", "demo", "--steps", "1", "-q")
    assert done.stdout == "a-red-circle-moves-right-s1.mp4\n" and done.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["a-red-circle-moves-right-s1.mp4"]


def test_torchrun_ranks_are_joined(alone: Path, tmp_path: Path) -> None:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
    done = hybridgen(tmp_path, "--model", "demo", "--ulysses", "2", *files("clip"), launcher=launcher)
    assert done.stdout == "clip.mp4\n" and done.stderr.count("repeat  ") == 1
    assert error(latents(tmp_path / "clip.safetensors"), latents(alone / "clip.safetensors")) <= 1e-5


def test_the_examples_run(tmp_path: Path) -> None:
    for program in (
        ["bash", str(ROOT / "examples/make_clip.sh")],
        [sys.executable, str(ROOT / "examples/make_clips.py")],
    ):
        done = subprocess.run([*program, str(tmp_path)], capture_output=True, text=True, env=ENVIRONMENT, timeout=300)
        assert done.returncode == 0, done.stderr
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == ["alone.mp4", "alone.safetensors", "grid.mp4", "grid.safetensors", "triangle.mp4", "triangle.png"]
    assert error(latents(tmp_path / "grid.safetensors"), latents(tmp_path / "alone.safetensors")) <= 1e-5


def test_srun_tasks_are_joined(alone: Path, tmp_path: Path) -> None:
    """Two processes with the environment that srun gives its tasks."""
    words = [*"run --model demo --ring 2 --seed 1 -p".split(), PROMPT, *files("clip")]
    tasks = [
        subprocess.Popen(
            [sys.executable, "-m", "hybridgen", *words],
            cwd=tmp_path,
            env={
                **ENVIRONMENT,
                "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(rank),
                "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_STEP_NODELIST": "localhost",
                "SLURM_JOB_ID": str(os.getpid()),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [task.communicate(timeout=200) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], outputs
    assert [out for out, _ in outputs] == ["clip.mp4\n", ""]
    assert error(latents(tmp_path / "clip.safetensors"), latents(alone / "clip.safetensors")) <= 1e-5


def test_the_wrong_number_of_joined_ranks_is_refused(tmp_path: Path) -> None:
    words = ["run", "--model", "demo", "--ulysses", "4", "-p", PROMPT]
    environment = {**ENVIRONMENT, "RANK": "0", "WORLD_SIZE": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "hybridgen", *words], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    first, last = done.stderr.splitlines()[-2:]
    assert (
        first.startswith("error[world-size]: the launcher started 2 ranks and the plan has 4") and "nearest: " in first
    )
    assert last.startswith("  try:  hybridgen run --model demo --ulysses 2 ")


@pytest.mark.parametrize("words", ["--pipefusion 2 --warmup 4 --dtype bfloat16", "--ulysses 2 --vae 2"])
def test_a_scheduler_that_keeps_the_models_dtype(words: str, tmp_path: Path) -> None:
    """Flow-match Euler gives latents in the prediction's dtype."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    folder = tmp_path / "euler"
    folder.mkdir()
    for part in ("text_encoder", "tokenizer", "transformer", "transformer_2", "vae"):
        (folder / part).symlink_to(DEMO_FOLDER / part)
    FlowMatchEulerDiscreteScheduler(shift=3.0).save_pretrained(folder / "scheduler")
    index = json.loads((DEMO_FOLDER / "model_index.json").read_text())
    index["scheduler"] = ["diffusers", "FlowMatchEulerDiscreteScheduler"]
    (folder / "model_index.json").write_text(json.dumps(index))
    shared = f"--model {folder} --size 64x64 --frames 17 --guidance 3 --steps 4".split()
    dtype = ["--dtype", "bfloat16" if "bfloat16" in words else "float32"]
    hybridgen(tmp_path, *shared, *dtype, *files("one"))
    hybridgen(tmp_path, *shared, *dtype, *words.split(), *files("two"))
    one, two = latents(tmp_path / "one.safetensors"), latents(tmp_path / "two.safetensors")
    assert torch.equal(one, stock(folder, dtype[1], 4).float())
    assert error(two, one) <= (0.02 if "bfloat16" in words else 1e-5)


def test_a_scheduler_with_noise_of_its_own_is_refused(tmp_path: Path) -> None:
    from hybridgen.errors import RequestError
    from hybridgen.models.checkpoint import from_folder

    index = json.loads((DEMO_FOLDER / "model_index.json").read_text())
    index["scheduler"] = ["diffusers", "DDPMScheduler"]
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(RequestError, match="DDPMScheduler"):
        from_folder(tmp_path)


def test_equal_requests_make_equal_files_whatever_the_environment_says(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "DIFFUSERS_ATTN_BACKEND", "_native_math")
    hybridgen(tmp_path, "--model", "demo", *files("clip"), launcher=(sys.executable, "-m"))
    assert (tmp_path / "clip.mp4").read_bytes() == (alone / "clip.mp4").read_bytes()


def test_files_of_others_survive_an_overwrite(tmp_path: Path) -> None:
    for name in ("c.mp4", "c.latents.safetensors"):
        (tmp_path / name).write_bytes(b"mine")
    hybridgen(tmp_path, "--model", "demo", "--steps", "2", "--out", "c.mp4", "--overwrite")
    assert (tmp_path / "c.latents.safetensors").read_bytes() == b"mine" != (tmp_path / "c.mp4").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.latents.safetensors", "c.mp4"]


def test_generate_needs_no_guard(tmp_path: Path) -> None:
    """From standard input: there is no script that ranks could import."""
    program = (
        "import hybridgen\n"
        "words = dict(model='demo', auto=True, gpus=2, hardware='cpu', ulysses=1, steps=1)\n"
        "report = hybridgen.generate('a red circle moves right', 'g.mp4', **words)\n"
        "print(report['output'], report['plan']['config'])\n"
    )
    command = [sys.executable, "-"]
    done = subprocess.run(command, input=program, cwd=tmp_path, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0 and done.stdout == "g.mp4 cfg2\n", done.stderr


def test_closed_streams_do_not_end_a_run(tmp_path: Path) -> None:
    command = f"{sys.executable} -m hybridgen run --model demo -p x --seed 1 --steps 2 --cfg 2 --out"
    for name, redirect in (("a", ">&- 2>&-"), ("b", "2>&1 | head -1")):
        subprocess.run(f"{command} {name}.mp4 {redirect}", shell=True, cwd=tmp_path, env=ENVIRONMENT, timeout=120)
        assert (tmp_path / f"{name}.mp4").exists(), redirect
