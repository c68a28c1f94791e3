"""Start a job's ranks on this machine, or join those that another launcher started."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from hybridgen.distributed.processes import GRACE, LINE, RankContext, Status, cause_of, run_local
from hybridgen.engine import environment
from hybridgen.engine.job import LATENTS_DONE, Job
from hybridgen.engine.report import Report
from hybridgen.engine.video import remove_parts
from hybridgen.errors import RunFailed

IMPORTS = "hybridgen.engine.imports"
"""Module that imports what ranks need."""


def launch(job: Job, start_method: str | None = None) -> Report:
    """Run the job and return rank 0's report, on every rank of a joined job.

    Raises RequestError before any rank starts, and RunFailed naming the first rank that failed. Interrupted or
    failed, it leaves no process and no half-written video behind; latents that were done are kept.
    """
    joined = environment.joined_rank()
    if joined is not None:
        return _join(job, joined)
    from hybridgen.models.load import local_folder

    local_folder(job.plan.facts)  # a download belongs to no rank
    # Forked ranks share what this process has imported. CUDA does not survive a fork, so GPU ranks start afresh.
    method = start_method or ("fork" if job.device == "cpu" else "spawn")
    if method == "fork":
        import_module(IMPORTS)
    kept: list[str] = []

    def clean_up(folder: Path) -> None:
        remove_parts(job.parts)
        kept.extend(_kept_latents(folder))

    try:
        others = [partial(_work, job=job.without_images())] * (job.plan.world_size - 1)
        ranks = [partial(_work, job=job), *others]
        reports = run_local(len(ranks), ranks, start_method=method, preload=[IMPORTS], on_exit=clean_up)
    except RunFailed as failure:
        failure.notes += tuple(kept)
        raise
    except KeyboardInterrupt as interrupt:
        for note in kept:
            interrupt.add_note(note)
        raise
    report: Report = reports[0]
    return report


def _work(context: RankContext, job: Job) -> Report:
    """Run worker.work, imported on the rank."""
    if job.device == "cpu":
        import_module(IMPORTS)  # ranks that were forked have it
    from hybridgen.engine.worker import work

    return work(context, job)


def _kept_latents(folder: Path) -> list[str]:
    """Tell the user where the final latents are that a failed run left behind.

    `folder` is the ranks' own: the mark in it says where they are, once they are complete.
    """
    mark = folder / LATENTS_DONE
    path = Path(mark.read_text()) if mark.exists() else None
    return [f"kept: {path} (the final latents)"] if path is not None and path.exists() else []


def _join(job: Job, joined: environment.JoinedRank) -> Report:
    """Run as one rank of a job that torchrun or srun started."""
    rank, world = joined.rank, joined.world
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torch.distributed.distributed_c10d import PrefixStore

    serves = rank == 0 and not joined.agent_serves
    store = None
    if world > 1:
        # An agent's store outlives a restart of the ranks; what a lost attempt wrote must not be read.
        store = PrefixStore(f"hybridgen/{joined.attempt}", TCPStore(joined.address, joined.port, world, serves))
    status = Status(bytearray(LINE), 0)
    with tempfile.TemporaryDirectory(prefix="hybridgen-") as name:
        context = RankContext(rank, world, joined.local_rank, Path(name), status, store)
        try:
            job = _agree(job, rank, store)
            return _work(context, job)
        except Exception as error:  # whatever ends a rank is reported once
            cause = cause_of(error, rank, status.read(0))
            if (cause.rule and rank) or (cause.secondary and not _first_to_report(store)):
                _leave(1)
            raise cause.failure(world, tuple(_kept_latents(Path(name)))) from error
        finally:
            if rank == 0:
                remove_parts(job.parts)


def _first_to_report(store: Any) -> bool:
    """Whether this rank, which lost a peer, reports it; the rank with the cause gets a moment to report first."""
    time.sleep(GRACE)
    try:
        return int(store.add("reports", 1)) == 1
    except RuntimeError:  # rank 0 served the store, and is gone: better said twice than not at all
        return True


def _leave(code: int) -> None:
    """Exit without unwinding, because a process group's destructor may wait for peers that are gone."""
    sys.stderr.flush()
    os._exit(code)


def _agree(job: Job, rank: int, store: Any) -> Job:
    """Give every rank rank 0's job, so that what was drawn (seed, file name) is the same everywhere."""
    if store is None:
        return job
    if rank == 0:
        store.set("job", pickle.dumps(job.without_images()))
        return job
    agreed = pickle.loads(store.get("job"))
    assert isinstance(agreed, Job)
    return agreed
