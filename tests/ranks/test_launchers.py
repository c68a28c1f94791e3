"""Runs that another program starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.runs import ENVIRONMENT, PROMPT, STEPS, error, files, hybridgen, latents

ROOT = Path(__file__).parents[2]


def test_torchrun_ranks_are_joined(alone: Path, tmp_path: Path) -> None:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
    done = hybridgen(
        tmp_path, "--model", "demo", "--ulysses", "2", "--steps", str(STEPS), *files("clip"), launcher=launcher
    )
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
    words = [*f"run --model demo --ring 2 --seed 1 --steps {STEPS} -p".split(), PROMPT, *files("clip")]
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


def test_equal_requests_make_equal_files_whatever_the_environment_says(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "DIFFUSERS_ATTN_BACKEND", "_native_math")
    hybridgen(tmp_path, "--model", "demo", "--steps", str(STEPS), *files("clip"), launcher=(sys.executable, "-m"))
    assert (tmp_path / "clip.mp4").read_bytes() == (alone / "clip.mp4").read_bytes()


def test_generate_needs_no_guard(tmp_path: Path) -> None:
    """From standard input: there is no script that ranks could import."""
    program = (
        "import hybridgen\n"
        "words = dict(model='demo', auto=True, gpus=2, hardware='cpu', ulysses=1, steps=1)\n"
        "report = hybridgen.generate('a red circle moves right', 'g.mp4', **words)\n"
        "print(report.output, report.plan.config)\n"
    )
    command = [sys.executable, "-"]
    done = subprocess.run(command, input=program, cwd=tmp_path, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0 and done.stdout == "g.mp4 cfg2\n", done.stderr


def test_closed_streams_do_not_end_a_run(tmp_path: Path) -> None:
    command = f"{sys.executable} -m hybridgen run --model demo -p x --seed 1 --steps 2 --cfg 2 --out"
    for name, redirect in (("a", ">&- 2>&-"), ("b", "2>&1 | head -1")):
        subprocess.run(f"{command} {name}.mp4 {redirect}", shell=True, cwd=tmp_path, env=ENVIRONMENT, timeout=120)
        assert (tmp_path / f"{name}.mp4").exists(), redirect
