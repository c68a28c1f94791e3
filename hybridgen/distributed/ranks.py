"""The processes of a local run, as their launcher holds them. No torch."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from hybridgen.distributed.status import Status
from hybridgen.distributed.watch import children, kill


@dataclass
class Ranks:
    """The processes of a run, and what they have given."""

    status: Status
    processes: list[BaseProcess] = field(default_factory=list)
    pipes: list[Connection] = field(default_factory=list)
    """Ends of the pipes by which this process hears the ranks, and they hear it."""
    results: dict[int, Any] = field(default_factory=dict)
    lifeline: Any = None
    """The end of a pipe that this process alone holds; when it closes, ranks die."""
    hear: Callable[[int, Any], None] = lambda rank, thing: None
    """Takes what a rank says before its result."""
    answer: Callable[[], None] = lambda: None
    """Called by the thread that watches, after ring()."""
    idle: bool = False
    """Whether the ranks wait for this process, so that their silence means nothing."""
    bell: tuple[Connection, Connection] = field(default_factory=lambda: multiprocessing.Pipe(duplex=False))
    """A pipe that wakes the thread that watches."""
    lock: Any = field(default_factory=threading.Lock)

    @property
    def world(self) -> int:
        return self.status.world

    def send(self, rank: int, thing: Any) -> None:
        """Send a rank something, which it receives from its launcher; any thread may."""
        with self.lock, suppress(OSError, ValueError):  # a rank that has ended is found by those who watch
            self.pipes[rank].send_bytes(pickle.dumps(thing))

    def ring(self) -> None:
        """Wake the thread that watches; any thread may."""
        with suppress(OSError, ValueError):
            self.bell[1].send_bytes(b"")

    def kill(self) -> None:
        """End all, whatever they do, and what they have started, once rank 0 has put a result that it has on disk."""
        if self.processes:
            self.status.wait_until_kept(0, self.processes[0].is_alive)
        started = [pid for process in self.processes for pid in children(process.pid or 0)]
        for process in self.processes:
            process.kill()
        kill(started)
        for process in self.processes:
            process.join()
        for end in (self.lifeline, *self.pipes, *self.bell):
            if end is not None:
                end.close()
