"""The clips that wait for ranks, and what all ranks of a queue must know of each other. No torch."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hybridgen.distributed.progress import Event
from hybridgen.engine.job import Job
from hybridgen.engine.tickets import Ticket
from hybridgen.errors import PREEMPTED, RunFailed

TRIES = 2
"""Times that a clip is begun on ranks that are then lost, before it fails."""
REASONS = {
    "cancelled": "the clip was cancelled",
    "engine-closed": "the engine was closed before the clip was made",
    PREEMPTED: "the job was ended before the clip was begun",
}


def failure_of(rule: str) -> RunFailed:
    """The error of a clip that was cancelled, or was left when its engine closed."""
    return RunFailed(rule, REASONS[rule])


class Taker(Protocol):
    """Ranks that take clips from a queue."""

    @property
    def is_ready(self) -> bool:
        """Whether the ranks are there, and wait for a clip."""

    @property
    def has_ranks(self) -> bool:
        """Whether the ranks are there."""

    def wake(self) -> None:
        """Have the ranks look at the queue."""

    def cancel(self, ticket: Ticket) -> bool:
        """Cancel a clip if it is made here; returns whether the ranks end it themselves, and not at once."""


@dataclass
class Queue:
    """Clips that wait, in the order in which they are made. Every method may be called from any thread."""

    tries: int = TRIES
    on_event: Callable[[Ticket, Event], None] = lambda ticket, event: None
    waiting: deque[Ticket] = field(default_factory=deque)
    takers: list[Taker] = field(default_factory=list)
    closing: bool = False
    """Whether no more clips may be asked for."""
    preempted: bool = False
    """Whether those that are made keep their state, and end."""
    aborted: bool = False
    """Whether those that were asked for are given up."""
    owner: int = field(default_factory=os.getpid)
    """The process in which threads take clips."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    """Guards all of these, and is notified when they change."""

    def submit(self, job: Job) -> Ticket:
        """Ask for a clip. Every clip of a queue has the same Job.setup. Raises RunFailed (engine-closed)."""
        if os.getpid() != self.owner:  # where nobody takes clips, and a lock may be held for ever
            problem = f"the engine belongs to process {self.owner}; this one, which was forked from it, needs its own"
            raise RunFailed("engine-closed", problem)
        ticket = Ticket(job, self.cancel, self.on_event)
        with self.changed:
            if self.closing:
                raise failure_of(PREEMPTED) if self.preempted else RunFailed("engine-closed", "the engine is closed")
            self.waiting.append(ticket)
            self.wake()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Cancel a clip, whether it waits or is made."""
        with self.changed:
            if ticket in self.waiting:
                self.waiting.remove(ticket)
                self.wake()
            elif any(taker.cancel(ticket) for taker in self.takers):
                return
        ticket.end("cancelled", failure=failure_of("cancelled"))

    def close(self, at_once: bool) -> None:
        """Take no more clips; with `at_once`, give up those that wait or are made."""
        with self.changed:
            self.closing, self.aborted = True, self.aborted or at_once
            self.wake()

    def preempt(self) -> None:
        """Take no more clips, and give up those that wait, because this process will be ended."""
        with self.changed:
            self.closing = self.preempted = True
            waiting, self.waiting = self.waiting, deque()
            self.wake()
        for ticket in waiting:
            ticket.end("failed", failure=failure_of(PREEMPTED))

    def wake(self) -> None:
        """Have all ranks look at the queue."""
        self.changed.notify_all()
        for taker in self.takers:
            taker.wake()

    def take(self, taker: Taker) -> Ticket | None:
        """The next clip for these ranks.

        A clip whose ranks were lost is left to others, where there are any. Ranks that must be started first leave
        clips to those that are ready.
        """
        with self.changed:
            ready = sum(one.is_ready for one in self.takers if one is not taker)
            others = any(one.has_ranks for one in self.takers if one is not taker)
            fit = [ticket for ticket in self.waiting if not (others and ticket.lost_on is taker)]
            if not fit or (not taker.has_ranks and len(self.waiting) <= ready):
                return None
            self.waiting.remove(fit[0])
            if self.closing:
                self.wake()  # others may have waited for this one
            return fit[0]

    def is_over(self) -> bool:
        """Whether nothing is left to take."""
        return self.aborted or (self.closing and not self.waiting)

    def lost(self, ticket: Ticket, failure: BaseException, taker: Taker, marks: Mapping[str, str]) -> bool:
        """Put a clip back whose ranks were lost; returns whether it is made again. marks: what their rank 0 left."""
        with self.changed:
            ticket.tries += 1
            if self.aborted or ticket.tries >= self.tries or ticket.done:
                return False
            ticket.again(taker, marks)
            self.waiting.appendleft(ticket)
        ticket.tell(Event("lost", failure.message if isinstance(failure, RunFailed) else str(failure)))
        return True

    def give_up(self) -> None:
        """End the clips that still wait."""
        for ticket in self._all():
            ticket.end("failed", failure=failure_of("engine-closed"))

    def _all(self) -> Iterable[Ticket]:
        with self.changed:
            found, self.waiting = list(self.waiting), deque()
        return found
