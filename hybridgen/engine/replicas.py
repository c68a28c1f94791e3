"""Replicas: groups of ranks that are alike, each with the whole model, and make the clips of one queue. No torch."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hybridgen.distributed.progress import Event
from hybridgen.engine.job import Job
from hybridgen.engine.options import Limits
from hybridgen.engine.resident import Place, Resident
from hybridgen.engine.tickets import Ticket
from hybridgen.engine.waiting import TRIES, Queue


class Replicas:
    """Ranks of this machine in one or more replicas, and the queue of clips that they make.

    A replica starts when there is a clip for it. If one of its ranks fails, the clip that it made goes back to the
    front of the queue; a clip whose ranks were lost TRIES times fails.
    """

    def __init__(
        self,
        count: int = 1,
        limits: Limits = Limits(),
        start_method: str | None = None,
        warn: Callable[[str], None] = lambda text: None,
        on_event: Callable[[Ticket, Event], None] = lambda ticket, event: None,
        fail_fast: bool = False,
    ) -> None:
        """warn: is given warnings about ranks; on_event: is told of every event of every clip, in a thread.

        fail_fast: whether a clip fails with its ranks, and is not made again.
        """
        self.queue = Queue(1 if fail_fast else TRIES, on_event)
        starting = threading.Lock()
        places = [Place(index, count, starting) for index in range(count)]
        self.residents = [Resident(self.queue, place, limits, start_method, warn) for place in places]
        self.queue.takers += self.residents
        for resident in self.residents:
            resident.thread.start()

    def submit(self, job: Job) -> Ticket:
        """Ask for a clip. Every clip has the same Job.setup. Raises RunFailed (engine-closed)."""
        return self.queue.submit(job)

    def preempt(self) -> None:
        """Have the clips that are made keep their state and end; those that wait fail."""
        self.queue.preempt()
        for resident in self.residents:
            if (ranks := resident.ranks) is not None:
                ranks.status.warn()

    def close(self, at_once: bool = False) -> None:
        """End the ranks, after the clips that were asked for, or at once; then the remaining clips fail."""
        self.queue.close(at_once)
        for resident in self.residents:
            resident.thread.join()
        self.queue.give_up()
