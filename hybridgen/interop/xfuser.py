"""Running a plan with xDiT's own runner: one process per GPU under torchrun, on this machine. No torch here.

Needs the extra `xfuser`. The runner's video is moved to its place; nothing else that it writes is kept.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hybridgen.distributed.lookout import Lookout
from hybridgen.engine import environment
from hybridgen.engine.inputs import Conditioning
from hybridgen.engine.job import Job
from hybridgen.engine.machine import check_machine, device_of
from hybridgen.engine.options import Limits
from hybridgen.engine.outputs import Outputs, check_outputs, default_name
from hybridgen.engine.prepare import check_prompt, negative_prompt
from hybridgen.engine.report import Report
from hybridgen.errors import RequestError, RunFailed
from hybridgen.interop import xdit
from hybridgen.plan.kernels import Kernel, is_installed
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


@dataclass(frozen=True)
class XfuserJob(Job):
    """A clip to be made by xDiT's runner from the recipe."""

    recipe: Recipe = field(default_factory=Recipe)


def make_job(
    recipe: Recipe, plan: Plan, outputs: Outputs, inputs: Conditioning = Conditioning(), quiet: bool = False
) -> XfuserJob:
    """The job of a recipe with a seed, once this machine can do it.

    Raises RequestError: engine-lacks, engine-output, engine-place, engine-missing, and what check_outputs and
    check_machine raise.
    """
    check_prompt(recipe, plan)
    _check(recipe, plan, outputs)
    request = recipe.request
    assert request.prompt is not None and request.seed is not None
    video = outputs.video or default_name(request.prompt, request.seed)
    check_outputs(outputs, video)
    check_machine(plan, device_of("cuda"))
    kernel = Kernel(recipe.runtime.attention or "auto", ("cuda",), (plan.dtype,))
    negative = negative_prompt(request, plan)
    return XfuserJob(
        plan, kernel, "cuda", request.prompt, negative, request.seed, video, inputs, quiet=quiet, recipe=recipe
    )


def _check(recipe: Recipe, plan: Plan, outputs: Outputs) -> None:
    """Raise RequestError for what this engine cannot do."""
    xdit.arguments(recipe, plan)
    for name in ("latents", "report", "preview", "preview_every"):
        if (path := getattr(outputs, name)) is not None:
            name = name.replace("_", "-")
            raise RequestError("engine-output", name, path, "xDiT writes the video only", tries=[{name: None}])
    if environment.joined_rank() is not None:
        problem = "starts its own ranks and cannot join those of torchrun or srun"
        raise RequestError("engine-place", "engine", "xfuser", problem, "without torchrun or srun", [])
    if not is_installed("xfuser"):
        tries = ["pip install 'hybridgen[xfuser]'"]
        raise RequestError("engine-missing", "engine", "xfuser", "the module xfuser is not installed", tries=tries)


def launch(
    job: XfuserJob, start_method: str | None = None, limits: Limits = Limits(), early: Lookout = Lookout()
) -> Report:
    """Make the clip; the report has no traffic, memory or stages. xDiT's output goes to stderr.

    All but the job is ignored, because torchrun starts the processes.

    Raises RunFailed (engine-failed).
    """
    started, video = time.perf_counter(), job.output
    with tempfile.TemporaryDirectory(prefix=f".{video.name}.", dir=video.absolute().parent) as folder:
        words = command(job.recipe, job.plan, Path(folder))
        process = subprocess.Popen(words, stdout=sys.stderr.fileno(), start_new_session=True)
        try:
            code = process.wait()
        finally:
            _end(process)
        made = sorted(Path(folder).glob("*.mp4"))
        if code or len(made) != 1:
            what = f"ended with exit code {code}" if code else f"left {len(made)} videos"
            raise RunFailed("engine-failed", f"xDiT {what}; its own messages are above")
        made[0].replace(video)
    return job.report({"total": time.perf_counter() - started}, [], [], "")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the runner and all its ranks, which form their own session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
