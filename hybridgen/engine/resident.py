"""Ranks of this machine that stay: they load a model once, and make the clips of a queue with it. No torch.

A thread of its own starts the ranks, hears them and gives them the next clip. It lives as long as they do, since the
kernel ends processes with the thread that started them. Ranks that wait for a clip, and the thread, take no CPU time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
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
from hybridgen.errors import RunFailed

REASONS = {"cancelled": "the clip was cancelled", "engine-closed": "the engine was closed before the clip was made"}


class _Closed(Exception):
    """The ranks are to be ended at once."""


class Resident:
    """The ranks, and the queue of clips that they make one after the other.

    A rank that fails ends the clip that is made, and all ranks; the next clip starts them again.
    """

    def __init__(
        self,
        limits: Limits = Limits(),
        start_method: str | None = None,
        warn: Callable[[str], None] = lambda text: None,
        on_event: Callable[[Ticket, Event], None] = lambda ticket, event: None,
    ) -> None:
        """warn: is given warnings about the ranks; on_event: is told of every event of every clip, in the thread."""
        self.limits, self.start_method, self.warn, self.on_event = limits, start_method, warn, on_event
        self.waiting: deque[Ticket] = deque()
        self.current: Ticket | None = None
        """The clip that is made now."""
        self.number = 0
        """Number of the clip that is made now, or was made last."""
        self.ranks: Ranks | None = None
        self.closing = self.aborted = False
        self.changed = threading.Condition()
        """Guards all of these, and is notified when the queue changes."""
        self.thread = threading.Thread(target=self._keep, name="hybridgen ranks", daemon=True)
        self.thread.start()

    def submit(self, job: Job) -> Ticket:
        """Ask for a clip. Every clip of these ranks has the same Job.setup. Raises RunFailed (engine-closed)."""
        ticket = Ticket(job, self.cancel, self.on_event)
        with self.changed:
            if self.closing:
                raise RunFailed("engine-closed", "the engine is closed")
            self.waiting.append(ticket)
            self._wake()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Cancel a clip, whether it waits or is made."""
        with self.changed:
            if ticket in self.waiting:
                self.waiting.remove(ticket)
            elif ticket is self.current and self.ranks is not None:
                self.ranks.send(0, self.number)
                return
        ticket.end("cancelled", failure=RunFailed("cancelled", REASONS["cancelled"]))

    def close(self, at_once: bool = False) -> None:
        """End the ranks, after the clips that were asked for, or at once; then the remaining clips fail."""
        with self.changed:
            self.closing, self.aborted = True, self.aborted or at_once
            self._wake()
        self.thread.join()

    def _wake(self) -> None:
        self.changed.notify_all()
        if self.ranks is not None:
            self.ranks.ring()

    def _keep(self) -> None:
        """The thread: hold ranks while there are clips to make, until the engine is closed."""
        while self._wait():
            with suppress(_Closed):
                self._hold()
        while self.waiting:
            self.waiting.popleft().end("failed", failure=RunFailed("engine-closed", REASONS["engine-closed"]))

    def _wait(self) -> bool:
        """Wait, while there are no ranks, for a clip; returns whether there is one to make."""
        with self.changed:
            self.changed.wait_for(lambda: self.waiting or self.closing)
            return bool(self.waiting) and not self.aborted

    def _hold(self) -> None:
        """Start ranks for the next clip, and watch them until they end."""
        job = self.waiting[0].job
        world, method = job.plan.world_size, self.start_method or ("fork" if job.device == "cpu" else "spawn")
        if method == "fork":
            import_module(IMPORTS)
        ranks = Ranks(Status(world), hear=self._heard, answer=self._next)
        failure: BaseException | None = None
        try:
            start(ranks, [_stay] * world, method, [IMPORTS])
            with self.changed:
                self.ranks = ranks
            self._next()
            watch(ranks, None, self.limits.hang, self.warn)
        except _Closed:
            failure = RunFailed("engine-closed", REASONS["engine-closed"])
            raise
        except Exception as error:  # noqa: BLE001 - whatever ends the ranks is the clip's failure
            failure = error
        finally:
            with self.changed:
                if self.current is None and isinstance(failure, Exception) and not self.aborted and self.waiting:
                    self.current = self.waiting.popleft()  # which could not be started
                self.ranks, ticket, self.current = None, self.current, None
            with dropped():
                ranks.kill()
                if ticket is not None:
                    self._failed(ticket, failure, ranks.status)
                ranks.status.close()

    def _next(self) -> None:
        """Give the ranks the next clip, if they have none; or the order to end. Raises _Closed."""
        with self.changed:
            ranks, ticket = self.ranks, None
            if self.aborted:
                raise _Closed
            if ranks is None or self.current is not None:
                return
            if self.waiting:
                self.current = ticket = self.waiting.popleft()
                self.number += 1
            ranks.idle = ticket is None and not self.closing
        if ticket is not None:
            ticket.tell(Event("begin"))
            ranks.send(0, (self.number, ticket.job))
            for rank in range(1, ranks.world):
                ranks.send(rank, (self.number, ticket.job.without_images()))
        elif self.closing:
            for rank in range(ranks.world):
                ranks.send(rank, None)

    def _heard(self, rank: int, said: tuple[str, int, Any]) -> None:
        """Take in what rank 0 says of the clip that is made."""
        kind, _, thing = said
        ticket, ranks = self.current, self.ranks
        assert ticket is not None and ranks is not None
        if kind == "event":
            ticket.tell(thing)
            return
        with self.changed:
            self.current = None
        if kind == "done":
            ticket.end("done", report=thing)
        elif kind == "cancelled":
            self._failed(ticket, RunFailed("cancelled", REASONS["cancelled"]), ranks.status, kind)
        else:
            self._failed(ticket, RunFailed(*thing), ranks.status)
        self._next()

    def _failed(self, ticket: Ticket, failure: BaseException | None, status: Status, kind: str = "failed") -> None:
        """Remove what a clip left unfinished, and end its ticket."""
        kept = tuple(clean_up(ticket.job, status))
        if isinstance(failure, RunFailed):
            failure.notes += kept
        ticket.end(kind, failure=failure or RunFailed("engine-closed", REASONS["engine-closed"]))


def _stay(context: RankContext) -> None:
    """Run worker.stay, imported on the rank."""
    from hybridgen.engine.worker import stay

    stay(context)
