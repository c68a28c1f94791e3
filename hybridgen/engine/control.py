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
from hybridgen.engine.outputs import AUTO
from hybridgen.engine.pace import Pace

GO, STOP, KEEP, END = b"go", b"stop", b"keep", b"end"
"""Orders before a step: run it; cancel the clip; keep the state and run it; keep the state and end."""


class Cancelled(Exception):
    """The clip was cancelled; all ranks raise it before the same step."""


class Control:
    """The control of a rank that makes one clip: nobody can cancel it but by ending the rank."""

    stays = False
    """Whether the rank holds its model for further clips."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self.store: Any = None
        """The ranks' key-value store; None where there is one rank."""
        self.number = 0
        """Number of the clip."""
        self.steps = 0
        """Steps of the clip before which an order was asked for."""
        self.pace = Pace()

    def progress(self, job: Job, first: bool) -> Progress:
        """What shows the progress of a clip; rank 0 alone shows it."""
        return Progress.for_stream(job.quiet) if first else Progress()

    def begin(self) -> None:
        """Begin to denoise a clip."""
        self.steps, self.pace = 0, Pace()

    def order(self, job: Job) -> bytes:
        """The order before the next step, the same on all ranks; asked for once before every step."""
        return self._agreed(job) if job.keep_every == AUTO or job.warning else GO

    def _agreed(self, job: Job) -> bytes:
        """Rank 0's order of one step before."""
        index, self.steps = self.steps, self.steps + 1
        word = self._word(job) if self.context.rank == 0 else b""
        if self.store is None:
            return word if index or word == STOP else GO
        if self.context.rank == 0:
            self.store.set(self._key(index + 1), word)
        found = bytes(self.store.get(self._key(index))) if index > 0 else GO
        if self.context.rank == 0 and index > 1:
            self.store.delete_key(self._key(index - 2))
        return found

    def _word(self, job: Job) -> bytes:
        """Rank 0's order before the step after the next."""
        if job.warning and self.context.status.warned:
            return END
        if job.keep_every == AUTO and self.pace.is_due():
            self.pace.kept(self.pace.cost)  # not asked for again until it is done
            return KEEP
        return GO

    def _key(self, index: int) -> str:
        return f"{self.number}/{index}"


class Orders(Control):
    """The control of a rank that stays: orders come through the pipe of its launcher, and what is told goes back."""

    stays = True

    def __init__(self, context: RankContext) -> None:
        super().__init__(context)
        self.cancelled = 0
        """Number of a clip that was cancelled."""

    def jobs(self) -> Iterator[Job]:
        """The clips to make, one after the other, until the launcher has no more. Waiting takes no CPU time."""
        assert self.context.launcher is not None
        while True:
            self.context.status.set("waiting for a clip")
            order = self.context.launcher.recv()
            if order is None:
                return
            if isinstance(order, tuple):
                self.number, job = order
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

    def order(self, job: Job) -> bytes:
        return self._agreed(job)

    def _word(self, job: Job) -> bytes:
        self._listen()
        word = super()._word(job)
        return STOP if word != END and self.cancelled == self.number else word

    def _listen(self) -> None:
        """Take in, on rank 0, which clip was cancelled."""
        assert self.context.launcher is not None
        while self.context.launcher.poll():
            number = self.context.launcher.recv()
            assert isinstance(number, int), number
            self.cancelled = number
