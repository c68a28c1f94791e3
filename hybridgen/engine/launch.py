"""Start a job's ranks on this machine, or join those that another launcher started."""

from __future__ import annotations

import shlex
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from hybridgen.distributed.board import in_time
from hybridgen.distributed.claims import remove_stale
from hybridgen.distributed.joined import Peers
from hybridgen.distributed.lookout import Lookout, say
from hybridgen.distributed.place import JoinedRank
from hybridgen.distributed.processes import RankContext, run_local
from hybridgen.distributed.signals import Stopped, warned
from hybridgen.distributed.status import Status
from hybridgen.engine import environment
from hybridgen.engine.job import CLIP_DONE, LATENTS_DONE, PARTS, STATE_KEPT, Job
from hybridgen.engine.options import Limits
from hybridgen.engine.outputs import remove_parts
from hybridgen.engine.report import Report
from hybridgen.engine.signed import await_key, signed, verified
from hybridgen.errors import RunFailed, counted

STORE = 2.0
"""Seconds to ask the store what rank 0 has finished, where it is gone."""
IMPORTS = "hybridgen.engine.imports"
"""Module that imports what ranks need."""


def launch(
    job: Job | None, start_method: str | None = None, limits: Limits = Limits(), early: Lookout = Lookout()
) -> Report:
    """Run the job and return rank 0's report, on every rank of a joined job.

    job: None on a rank other than 0 of a joined job that cannot make it; it then takes rank 0's.
    early: a lookout that began before the job was made.

    Raises RequestError before any rank starts, and RunFailed naming the first rank that failed. Interrupted or
    failed, it leaves no process and no half-written video behind; latents that were done are kept.
    """
    joined = environment.joined_rank()
    if joined is not None:
        return _join(job, joined, limits, early)
    assert job is not None
    from hybridgen.models.load import local_folder

    local_folder(job.plan.facts)  # a download belongs to no rank
    # Forked ranks share what this process has imported. CUDA does not survive a fork, so GPU ranks start afresh.
    method = start_method or ("fork" if job.device == "cpu" else "spawn")
    if method == "fork":
        import_module(IMPORTS)
    kept: list[str] = []
    others = [partial(_work, job=job.without_images())] * (job.plan.world_size - 1)
    status = Status(job.plan.world_size)
    try:
        with warned(job.warning, status.warn):
            reports = run_local(
                job.plan.world_size,
                [partial(_work, job=job), *others],
                start_method=method,
                preload=[IMPORTS],
                hang_timeout=limits.hang,
                warn=lambda text: say(f"warning: {text}"),
                on_exit=lambda status: kept.extend(clean_up(job, status)),
                status=status,
            )
    except RunFailed as failure:
        failure.notes += tuple(kept)
        raise
    except (KeyboardInterrupt, Stopped) as interrupt:
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


def clean_up(job: Job, status: Status, rank: int = 0) -> list[str]:
    """Remove what is unfinished, and tell what the rank that writes the clip has finished and left behind."""
    remove_parts(job.parts)
    remove_stale({path.absolute().parent for path in job.files})
    marks, notes = status.marks(rank), []
    with suppress(OSError):
        if CLIP_DONE in marks and Path(marks[CLIP_DONE]).exists():
            notes.append(f"the clip is complete: {marks[CLIP_DONE]}")
    with suppress(OSError):
        if LATENTS_DONE in marks and Path(marks[LATENTS_DONE]).exists():
            command = "" if notes else f"; hybridgen decode {shlex.quote(marks[LATENTS_DONE])} makes the clip of them"
            notes.append(f"kept: {marks[LATENTS_DONE]} (the final latents){command}")
    if not notes and STATE_KEPT in marks:
        done, _, state = marks[STATE_KEPT].partition(" ")
        with suppress(OSError):
            if Path(state).exists():
                after = f"the state after {counted(int(done), 'step')}"
                notes.append(f"kept: {state} ({after}); the same command with --resume goes on")
    return notes


def _join(job: Job | None, here: JoinedRank, limits: Limits, early: Lookout) -> Report:
    """Run as one rank of a job that torchrun or srun started."""
    status = Status(here.world, here.rank)
    if here.world == 1:
        assert job is not None
        return _alone(job, RankContext(0, 1, here.local_rank, status))
    from hybridgen.distributed import rendezvous

    store = rendezvous.meet(here, early.tell, limits.join)
    context = RankContext(here.rank, here.world, here.local_rank, status, store=store)

    agreed = [] if job is None or here.rank else [job]

    def kept(first: int) -> list[str]:
        files = agreed and (here.rank == 0 or first == 0)  # where rank 0 is gone, its files may be on this machine
        if files and here.rank:
            for name, text in (in_time(lambda: peers.board.marks(0), STORE) or {}).items():
                status.of(0).mark(name, text)
        return clean_up(agreed[0], status) if files else []

    peers = Peers(here, context, limits.hang, kept)
    peers.start()
    early.met()
    try:
        agreed[:] = [_agree(job, here, store)]
        with warned(agreed[0].warning, status.warn):
            report = _work(context, agreed[0])
    except BaseException as error:  # noqa: BLE001 - whatever ends a rank is told to the others
        peers.failed(error)
    peers.finish()
    return report


def _alone(job: Job, context: RankContext) -> Report:
    """Run as the only rank of a joined job."""
    try:
        with warned(job.warning, context.status.warn):
            return _work(context, job)
    except BaseException as error:
        notes = clean_up(job, context.status)
        if isinstance(error, (KeyboardInterrupt, Stopped)):
            for note in notes:
                error.add_note(note)
            raise
        from hybridgen.distributed.status import cause_of

        raise cause_of(error, 0, context.status.read(0)).failure(1, tuple(notes)) from error


def _agree(job: Job | None, here: JoinedRank, store: Any) -> Job:
    """Give every rank rank 0's job, so that what was drawn (seed, file name) is the same everywhere.

    Raises RunFailed (launcher) for a job that is not signed with the ranks' secret, where they have one.
    """
    if here.rank == 0:
        assert job is not None
        store.set("job", signed(here, job.without_images()))
        return job
    agreed = verified(here, await_key(store, "job"), like=job or PARTS)
    if not isinstance(agreed, Job):
        raise RunFailed("launcher", "the store holds something else than a job")
    return agreed
