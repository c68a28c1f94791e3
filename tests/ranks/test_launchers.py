"""Runs that another program starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import command
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
    job = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": str(os.getpid())}
    places = [{"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]
    tasks = [command.start(tmp_path, *words, environment={**job, **place}, tree=ROOT) for place in places]
    ended = [task.finish() for task in tasks]
    assert [task.returncode for task in ended] == [0, 0], ended
    assert [task.stdout for task in ended] == ["clip.mp4\n", ""]
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
    program_read = [sys.executable, "-"]
    done = subprocess.run(program_read, input=program, cwd=tmp_path, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0 and done.stdout == "g.mp4 cfg2\n", done.stderr


def test_closed_streams_do_not_end_a_run(tmp_path: Path) -> None:
    words = "run --model demo -p x --seed 1 --steps 2 --cfg 2 --out".split()
    reader, writer = os.pipe()
    kept: list[Any] = []

    def closed() -> None:
        os.close(reader)
        os.close(writer)
        os.closerange(1, 3)
        sys.stdout = sys.stderr = None  # as the interpreter has it

    def read_by_few() -> None:
        os.close(reader)
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        kept.extend((sys.stdout, sys.stderr))  # they would close what they write to
        sys.stdout, sys.stderr = (os.fdopen(number, "w", 1) for number in (1, 2))

    first, second = (
        command.start(tmp_path, *words, f"{prepare.__name__}.mp4", prepare=prepare) for prepare in (closed, read_by_few)
    )
    os.close(writer)
    assert os.read(reader, 1)
    os.close(reader)
    assert (first.finish().returncode, second.finish().returncode) == (0, 141)
    assert {path.name for path in tmp_path.iterdir()} == {"closed.mp4", "read_by_few.mp4"}
