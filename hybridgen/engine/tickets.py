"""A clip that an engine was asked for: how far it is, and what became of it. No torch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hybridgen.distributed.progress import Event
from hybridgen.engine.job import CLIP_DONE, LATENTS_DONE, Job
from hybridgen.engine.report import Report
from hybridgen.engine.resume import steps_done
from hybridgen.errors import RequestError, RunFailed

ENDS = ("done", "failed", "cancelled")
"""Kinds of the last event of a clip."""
RULES = {
    "cancelled": "The clip was cancelled before it was complete; its engine makes others.",
    "engine-closed": "An engine makes no clip after it was closed, or after its `with` block ended, and none for a "
    "process that was forked, since its threads are in the one that made it.",
}


class Ticket:
    """A clip that was asked for. Every method may be called from any thread."""

    def __init__(self, job: Job, cancel: Callable[[Ticket], None], on_event: Callable[[Ticket, Event], None]) -> None:
        """cancel: takes the ticket of a clip to be cancelled; on_event: is told of every event."""
        self.job = job
        self.last: Event | None = None
        """The event before the present, such as the last step."""
        self.replica = 0
        """The replica that makes the clip, or made it."""
        self.size: int | None = None
        """Bytes of the clip's file, where another machine may have written it."""
        self.tries = 0
        """Times that ranks were lost which made it."""
        self.lost_on: object = None
        """Those that were lost last."""
        self._cancel, self._on_event = cancel, on_event
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._report: Report | None = None
        self._failure: BaseException | None = None
        self._left: Path | None = None
        """Final latents that lost ranks have kept."""

    @property
    def done(self) -> bool:
        """Whether the clip is complete, failed or cancelled."""
        return self._ended.is_set()

    @property
    def cancelled(self) -> bool:
        """Whether the clip was cancelled before it was complete."""
        return isinstance(self._failure, RunFailed) and self._failure.rule == "cancelled"

    @property
    def left(self) -> float | None:
        """Seconds that its remaining denoising steps will take; None before the first step."""
        return self.last.left if self.last is not None and self.last.kind == "step" else None

    def cancel(self) -> None:
        """Cancel the clip. One that is denoised ends within two steps; one that is decoded is still completed."""
        self._cancel(self)

    def events(self) -> Iterator[Event]:
        """Every event once, as it comes; the last one is "done", "failed" or "cancelled". For one reader."""
        while True:
            event = self._events.get()
            yield event
            if event.kind in ENDS:
                return

    def result(self, timeout: float | None = None) -> Report:
        """The report, once the clip is complete.

        timeout: seconds to wait at most. Raises TimeoutError, and RunFailed for a clip that failed or was cancelled.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(f"the clip is not complete after {timeout:g} s")
        if self._failure is not None:
            raise self._failure
        assert self._report is not None
        return self._report

    def tell(self, event: Event) -> None:
        """Take in an event, and pass it on."""
        self.last = event
        self._events.put(event)
        self._on_event(self, event)

    def again(self, lost_on: object, marks: Mapping[str, str]) -> None:
        """Prepare the clip to be made again: from the state that lost ranks have kept, if they did.

        marks: what their rank 0 has left.
        """
        self.lost_on = lost_on
        if LATENTS_DONE in marks and self.job.latents is None:
            self._left = Path(marks[LATENTS_DONE])
        if CLIP_DONE in marks:  # it was not told any more
            self.job = replace(self.job, overwrite=True)
        if self.job.keep_every:
            done = 0
            with suppress(RequestError):  # a state that cannot be read is no reason not to make the clip
                done = steps_done(self.job.state, self.job.request())
            self.job = replace(self.job, done=done)

    def end(self, kind: str, report: Report | None = None, failure: BaseException | None = None) -> None:
        """Note how the clip ended: kind is one of ENDS."""
        if not self.done:
            if report is not None and self._left is not None:
                self._left.unlink(missing_ok=True)
            self._report, self._failure = report, failure
            self._ended.set()
            said = failure.message if isinstance(failure, RunFailed) else failure
            self.tell(Event(kind, str(report.output if report is not None else said)))
