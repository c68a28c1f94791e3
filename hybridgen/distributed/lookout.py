"""Ranks of another launcher's job before they have met: who of this machine is stopped, and which one speaks. No torch.

Imports take most of that time, so the lookout begins before them. What it sees are processes with the same parent.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from hybridgen.distributed.claims import exit_now
from hybridgen.distributed.place import JoinedRank
from hybridgen.distributed.signals import SIGNALS, Stopped, die_with_parent, held
from hybridgen.distributed.watch import LOOK, Watch, children, is_gone, state
from hybridgen.errors import RunFailed

PATIENCE = 10.0
"""Seconds that a rank which does not speak leaves to the one that does."""
AGENT = 5.0
"""Seconds to look for the store of torchrun's agent."""


def siblings(here: JoinedRank) -> dict[int, int]:
    """Process ids of the job's ranks that the same process has started, by rank; this one is among them."""
    found, own = {here.rank: os.getpid()}, _environment("self")
    same = {name: own[name] for name in here.shared if name in own}
    for pid in children(os.getppid()):
        theirs = _environment(str(pid))
        if same.items() <= theirs.items():
            with suppress(ValueError):
                found.setdefault(int(theirs.get(here.variable, "")), pid)
    return found


def _environment(pid: str) -> dict[str, str]:
    """The environment with which a process was started; {} where it cannot be read."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)


def kill_stopped(*pids: int) -> None:
    """Kill ranks that are stopped, for which their launcher would wait; only those of the same user."""
    for pid in pids:
        with suppress(OSError):
            if pid and Path(f"/proc/{pid}").stat().st_uid == os.getuid() and state(pid) == "T":
                os.kill(pid, signal.SIGKILL)


def say(*lines: str) -> None:
    """Print lines to stderr, if anybody listens."""
    with suppress(OSError, AttributeError, ValueError):
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()


def leave(here: JoinedRank) -> NoReturn:
    """End this rank after all work is done, and a stopped one of its machine, for which their launcher would wait.

    The rank with the highest number waits until all others are gone, for PATIENCE at most; they wait for those that are
    stopped. All exit at once then, so that nobody is left alone for long.
    """
    pids = siblings(here)
    others, watch = sorted(pids.keys() - {here.rank}), Watch(here.world, pids)
    last, end = here.rank == max(pids), time.monotonic() + PATIENCE
    while time.monotonic() < end:
        left = {rank: state(pids[rank]) for rank in others if not is_gone(pids[rank])}
        halted = [rank for rank, letter in left.items() if letter == "T"]
        if not (left if last else halted):
            break
        speaks = all(rank > here.rank or rank in halted for rank in left)
        if watch.due() and (found := watch.stopped(halted)) and speaks:
            problem = f"{found[1]} was stopped (SIGSTOP) after all work was done, and is ended"
            say(*RunFailed("rank-lost", f"rank {found[0]} of {here.world} failed: {problem}").lines())
            kill_stopped(pids[found[0]])
        time.sleep(0.02)
    exit_now(0)


class Lookout:
    """A block in which ranks come together: of each machine one speaks, and ranks that are stopped are named.

    here: None for a process that is no rank of another launcher; then the block does nothing.
    """

    def __init__(self, here: JoinedRank | None = None) -> None:
        self.here = here
        self.over = threading.Event()
        self.seen: dict[int, tuple[int, float]] = {}
        """Ranks of this machine: process id, and when it was last seen to run."""
        self.start, self.served = time.monotonic(), False

    def __enter__(self) -> Self:
        if self.here is not None:
            if self.here.has_parent:
                die_with_parent()
            with held():
                threading.Thread(target=self._look, args=(self.here,), daemon=True).start()
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if self.over.is_set() or self.here is None:
            return
        self.over.set()
        speaker = self.speaker(self.here)
        if isinstance(error, (Stopped, RunFailed)) and speaker != self.here.rank:
            self._leave_it_to(speaker, 128 + error.number if isinstance(error, Stopped) else 1)

    def met(self) -> None:
        """End the lookout: from here on the ranks tell each other."""
        self.over.set()

    def speaks(self) -> bool:
        """Whether this is the rank that speaks for those here."""
        return self.here is None or self.speaker(self.here) == self.here.rank

    def speaker(self, here: JoinedRank, without: int | None = None) -> int:
        """The lowest rank of those here that can speak; one that has just ended has spoken.

        without: a rank that cannot.
        """
        self._see(here)
        recent = time.monotonic() - PATIENCE
        able = [rank for rank, (pid, when) in self.seen.items() if when > recent and state(pid) != "T"]
        return min((rank for rank in able if rank != without), default=here.rank)

    def _see(self, here: JoinedRank) -> dict[int, int]:
        """Note which ranks run; returns all that are there."""
        there = siblings(here)
        self.seen |= {rank: (pid, time.monotonic()) for rank, pid in there.items() if state(pid) != "T"}
        return there

    def tell(self, text: str) -> None:
        """Print a line, once for each machine."""
        if self.speaks():
            say(text)

    def _look(self, here: JoinedRank) -> None:
        """Thread: look for a launcher that is gone, and for ranks that are stopped or have ended."""
        watch = Watch(here.world, {})
        self.served = not here.agent_serves
        while not self.over.wait(LOOK / 4):
            watch.pids = self._see(here)
            if not watch.due():
                continue
            if not self._is_served(here):
                self._end(here, f"torchrun's agent does not serve the store at {here.address}:{here.port}")
            found = watch.stopped(sorted(watch.pids))
            if found is not None:
                self._end(here, f"{found[1]} was stopped (SIGSTOP) before it came", found[0])
            long_ago = time.monotonic() - PATIENCE / 2  # a request that is refused ends all, one after the other
            gone = [rank for rank, (pid, when) in self.seen.items() if when < long_ago and is_gone(pid)]
            gone += [rank for rank in here.here if rank not in self.seen and self.start < long_ago]
            if gone:
                self._end(here, "its process ended before it came", min(gone))

    def _is_served(self, here: JoinedRank) -> bool:
        """Whether torchrun's agent serves the store, as it does before it starts ranks; once is enough."""
        if not self.served:
            with suppress(OSError):
                socket.create_connection((here.address, here.port), AGENT).close()
                self.served = True
        return self.served or time.monotonic() < self.start + AGENT

    def _end(self, here: JoinedRank, problem: str, lost: int | None = None) -> None:
        """End this rank, unless the ranks have met; one says why. lost: a rank that is the cause."""
        if self.over.is_set():
            return
        speaker = self.speaker(here, lost)
        if speaker != here.rank:
            self._leave_it_to(speaker, 1)
        if lost is not None:
            kill_stopped(siblings(here).get(lost, 0))
            problem = f"rank {lost} of {here.world} failed: {problem}"
        say(*RunFailed("launcher", problem).lines())
        exit_now(1)

    def _leave_it_to(self, speaker: int, code: int) -> NoReturn:
        """Exit without a word, once the rank that speaks has: its launcher may end it when another ends."""
        with suppress(ValueError):  # only the main thread may
            for number in SIGNALS:
                signal.signal(number, lambda number, _: exit_now(128 + number))
        end = time.monotonic() + PATIENCE
        while speaker in self.seen and not is_gone(self.seen[speaker][0]) and time.monotonic() < end:
            time.sleep(0.1)
        exit_now(code)
