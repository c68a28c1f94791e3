"""Ranks that are alive and do nothing: stopped processes of this machine, and silence. No torch."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hybridgen.errors import RunFailed

HANG = "hang"
RULES = {
    HANG: "No rank has begun anything new for the time that --hang-timeout gives. What has ended, or is stopped, is "
    "found without it.",
}
LOOK = 1.0
"""Seconds between two looks."""
LOOKS = 2
"""Looks in a row that must find a process stopped: Ctrl-Z and `fg` stop and continue all, one after the other."""
WARN = 60.0
"""Seconds of silence after which the user is warned; then whenever they have doubled."""
PULSE = 60.0
"""Seconds without a beat, after which a rank of another machine counts as stopped or lost. A thread beats every second
whatever its rank computes."""


class Said(NamedTuple):
    """What a rank said last."""

    number: int
    """How often it has said something."""
    waits: bool
    """Whether it waits for other ranks."""
    doing: str
    beat: int = 0
    """How often a thread of the rank has said that the rank is there."""


def state(pid: int) -> str:
    """The kernel's letter for the state of a process; "" where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    return state(pid) in ("", "Z", "X")


def stopped(pid: int) -> str:
    """Name of what is stopped, the process or one that it started; "" where nothing is."""
    if state(pid) == "T":
        return f"process {pid}"
    for child in children(pid):
        with suppress(OSError):
            if state(child) == "T":
                return f"{Path(f'/proc/{child}/comm').read_text().strip()} (process {child})"
    return ""


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has just ended
            found += map(int, path.read_text().split())
    return found


def kill(pids: Iterable[int]) -> None:
    """Kill processes, whatever they do."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@dataclass
class Watch:
    """A look at the ranks now and then.

    pids: processes of the ranks that run on this machine, by rank.
    limit: seconds of silence of all ranks that end the run; None for no limit.
    warn: is given warnings.
    """

    world: int
    pids: Mapping[int, int]
    limit: float | None = None
    warn: Callable[[str], None] = lambda text: None
    seen: dict[int, int] = field(default_factory=dict)
    """Looks in a row that found a rank stopped."""
    counts: dict[int, int] = field(default_factory=dict)
    since: dict[int, float] = field(default_factory=dict)
    """When a rank last said something new, on the clock below."""
    beats: dict[int, tuple[int, float]] = field(default_factory=dict)
    """The last beat of a rank, and when it was new."""
    clock: float = 0.0
    """Seconds that this process has watched; while it is stopped itself, they do not pass."""
    last: float = field(default_factory=time.monotonic)
    warned: float = 0.0

    def due(self) -> bool:
        """Whether it is time for the next look; counts the time."""
        now = time.monotonic()
        if now - self.last < LOOK:
            return False
        self.clock += min(now - self.last, 2 * LOOK)
        self.last = now
        return True

    def stopped(self, ranks: Sequence[int], looks: int = LOOKS) -> tuple[int, str] | None:
        """The first of these ranks that so many looks have found stopped, and what of it."""
        for rank in ranks:
            what = stopped(self.pids[rank]) if rank in self.pids else ""
            self.seen[rank] = self.seen.get(rank, 0) + 1 if what else 0
            if self.seen[rank] >= looks:
                return rank, what
        return None

    def without_pulse(self, beats: Mapping[int, int]) -> int | None:
        """The first of these ranks that has not beaten for PULSE seconds."""
        for rank, beat in beats.items():
            before, when = self.beats.get(rank, (-1, 0.0))
            if beat != before:
                self.beats[rank] = beat, self.clock
            elif self.clock - when >= PULSE:
                return rank
        return None

    def listen(self, said: Mapping[int, Said]) -> None:
        """Warn when all ranks are silent. Raises RunFailed (hang) at the limit."""
        for rank, one in said.items():
            if self.counts.get(rank) != one.number:
                self.counts[rank], self.since[rank] = one.number, self.clock
        silence = self.clock - max(self.since.values(), default=self.clock)
        if silence < WARN:
            self.warned = 0.0
        elif silence >= max(WARN, 2 * self.warned):
            self.warned = silence
            self.warn(self._silent(said))
        if self.limit is not None and silence >= self.limit:
            raise RunFailed(HANG, f"{self._silent(said)} (--hang-timeout {self.limit:g})")

    def _silent(self, said: Mapping[int, Said]) -> str:
        """The rank that all others seem to wait for: the first to fall silent of those that do not wait."""
        rank = min(said, key=lambda rank: (said[rank].waits, self.since[rank]))
        seconds = self.clock - self.since[rank]
        return f"rank {rank} of {self.world} has said nothing for {seconds:.0f} s, since {said[rank].doing or 'start'}"
