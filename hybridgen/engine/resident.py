"""Ranks of this machine that stay: they load a model once, and make clips of a queue with it. No torch.

A thread of its own starts the ranks, hears them and gives them the next clip. It lives as long as they do, since the
kernel ends processes with the thread that started them. Ranks that wait for a clip, and the thread, take no CPU time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from hybridgen.distributed.processes import RankContext, start, watch
from hybridgen.distributed.progress import Event
from hybridgen.distributed.ranks import Ranks
from hybridgen.distributed.signals import dropped
from hybridgen.distributed.status import Status
from hybridgen.engine.job import Job
from hybridgen.engine.launch import IMPORTS, clean_up
from hybridgen.engine.options import Limits
from hybridgen.engine.tickets import Ticket
from hybridgen.engine.waiting import Queue, failure_of
from hybridgen.errors import RunFailed


@dataclass(frozen=True)
class Place:
    """Where the ranks of one of several replicas stand among the others."""

    index: int = 0
    count: int = 1
    starting: Any = field(default_factory=threading.Lock)
    """One replica is started at a time: what a new process must not see is taken away meanwhile."""

    @property
    def words(self) -> str:
        """The replica by name; "" where there is one."""
        return f"replica {self.index} of {self.count}" if self.count > 1 else ""

    def named(self, failure: BaseException) -> BaseException:
        """A failure that names the replica."""
        if isinstance(failure, RunFailed) and self.words:
            return RunFailed(failure.rule, f"{self.words}: {failure.message}", failure.notes, failure.traceback)
        return failure


class _Closed(Exception):
    """The ranks are to be ended at once."""


class Resident:
    """The ranks of one replica, which make clips of a queue one after the other.

    They start with the first clip. A rank that fails ends all of them; the next clip starts them again.
    """

    def __init__(self, queue: Queue, place: Place, limits: Limits, method: str | None, warn: Callable[[str], None]):
        """method: how ranks are started, as multiprocessing names it; warn: is given warnings about the ranks."""
        self.queue, self.place, self.limits, self.method, self.warn = queue, place, limits, method, warn
        self.current: Ticket | None = None
        """The clip that is made now."""
        self.number = 0
        """Number of the clip that is made now, or was made last."""
        self.ranks: Ranks | None = None
        self.thread = threading.Thread(target=self._keep, name=f"hybridgen {place.words or 'ranks'}", daemon=True)

    @property
    def has_ranks(self) -> bool:
        return self.ranks is not None or self.current is not None

    @property
    def is_ready(self) -> bool:
        return self.ranks is not None and self.current is None

    def wake(self) -> None:
        if self.ranks is not None:
            self.ranks.ring()

    def cancel(self, ticket: Ticket) -> bool:
        if ticket is not self.current:
            return False
        if self.ranks is None:
            self.current = None  # they are being started, and then take another
            return False
        self.ranks.send(0, self.number)
        return True

    def _keep(self) -> None:
        """The thread: hold ranks while there are clips to make, until the queue is over."""
        while self._wait():
            with suppress(_Closed):
                self._hold()

    def _wait(self) -> bool:
        """Wait, while there are no ranks, for a clip; returns whether there is one to make."""
        with self.queue.changed:
            while not self.queue.is_over():
                self.current = self.queue.take(self)
                if self.current is not None:
                    return True
                self.queue.changed.wait()
        return False

    def _hold(self) -> None:
        """Start ranks for the clip that was taken, and watch them until they end."""
        assert self.current is not None
        job = self.current.job
        ranks = Ranks(Status(job.plan.world_size), hear=self._heard, answer=self._next)
        failure: BaseException = failure_of("engine-closed")
        try:
            self._start(ranks, job)
            watch(ranks, None, self.limits.hang, self.warn)
        except _Closed:
            raise
        except Exception as error:  # noqa: BLE001 - whatever ends the ranks is the clip's failure
            failure = error
        finally:
            with self.queue.changed:
                self.ranks, ticket, self.current = None, self.current, None
            with dropped():
                ranks.kill()
                if ticket is not None:
                    self._lost(ticket, self.place.named(failure), ranks.status)
                ranks.status.close()
            with self.queue.changed:
                self.queue.wake()

    def _start(self, ranks: Ranks, job: Job) -> None:
        """Start the processes, and give them the clip that was taken."""
        world, method = ranks.world, self.method or ("fork" if job.device == "cpu" else "spawn")
        if method == "fork":
            import_module(IMPORTS)
        with self.place.starting:
            start(ranks, [_stay] * world, method, [IMPORTS], self.place.index * world)
        with self.queue.changed:
            self.ranks = ranks
            if self.current is not None:
                self._give(ranks, self.current)
                return
        self._next()

    def _next(self) -> None:
        """Give the ranks the next clip, if they have none; or the order to end. Raises _Closed."""
        with self.queue.changed:
            ranks = self.ranks
            if self.queue.aborted:
                raise _Closed
            if ranks is None or self.current is not None:
                return
            self.current = self.queue.take(self)
            if self.current is not None:
                self._give(ranks, self.current)
                return
            over = self.queue.is_over()
            ranks.idle = not over
        for rank in range(ranks.world if over else 0):
            ranks.send(rank, None)

    def _give(self, ranks: Ranks, ticket: Ticket) -> None:
        """Give the ranks a clip."""
        self.number += 1
        ranks.idle, ticket.replica = False, self.place.index
        if self.queue.preempted:
            ranks.status.warn()
        ticket.tell(Event("begin", self.place.words))
        ranks.send(0, (self.number, ticket.job))
        for rank in range(1, ranks.world):
            ranks.send(rank, (self.number, ticket.job.without_images()))

    def _heard(self, rank: int, said: tuple[str, int, Any]) -> None:
        """Take in what rank 0 says of the clip that is made."""
        kind, _, thing = said
        ticket, ranks = self.current, self.ranks
        assert ticket is not None and ranks is not None
        if kind == "event":
            ticket.tell(thing)
            return
        with self.queue.changed:
            self.current = None
        if kind == "done":
            ticket.end("done", report=thing)
        else:
            failure = failure_of("cancelled") if kind == "cancelled" else RunFailed(*thing)
            failure.notes += tuple(clean_up(ticket.job, ranks.status))
            ticket.end(kind, failure=failure)
        self._next()

    def _lost(self, ticket: Ticket, failure: BaseException, status: Status) -> None:
        """Remove what a clip left unfinished whose ranks are gone, and have it made again, or end its ticket."""
        notes = tuple(clean_up(ticket.job, status))
        if isinstance(failure, RunFailed):
            failure.notes += notes
        if not self.queue.lost(ticket, failure, self, status.marks(0)):
            ticket.end("failed", failure=failure)


def _stay(context: RankContext) -> None:
    """Run worker.stay, imported on the rank."""
    from hybridgen.engine.worker import stay

    stay(context)
