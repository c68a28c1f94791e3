"""Start a job's ranks on this machine, or join those that another launcher started."""

from __future__ import annotations

import pickle
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from hybridgen import launcher
from hybridgen.errors import RequestError, RunFailed
from hybridgen.job import Job
from hybridgen.runtime.ranks import LINE, RankContext, Status, cause_of, run_local
from hybridgen.runtime.video import remove_parts


def launch(job: Job, start_method: str | None = None) -> dict[str, Any] | None:
    """Run the job; the report, or None on ranks of a joined job other than the first.

    Raises RequestError before any rank starts, and RunFailed naming the first rank that failed. Interrupted or
    failed, it leaves no process and no half-written video behind; latents that were done are kept.
    """
    place = launcher.place()
    if place is not None:
        return _join(job, place)
    from hybridgen.models.wan_load import local_folder

    local_folder(job.plan.facts.source)  # a download belongs to no rank
    # Forked ranks share what this process has imported. CUDA does not survive a fork, so GPU ranks start afresh.
    method = start_method or ("fork" if job.device == "cpu" else "spawn")
    if method == "fork":
        _import_once()
    try:
        world, clean_up = job.plan.world_size, partial(remove_parts, job.output)
        reports = run_local(world, partial(_work, job=job), start_method=method, on_exit=clean_up)
    except RunFailed as failure:
        failure.notes += _kept_latents(job)
        raise
    except KeyboardInterrupt as interrupt:
        for note in _kept_latents(job):
            interrupt.add_note(note)
        raise
    report: dict[str, Any] = reports[0]
    return report


def _work(context: RankContext, job: Job) -> dict[str, Any] | None:
    """worker.work, imported on the rank."""
    from hybridgen.runtime.worker import work

    return work(context, job)


def _import_once() -> None:
    """Import what ranks need, in the process they are forked from; attribute access is what imports the parts."""
    import diffusers
    import transformers

    from hybridgen.runtime import worker

    assert diffusers.WanPipeline and transformers.UMT5EncoderModel and worker


def _kept_latents(job: Job) -> tuple[str, ...]:
    """A note on the final latents, if they were done before the run ended."""
    return (f"kept: {job.latents_file} (the final latents)",) if job.latents_file.exists() else ()


def _join(job: Job, place: launcher.Place) -> dict[str, Any] | None:
    """Be one rank of a job that torchrun or srun started."""
    rank, world = place.rank, place.world
    if world != job.plan.world_size:
        raise RequestError(
            "world-size",
            f"the launcher started {world} ranks and the plan has {job.plan.world_size} ({job.plan.degrees}); "
            "they must be equal",
        )
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    serves = rank == 0 and not place.agent_serves
    store = TCPStore(place.address, place.port, world, serves) if world > 1 else None
    status = Status(bytearray(LINE), 0)
    with tempfile.TemporaryDirectory(prefix="hybridgen-") as folder:
        try:
            context = RankContext(rank, world, place.local_rank, Path(folder), status, store)
            return _work(context, _agree(job, rank, store))
        except Exception as error:  # noqa: BLE001 - whatever ends a rank is reported once, by the rank it began with
            cause = cause_of(error, rank, status.read(0))
            if rank == 0:
                remove_parts(job.output)
            if cause.secondary:
                sys.exit(1)
            raise cause.failure(world, _kept_latents(job)) from error


def _agree(job: Job, rank: int, store: Any) -> Job:
    """Every rank takes rank 0's job, so that what was drawn (seed, file name) is the same everywhere."""
    if store is None:
        return job
    if rank == 0:
        store.set("hybridgen/job", pickle.dumps(job))
    agreed = pickle.loads(store.get("hybridgen/job"))
    assert isinstance(agreed, Job)
    return agreed
