"""Clips that rank 0 of a joined job hands to the ranks of a replica in the store, and what comes back. No torch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hybridgen.distributed.place import JoinedRank
from hybridgen.distributed.processes import RankContext
from hybridgen.distributed.progress import Event
from hybridgen.engine.control import Orders
from hybridgen.engine.inputs import Conditioning, opened_again
from hybridgen.engine.job import PARTS, Job
from hybridgen.engine.launch import clean_up
from hybridgen.engine.report import PARTS as REPORT_PARTS
from hybridgen.engine.report import Report
from hybridgen.engine.signed import await_key, signed, verified
from hybridgen.errors import RunFailed


@dataclass(frozen=True)
class Ended:
    """How a clip ended on a replica."""

    report: Report | None = None
    size: int = 0
    """Bytes of the clip's file."""
    failure: tuple[str, str] | None = None
    """Rule and message of what all ranks found wrong with it; None for one that was cancelled."""
    notes: tuple[str, ...] = ()
    """What was kept."""

    PARTS: ClassVar[tuple[type, ...]] = ()
    """All that it may be made of."""


Ended.PARTS = (Ended, *REPORT_PARTS)


class StoreOrders(Orders):
    """The orders of a rank of a joined job: they come through the store, and the first rank of a replica answers."""

    def __init__(self, context: RankContext, here: JoinedRank, store: Any, index: int) -> None:
        """context: this rank in its replica, which has the number `index`. store: that of the orders."""
        super().__init__(context)
        self.here, self.store_of_orders, self.index = here, store.clone(), index
        self.cancels = store.clone()  # a connection that no wait holds up
        self.job: Job | None = None
        """The clip that is made now."""
        self.hear: Callable[[Event | Ended], None] | None = None
        """Takes what is said on rank 0, whose own threads hear it."""
        self.inputs: dict[int, Conditioning] = {}
        """Opened files of clips, by number, on rank 0."""

    def jobs(self) -> Iterator[Job]:
        number = 0
        if self.context.rank == 0 and self.hear is None:
            threading.Thread(target=self._await_cancels, daemon=True).start()
        while True:
            self.job, number = None, number + 1
            self.context.status.set("waiting for a clip")
            job = verified(self.here, await_key(self.store_of_orders, f"{self.index}/order/{number}"), PARTS)
            if job is None:
                return
            if not isinstance(job, Job):
                raise RunFailed("launcher", "the store holds something else than a job")
            self.number, self.job = number, self._with_inputs(job, number)
            yield self.job

    def _with_inputs(self, job: Job, number: int) -> Job:
        """The job with its pictures, on the rank that encodes them."""
        if self.context.rank:
            return job
        opened = self.inputs.pop(number, None)
        return replace(job, inputs=opened or opened_again(job.inputs, job.plan.facts, job.plan.clip))

    def say(self, kind: str, thing: Any = None) -> None:
        if self.context.rank or self.job is None:
            return
        if kind == "event":
            if self.hear is not None:
                self.hear(thing)
            return
        ended = self._ended(kind, thing)
        self.job = None
        if self.hear is not None:
            self.hear(ended)
        else:
            self.cancels.set(f"{self.index}/said/{self.number}", signed(self.here, ended))

    def _ended(self, kind: str, thing: Any) -> Ended:
        if kind == "done":
            return Ended(thing, thing.output.stat().st_size)
        return Ended(failure=thing, notes=tuple(self.kept(self.here.rank)))

    def kept(self, first: int) -> list[str]:
        """Remove what is unfinished of the clip that is made, and tell what is kept.

        first: the rank that ended first; where that is the one which writes, its files may be on this machine.
        """
        head = self.here.rank - self.context.rank
        job = self.job
        return clean_up(job, self.context.status, head) if job and head in (self.here.rank, first) else []

    def _listen(self) -> None:
        """A thread listens."""

    def _await_cancels(self) -> None:
        """Thread of a replica's first rank: take in which clips are cancelled."""
        number, store = 0, self.cancels.clone()
        with suppress(RuntimeError):
            while True:
                number += 1
                self.cancelled = int(await_key(store, f"{self.index}/cancel/{number}"))
