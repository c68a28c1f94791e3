"""Time of one rank in exchanges, by strategy: by the clock on a CPU, by events of its stream on CUDA. No torch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any


class Waits:
    """Seconds that this rank's work stood still for exchanges: for other ranks, and for what is not hidden of bytes.

    They are counted between start() and stop(). On CUDA a collective only queues work, so what it takes is read off two
    events beside it in the stream, once the stream is done anyway; the host waits for nothing.
    """

    def __init__(self, event: Callable[[], Any] | None = None) -> None:
        """event: makes an event with record() and elapsed_time(), which gives ms; None takes the clock."""
        self.event = event
        self.spare: list[Any] = []
        self.pending: list[tuple[str, Any, Any]] = []
        """Exchanges whose events are not read yet: strategy, begin, end."""
        self.seconds: Counter[str] = Counter()
        self.counts = False

    def start(self) -> None:
        """Count from now on, from zero."""
        self.seconds.clear()
        self.counts = True

    def begin(self) -> Any:
        """The moment at which an exchange begins, for end()."""
        return self._now() if self.counts else None

    def end(self, strategy: str, began: Any) -> None:
        """Count an exchange that has ended, or that is queued."""
        if began is None:
            return
        if self.event is None:
            self.seconds[strategy] += self._now() - began
        else:
            self.pending.append((strategy, began, self._now()))

    def stop(self) -> dict[str, float]:
        """The seconds by strategy, after which none are counted. On CUDA the stream must be done."""
        self.counts = False
        for strategy, began, ended in self.pending:
            self.seconds[strategy] += began.elapsed_time(ended) / 1e3
            self.spare += [began, ended]
        self.pending.clear()
        return dict(self.seconds)

    def _now(self) -> Any:
        if self.event is None:
            return time.perf_counter()
        event = self.spare.pop() if self.spare else self.event()
        event.record()
        return event
