"""What ranks are told between clips and between steps, apart from the groups that carry tensors.

Rank 0 says before every step whether the next one will run, in the store of the ranks, so that all of them stop at the
same step and none waits for the word. A clip that is cancelled therefore ends within two steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridgen.distributed.processes import RankContext
from hybridgen.distributed.progress import Progress
from hybridgen.engine.job import Job

GO, STOP = b"go", b"stop"


class Cancelled(Exception):
    """The clip was cancelled; all ranks raise it before the same step."""


class Control:
    """The control of a rank that makes one clip: nobody can cancel it but by ending the rank."""

    stays = False
    """Whether the rank holds its model for further clips."""
    store: Any = None
    """The ranks' key-value store; None where there is one rank."""

    def progress(self, job: Job, first: bool) -> Progress:
        """What shows the progress of a clip; rank 0 alone shows it."""
        return Progress.for_stream(job.quiet) if first else Progress()

    def is_over(self) -> bool:
        """Whether the clip ends before the next step, on all ranks; asked once before every step."""
        return False


class Orders(Control):
    """The control of a rank that stays: orders come through the pipe of its launcher, and what is told goes back."""

    stays = True

    def __init__(self, context: RankContext) -> None:
        self.context, self.number, self.cancelled = context, 0, 0
        self.steps = 0
        """Steps of the clip before which it was asked whether the clip is over."""

    def jobs(self) -> Iterator[Job]:
        """The clips to make, one after the other, until the launcher has no more. Waiting takes no CPU time."""
        assert self.context.launcher is not None
        while True:
            self.context.status.set("waiting for a clip")
            order = self.context.launcher.recv()
            if order is None:
                return
            if isinstance(order, tuple):
                (self.number, job), self.steps = order, 0
                yield job

    def progress(self, job: Job, first: bool) -> Progress:
        found = super().progress(job, first)
        if first:
            found.tell = lambda event: self.say("event", event)
        return found

    def say(self, kind: str, thing: Any = None) -> None:
        """Tell the launcher of the clip that is made: an event, or how it ended. Rank 0 speaks for all."""
        if self.context.rank == 0:
            self.context.say((kind, self.number, thing))

    def is_over(self) -> bool:
        index, self.steps = self.steps, self.steps + 1
        if self.context.rank == 0:
            self._listen()
        is_cancelled = self.cancelled == self.number
        if self.store is None:
            return is_cancelled
        if self.context.rank == 0:
            self.store.set(self._key(index + 1), STOP if is_cancelled else GO)
        over = index > 0 and self.store.get(self._key(index)) == STOP
        if self.context.rank == 0 and index > 1:
            self.store.delete_key(self._key(index - 2))
        return over

    def _key(self, index: int) -> str:
        return f"{self.number}/{index}"

    def _listen(self) -> None:
        """Take in, on rank 0, which clip was cancelled."""
        assert self.context.launcher is not None
        while self.context.launcher.poll():
            number = self.context.launcher.recv()
            assert isinstance(number, int), number
            self.cancelled = number
