"""A rank among those that another launcher started: what it tells them, what it sees of them, and how all end.

Ranks tell each other through the launcher's key-value store: where they run, what they do, and why they end. Each one
watches the next rank of its machine, and rank 0 listens for silence. No torch.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn

from hybridgen.distributed.place import JoinedRank
from hybridgen.distributed.processes import GRACE, RankContext
from hybridgen.distributed.signals import SIGNALS, Stopped, held
from hybridgen.distributed.status import Cause, cause_of
from hybridgen.distributed.watch import HANG, LOOK, Said, Watch, is_gone, state
from hybridgen.errors import RunFailed

BEAT = 1.0
"""Seconds between two beats of a rank."""
DEAF = 1.0
"""Seconds after which a signal is acted on here where the main thread cannot: it may be inside a collective."""
TOGETHER, LINGER = 1.0, 1.4
"""Seconds within which ranks hear a signal that was sent to all; and how long a rank that heard one stays, so that what
its launcher sends to the others because it ended is not taken for the same."""
LEAVE = 10.0
"""Seconds that rank 0 goes on serving the store for ranks that have not left yet."""


def identity() -> str:
    """This process as others of its machine find it: machine and process namespace, and process id."""
    space = Path("/proc/self/ns/pid").readlink()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return json.dumps([f"{boot} {space}", os.getpid(), socket.gethostname()])


class Peers:
    """The other ranks of the job.

    clean_up: removes what this rank has left unfinished, and tells what was kept.
    """

    def __init__(
        self,
        here: JoinedRank,
        context: RankContext,
        hang_timeout: float | None,
        clean_up: Callable[[], list[str]],
    ) -> None:
        self.here, self.context, self.clean_up = here, context, clean_up
        self.store = context.store.clone()  # a connection of its own: the other one waits while groups are made
        self.over, self.ending = threading.Event(), threading.Lock()
        self.signals: list[float] = []
        """When signals were heard."""
        self.heard, self.wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        told = [json.loads(self.store.get(f"here/{rank}")) for rank in range(here.world)]
        self.hosts = [host for _, _, host in told]
        machine = told[here.rank][0]
        self.pids = {rank: pid for rank, (where, pid, _) in enumerate(told) if where == machine}
        self.watch = Watch(here.world, self.pids, hang_timeout, lambda text: self._say(f"warning: {text}"))
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self._listen, self._look)]

    def start(self) -> None:
        """Begin to watch; to be called from the main thread, so that its signals are heard."""
        with suppress(ValueError):  # another thread runs the job: signals are not ours to hear
            signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        with held():
            for thread in self.threads:
                thread.start()

    def finish(self) -> None:
        """Leave in peace, after all work is done."""
        self.over.set()
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)
        for thread in self.threads:
            thread.join(LEAVE)
        with suppress(RuntimeError):
            self.store.set(f"done/{self.here.rank}", "")
            end = time.monotonic() + LEAVE
            if self.here.rank == 0 and not self.here.agent_serves:
                while time.monotonic() < end and not all(map(self._is_done, range(self.here.world))):
                    time.sleep(0.02)

    def failed(self, error: BaseException) -> NoReturn:
        """End this rank after an error in its main thread: raise what the user is told, or exit where another tells."""
        if not self.ending.acquire(blocking=False):
            time.sleep(2 * LEAVE)  # another thread ends this process
        for number in SIGNALS:
            with suppress(ValueError):  # only the main thread may
                signal.signal(number, lambda *_: self.signals.append(time.time()))
        if isinstance(error, (KeyboardInterrupt, Stopped)):
            self.signals.append(time.time())
        first, mine, notes = self._end(cause_of(error, self.here.rank, self._doing()))
        if mine and first.signal and self._stopped_too(first):
            stopped = error if isinstance(error, Stopped) else Stopped(first.signal)
            for note in notes:
                stopped.add_note(note)
            raise stopped
        if mine:
            raise first.failure(self.here.world, tuple(notes)) from error
        self._leave(first, notes)

    def _end_now(self, cause: Cause) -> None:
        """End this rank from a watching thread, whatever the main thread is in."""
        if not self.ending.acquire(blocking=False):
            return  # another thread ends it
        first, mine, notes = self._end(cause)
        if mine and first.signal and self._stopped_too(first):
            self._say(f"stopped by {signal.Signals(first.signal).name}", *(f"  {note}" for note in notes))
        elif mine:
            self._say(*first.failure(self.here.world, tuple(notes)).lines())
        self._leave(first, [] if mine else notes)

    def _leave(self, first: Cause, notes: list[str]) -> NoReturn:
        """Exit without unwinding, because a process group's destructor may wait for peers that are gone."""
        self._say(*(f"rank {self.here.rank}: {note}" for note in notes))
        with suppress(OSError, AttributeError, ValueError):
            sys.stdout.flush()
        os._exit(128 + first.signal if first.signal else 1)

    def _end(self, cause: Cause) -> tuple[Cause, bool, list[str]]:
        """Tell the others why this rank ends: (the first cause, whether this rank tells the user, what was kept)."""
        self.over.set()
        try:
            leaving = replace(cause, rank=self.here.rank, secondary=True)  # no rank goes without a word
            for one in [cause] if cause.rank == self.here.rank else [cause, leaving]:
                self.store.append("causes", json.dumps(asdict(replace(one, traceback=""))) + "\n")
            first = self._first(cause)
            if first.rule or (first.signal and self._stopped_too(first)):
                mine = self.here.rank == 0  # every rank ends with it
            else:
                mine = self.here.rank != first.rank * bool(first.signal) and int(self.store.add("reports", 1)) == 1
        except RuntimeError:  # rank 0 served the store, and is gone
            first = self._without_a_word(0) if cause.secondary else cause
            mine = self.here.rank == min((rank for rank in range(1, self.here.world) if self._is_here(rank)), default=0)
        notes = self.clean_up()
        time.sleep(LINGER if self.signals else 0)
        return first, mine, notes

    def _stopped_too(self, first: Cause) -> bool:
        """Whether the signal that ended a rank came to this one as well, rather than as a consequence."""
        end = time.time() + TOGETHER
        while not self.signals and time.time() < end:
            time.sleep(0.01)
        return bool(self.signals) and self.signals[0] - first.when < TOGETHER

    def _first(self, cause: Cause) -> Cause:
        """The first cause that is known soon: one that was told, or a rank of this machine that told none."""
        end = time.monotonic() + GRACE
        while True:
            told = self._told()
            dead = [self._without_a_word(rank) for rank in self._lost({one.rank for one in told})]
            known = sorted([cause, *told, *dead], key=lambda one: (one.secondary, bool(one.signal), one.when))
            if not known[0].secondary:
                return known[0]
            if time.monotonic() > end:
                return replace(cause, error=f"lost another rank ({cause.error}); the rank that ends first is the cause")
            time.sleep(0.05)

    def _told(self) -> list[Cause]:
        """Causes that ranks have told, in the order in which they did."""
        if not self.store.check(["causes"]):
            return []
        return [Cause(**json.loads(line)) for line in self.store.get("causes").decode().splitlines()]

    def _lost(self, told: set[int]) -> list[int]:
        """Ranks of this machine whose process is gone without a word."""
        gone = [rank for rank, pid in self.pids.items() if rank not in told and is_gone(pid)]
        return [rank for rank in gone if not self._is_done(rank)]

    def _without_a_word(self, rank: int) -> Cause:
        """The cause of a rank that could not tell any."""
        doing = ""
        with suppress(RuntimeError, ValueError):
            if self.store.check([f"beat/{rank}"]):
                doing = Said(*json.loads(self.store.get(f"beat/{rank}"))).doing
        error = "ended without a word, as a process that is killed does"
        return Cause(rank, doing, error, False, 0.0, self.hosts[rank])

    def _is_done(self, rank: int) -> bool:
        return bool(self.store.check([f"done/{rank}"]))

    def _is_here(self, rank: int) -> bool:
        return rank in self.pids and not is_gone(self.pids[rank])

    def _doing(self) -> str:
        return self.context.status.read(self.here.rank)

    def _say(self, *lines: str) -> None:
        with suppress(OSError, AttributeError, ValueError):
            sys.stderr.write("".join(f"{line}\n" for line in lines))
            sys.stderr.flush()

    def _listen(self) -> None:
        """Thread: beat, and listen to what the others say, until this rank is done or has to end."""
        try:
            while not self.over.wait(BEAT):
                slot = self.context.status.slots[self.here.rank]
                self.store.set(f"beat/{self.here.rank}", json.dumps([slot.count, slot.waits, self._doing()]))
                self._look_for_ended()
                if self.here.rank == 0 and self.watch.due():
                    self._listen_to_all()
        except RunFailed as failure:
            self._end_now(cause_of(failure, self.here.rank, self._doing()))
        except RuntimeError:  # the store is gone, and with it who served it
            if not self.over.is_set():
                self._end_now(self._without_a_word(0))

    def _look_for_ended(self) -> None:
        """End where another rank has: it said so, or its process is gone."""
        told = self._told()
        for cause in told:
            if not cause.secondary and not cause.signal and cause.rule in ("", HANG):
                self._end_now(cause)
        for rank in self._lost({cause.rank for cause in told}):
            self._end_now(self._without_a_word(rank))

    def _listen_to_all(self) -> None:
        """Warn of silence of all ranks. Raises RunFailed (hang) where it lasts too long."""
        ranks = [rank for rank in range(self.here.world) if self.store.check([f"beat/{rank}"])]
        self.watch.listen({rank: Said(*json.loads(self.store.get(f"beat/{rank}"))) for rank in ranks})

    def _look(self) -> None:
        """Thread: hear signals, and look whether the next rank of this machine is stopped, without the store."""
        look, others = Watch(self.here.world, self.pids), sorted(rank for rank in self.pids if rank != self.here.rank)
        following = [rank for rank in others if rank > self.here.rank] or others
        while not self.over.is_set():
            if select.select([self.heard], [], [], LOOK / 4)[0]:
                self._hear(os.read(self.heard, 1)[0])
            found = look.stopped(following[:1]) if look.due() else None
            if found is not None and not self.over.is_set():
                _kill_stopped(self.pids[found[0]])  # its launcher would wait for it, and so would its store
                error = f"{found[1]} was stopped (SIGSTOP), and a run cannot wait for that"
                self._end_now(replace(self._without_a_word(found[0]), error=error))

    def _hear(self, number: int) -> None:
        """Act on a signal where the main thread does not, for which it may have to return from a collective."""
        if number in SIGNALS and callable(signal.getsignal(number)):
            now = time.time()
            if not self.over.wait(DEAF) and callable(signal.getsignal(number)):
                self.signals.append(now)
                name = signal.Signals(number).name
                self._end_now(Cause(self.here.rank, self._doing(), f"stopped by {name}", False, now, signal=number))


def _kill_stopped(pid: int) -> None:
    """Kill a stopped rank, which its launcher would wait for; only a process like this one, of the same user."""
    with suppress(OSError):
        alike = Path(f"/proc/{pid}/comm").read_text() == Path("/proc/self/comm").read_text()
        if alike and Path(f"/proc/{pid}").stat().st_uid == os.getuid() and state(pid) == "T":
            os.kill(pid, signal.SIGKILL)
