"""A clip that an engine was asked for: how far it is, and what became of it. No torch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

from hybridgen.distributed.progress import Event
from hybridgen.engine.job import Job
from hybridgen.engine.report import Report
from hybridgen.errors import RunFailed

ENDS = ("done", "failed", "cancelled")
"""Kinds of the last event of a clip."""
RULES = {
    "cancelled": "The clip was cancelled before it was complete; its engine makes others.",
    "engine-closed": "An engine makes no clip after it was closed, or after its `with` block ended.",
}


class Ticket:
    """A clip that was asked for. Every method may be called from any thread."""

    def __init__(self, job: Job, cancel: Callable[[Ticket], None], on_event: Callable[[Ticket, Event], None]) -> None:
        """cancel: takes the ticket of a clip to be cancelled; on_event: is told of every event."""
        self.job = job
        self.last: Event | None = None
        """The event before the present, such as the last step."""
        self._cancel, self._on_event = cancel, on_event
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._report: Report | None = None
        self._failure: BaseException | None = None

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

    def end(self, kind: str, report: Report | None = None, failure: BaseException | None = None) -> None:
        """Note how the clip ended: kind is one of ENDS."""
        if not self.done:
            self._report, self._failure = report, failure
            self._ended.set()
            said = failure.message if isinstance(failure, RunFailed) else failure
            self.tell(Event(kind, str(report.output if report is not None else said)))
