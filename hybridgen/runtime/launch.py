"""Start a job's ranks on this machine, or join those that another launcher started."""

from __future__ import annotations

import os
import pickle
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from hybridgen.errors import RequestError, RunFailed
from hybridgen.job import Job
from hybridgen.request import joined
from hybridgen.runtime.ranks import LINE, RankContext, Status, cause_of, run_local
from hybridgen.runtime.video import remove_parts


def launch(job: Job, start_method: str | None = None) -> dict[str, Any] | None:
    """Run the job; the report, or None on ranks of a joined job other than the first.

    Raises RequestError before any rank starts, and RunFailed naming the first rank that failed. Interrupted or
    failed, it leaves no process and no half-written video behind; latents that were done are kept.
    """
    if joined():
        return _join(job)
    from hybridgen.models.wan_load import local_folder

    local_folder(job.plan.facts.source)  # a download belongs to no rank
    # Ranks share what this process has imported. CUDA does not survive a fork, so GPU ranks start afresh.
    method = start_method or ("fork" if job.device == "cpu" else "spawn")
    _import_once()
    try:
        reports = run_local(
            job.plan.world_size, _Work(job), start_method=method, on_exit=lambda: remove_parts(job.output)
        )
    except RunFailed as failure:
        failure.notes += _kept_latents(job)
        raise
    except KeyboardInterrupt as interrupt:
        for note in _kept_latents(job):
            interrupt.add_note(note)
        raise
    report: dict[str, Any] = reports[0]
    return report


class _Work:
    """work(context, job) as something that can be sent to a new process."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self, context: RankContext) -> dict[str, Any] | None:
        from hybridgen.runtime.worker import work

        return work(context, self.job)


def _import_once() -> None:
    """Import what ranks need, in the process they are forked from; attribute access is what imports the parts."""
    import diffusers
    import transformers

    from hybridgen.runtime import worker

    assert diffusers.WanPipeline and transformers.UMT5EncoderModel and worker


def _kept_latents(job: Job) -> tuple[str, ...]:
    """A note on the final latents, if they were done before the run ended."""
    return (f"kept: {job.latents_file} (the final latents)",) if job.latents_file.exists() else ()


def _join(job: Job) -> dict[str, Any] | None:
    """Be one rank of a job that torchrun or srun started."""
    rank, world = _place()
    if world != job.plan.world_size:
        raise RequestError(
            "world-size",
            f"the launcher started {world} ranks and the plan has {job.plan.world_size} ({job.plan.degrees}); "
            "they must be equal",
        )
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from hybridgen.runtime.worker import work

    env = os.environ
    serves = rank == 0 and env.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # else torchrun's agent does
    store = TCPStore(env["MASTER_ADDR"], int(env["MASTER_PORT"]), world, serves) if world > 1 else None
    status = Status(bytearray(LINE), 0)
    with tempfile.TemporaryDirectory(prefix="hybridgen-") as folder:
        try:
            return work(RankContext(rank, world, Path(folder), status, store), _agree(job, rank, store))
        except Exception as error:  # noqa: BLE001 - whatever ends a rank is reported once, by the rank it began with
            cause = cause_of(error, rank, status.read(0))
            if rank == 0:
                remove_parts(job.output)
            if cause.secondary:
                sys.exit(1)
            raise cause.failure(world, _kept_latents(job)) from error


def _place() -> tuple[int, int]:
    """This process's rank and the number of ranks; sets what torch.distributed reads under srun."""
    env = os.environ
    if {"RANK", "WORLD_SIZE"} <= env.keys():
        return int(env["RANK"]), int(env["WORLD_SIZE"])
    env.setdefault("MASTER_ADDR", first_host(env.get("SLURM_STEP_NODELIST", env.get("SLURM_NODELIST", "localhost"))))
    job, step = int(env.get("SLURM_JOB_ID", "0")), int(env.get("SLURM_STEP_ID", "0") or 0)
    env.setdefault("MASTER_PORT", str(20000 + (job * 31 + step) % 20000))
    return int(env["SLURM_PROCID"]), int(env["SLURM_STEP_NUM_TASKS"])


def first_host(nodes: str) -> str:
    """The first name in a Slurm host list: "gpu[03-07,11],login" -> "gpu03"."""
    match = re.match(r"([^,\[]+)(?:\[([^\]]+)\])?", nodes)
    assert match, nodes
    return match[1] + (re.split(r"[-,]", match[2])[0] if match[2] else "")


def _agree(job: Job, rank: int, store: Any) -> Job:
    """Every rank takes rank 0's job, so that what was drawn (seed, file name) is the same everywhere."""
    if store is None:
        return job
    if rank == 0:
        store.set("hybridgen/job", pickle.dumps(job))
    agreed = pickle.loads(store.get("hybridgen/job"))
    assert isinstance(agreed, Job)
    return agreed
