"""Run a plan with xDiT's own runner: one process a GPU under torchrun, on this machine. No torch in this process.

Needs the extra `xfuser`. Its video is moved to where the request wants it; nothing else of it is kept.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hybridgen.engine import environment
from hybridgen.engine.machine import check_machine, device_of
from hybridgen.engine.outputs import Outputs, check_outputs, default_name
from hybridgen.engine.prepare import seed_of
from hybridgen.errors import RequestError, RunFailed
from hybridgen.interop import xdit
from hybridgen.plan.kernels import is_installed
from hybridgen.plan.plan import Plan
from hybridgen.recipe.fields import Recipe

GRACE = 10
"""Seconds between SIGTERM and SIGKILL."""


def command(recipe: Recipe, plan: Plan, folder: Path) -> list[str]:
    """The processes to start: torchrun on a free port, and xDiT's runner, which writes into the folder.

    Raises RequestError (engine-lacks).
    """
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={plan.world_size}"]
    return [*torchrun, "-m", "xfuser.runner", *xdit.arguments(recipe, plan), "--output_directory", str(folder)]


def ready(recipe: Recipe, plan: Plan, outputs: Outputs) -> tuple[Recipe, Path]:
    """The recipe with a seed, and the video's path, once this machine can do it.

    Raises RequestError: engine-lacks, engine-output, engine-place, engine-missing, and what check_outputs and
    check_machine raise.
    """
    _check(recipe, plan, outputs)
    request = recipe.request
    seed = seed_of(request)
    video = outputs.video or default_name(request.prompt or "", seed)
    check_outputs(outputs, video)
    check_machine(plan, device_of("cuda"))
    return replace(recipe, request=replace(request, seed=seed)), video


def _check(recipe: Recipe, plan: Plan, outputs: Outputs) -> None:
    """What this engine cannot be asked."""
    xdit.arguments(recipe, plan)
    for name in ("latents", "report", "preview"):
        if (path := getattr(outputs, name)) is not None:
            raise RequestError.told(
                "engine-output", f"--{name} {path}: xDiT writes the video only", tries=[{name: None}]
            )
    if environment.joined_rank() is not None:
        raise RequestError.told(
            "engine-place", "--engine xfuser starts its own ranks; start it without torchrun or srun"
        )
    if not is_installed("xfuser"):
        raise RequestError.told(
            "engine-missing", "--engine xfuser needs the module xfuser", tries=["pip install 'hybridgen[xfuser]'"]
        )


def run(recipe: Recipe, plan: Plan, video: Path) -> None:
    """Make the clip. What xDiT prints goes to stderr. Raises RunFailed (engine-failed)."""
    with tempfile.TemporaryDirectory(prefix=f".{video.name}.", dir=video.absolute().parent) as folder:
        words = command(recipe, plan, Path(folder))
        process = subprocess.Popen(words, stdout=sys.stderr.fileno(), start_new_session=True)
        try:
            code = process.wait()
        finally:
            _end(process)
        made = sorted(Path(folder).glob("*.mp4"))
        if code or len(made) != 1:
            what = f"ended with exit code {code}" if code else f"left {len(made)} videos"
            raise RunFailed("engine-failed", f"xDiT {what}; its own messages stand above")
        os.replace(made[0], video)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the runner and all its ranks, which are a session of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
