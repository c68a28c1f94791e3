"""A rank among those that another launcher started: what it tells them, what it sees of them, and how all end.

Ranks tell each other through the launcher's key-value store: where they run, what they do, and why they end. Each one
watches the next rank of its machine, and rank 0 listens for silence. No torch.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple, NoReturn, TypeVar

from hybridgen.distributed.board import Board, in_time
from hybridgen.distributed.claims import exit_now
from hybridgen.distributed.lookout import kill_stopped, say
from hybridgen.distributed.place import JoinedRank
from hybridgen.distributed.processes import GRACE, RankContext
from hybridgen.distributed.signals import SIGNALS, Heard, Stopped, held, without_raising
from hybridgen.distributed.status import Cause, cause_of
from hybridgen.distributed.watch import HANG, LOOK, LOOKS, PULSE, Said, Watch, children, is_gone, kill, state
from hybridgen.errors import RunFailed

T = TypeVar("T")
BEAT = 1.0
"""Seconds between two beats of a rank."""
DEAF = 1.0
"""Seconds that a program's own handler of a signal has to end it. The main thread may be inside a collective."""
TOGETHER, LINGER = 1.0, 1.4
"""Seconds within which ranks hear a signal that was sent to all; and how long a rank that heard one stays, so that what
its launcher sends to the others because it ended is not taken for the same."""
LEAVE = 10.0
"""Seconds that rank 0 goes on serving the store for ranks that have not left yet."""
STAY, ANSWER = 6.0, 12.0
"""The same where it failed; and seconds that a rank which ends waits for the store, whose rank may be stopped."""


WITHOUT_A_WORD = "ended without a word, as a process that is killed does"
WHY_SILENT = "its process is stopped, or its machine cannot be reached"


class End(NamedTuple):
    """How this rank ends."""

    first: Cause
    stopped: bool
    """Whether the first cause is a signal that was meant for all ranks."""
    mine: bool
    """Whether this rank tells the user."""
    notes: tuple[str, ...] = ()
    """What was kept."""

    def shown(self) -> Stopped:
        """What the user is told of a signal."""
        made = Stopped(self.first.signal)
        for note in self.notes:
            made.add_note(note)
        return made


class Peers:
    """The other ranks of the job.

    clean_up: given the rank that ended first, removes what is left unfinished, and tells what was kept.
    """

    def __init__(
        self,
        here: JoinedRank,
        context: RankContext,
        hang_timeout: float | None,
        clean_up: Callable[[int], list[str]],
    ) -> None:
        self.here, self.context, self.clean_up = here, context, clean_up
        self.board = Board(context.store)
        self.over, self.ending = threading.Event(), threading.Lock()
        told = [self.board.identity(rank) for rank in range(here.world)]
        self.hosts = [host for _, _, host in told]
        machine = told[here.rank][0]
        self.pids = {rank: pid for rank, (where, pid, _) in enumerate(told) if where == machine}
        self.signals, self.beat, self.present = Heard(), 0, set(self.pids)
        self.watch = Watch(here.world, self.pids, hang_timeout, lambda text: say(f"warning: {text}"))
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self._listen, self._look)]

    def start(self) -> None:
        """Begin to watch; to be called from the main thread, so that its signals are heard."""
        with suppress(ValueError):  # another thread runs the job: signals are not ours to hear
            self.signals.start()
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
            self._done(LEAVE)
        kill_stopped(*(self.pids.values() if self.here.rank == 0 else ()))

    def failed(self, error: BaseException) -> NoReturn:
        """End this rank after an error in its main thread: raise what the user is told, or exit where another tells."""
        if not self.ending.acquire(blocking=False):
            time.sleep(4 * LEAVE)  # another thread ends this process
        with suppress(ValueError):  # only the main thread may
            without_raising(SIGNALS)
        if isinstance(error, (KeyboardInterrupt, Stopped)):
            self.signals.times.append(time.time())
        end = self._end(cause_of(error, self.here.rank, self._doing()))
        if end.mine and end.stopped:
            raise end.shown() from None
        if end.mine:
            raise end.first.failure(self.here.world, end.notes) from error
        self._leave(end)

    def _end_now(self, cause: Cause, stopped: int = 0) -> None:
        """End this rank from a watching thread, and first a rank that is stopped, for which launcher and store wait."""
        if not self.ending.acquire(blocking=False):
            return  # another thread ends it
        kill_stopped(stopped)
        end = self._end(cause)
        if end.mine:
            shown = end.shown() if end.stopped else end.first.failure(self.here.world, end.notes)
            say(*shown.lines())
        self._leave(end)

    def _leave(self, end: End) -> NoReturn:
        """Exit without unwinding, because a process group's destructor may wait for peers that are gone."""
        if not end.mine and (end.first.rank or not self.here.rank):  # what rank 0 leaves behind is told once
            say(*(f"rank {self.here.rank}: {note}" for note in end.notes))
        kill(children(os.getpid()))
        exit_now(128 + end.first.signal if end.first.signal else 1)

    def _end(self, cause: Cause) -> End:
        """Tell the others why this rank ends, and learn why all do."""
        self.over.set()
        asked = in_time(lambda: self._told_by(cause), ANSWER)
        end = asked or self._alone(cause)
        time.sleep(LINGER if self.signals.times else 0)
        self.context.status.wait_until_kept(self.here.rank)
        notes = tuple(self.clean_up(end.first.rank))  # at the very end: the main thread may still write
        if asked:
            in_time(lambda: self._done(STAY), ANSWER)
        return end._replace(notes=notes)

    def _told_by(self, cause: Cause) -> End:
        """Tell the others through the store why this rank ends; one rank tells the user."""
        leaving = replace(cause, rank=self.here.rank, secondary=True)  # no rank goes without a word
        self.board.tell([cause] if cause.rank == self.here.rank else [cause, leaving])
        first = self._first(cause)
        stopped = bool(first.signal) and self._stopped_too(first)
        able = self.here.rank == (0 if stopped or first.rule else self.here.rank)  # with a rule every rank ends
        able = able and (stopped or not first.signal or self.here.rank != first.rank)
        return End(first, stopped, able and self.board.is_first_to_report())

    def _alone(self, cause: Cause) -> End:
        """The same without the store: one rank of each machine tells, but not of a signal, which rank 0 has told."""
        own = cause.rank == self.here.rank and not cause.signal  # with rank 0 gone, an error of the store
        first = self._lost_rank(0) if cause.secondary or (own and self._is_gone(0)) else cause
        here = [rank for rank in self.present if rank and (rank != first.rank or rank == self.here.rank)]
        return End(first, bool(first.signal), not first.signal and self.here.rank == min(here, default=self.here.rank))

    def _done(self, patience: float) -> bool:
        """Say that this rank asks the store for nothing more. Who serves it waits for the others."""
        self.board.done(self.here.rank)
        end = time.monotonic() + patience
        if self.here.rank == 0 and not self.here.agent_serves:
            others = range(1, self.here.world)
            while time.monotonic() < end and not all(
                self._is_gone(rank) or self.board.is_done(rank) for rank in others
            ):
                time.sleep(0.02)
        return True

    def _stopped_too(self, first: Cause) -> bool:
        """Whether the signal that ended a rank was meant for all: it came here as well, or if it is this rank's, there.

        Otherwise it comes as a consequence, or not at all.
        """
        end = time.time() + TOGETHER
        while time.time() < end:
            others = [one.when for one in self.board.told() if one.signal and one.rank != first.rank]
            heard = others if first.rank == self.here.rank else self.signals.times
            if any(abs(when - first.when) < TOGETHER for when in heard):
                return True
            self.signals.next(0.05)
        return False

    def _first(self, cause: Cause) -> Cause:
        """The first cause that is known soon: one that was told, or a rank of this machine that told none."""
        end = time.monotonic() + GRACE
        while True:
            told = self.board.told()
            dead = [self._without_a_word(rank) for rank in self._lost({one.rank for one in told})]
            known = sorted([cause, *told, *dead], key=lambda one: (one.secondary, bool(one.signal), one.when))
            if not known[0].secondary:
                return known[0]
            if time.monotonic() > end:
                return replace(cause, error=f"lost another rank ({cause.error}); the rank that ends first is the cause")
            time.sleep(0.05)

    def _lost(self, told: set[int]) -> list[int]:
        """Ranks of this machine whose process is gone without a word."""
        gone = [rank for rank, pid in self.pids.items() if rank not in told and is_gone(pid)]
        return [rank for rank in gone if not self.board.is_done(rank)]

    def _lost_rank(self, rank: int, doing: str = "", error: str = WITHOUT_A_WORD) -> Cause:
        """The cause of a rank that could not tell any."""
        return Cause(rank, doing, error, False, 0.0, self.hosts[rank])

    def _without_a_word(self, rank: int, error: str = WITHOUT_A_WORD) -> Cause:
        """The same, with what the store knows of it."""
        doing = ""
        with suppress(RuntimeError, ValueError):
            doing = self.board.heard_of(rank).doing
        return self._lost_rank(rank, doing, error)

    def _is_gone(self, rank: int) -> bool:
        return rank in self.pids and is_gone(self.pids[rank])

    def _doing(self) -> str:
        return self.context.status.read(self.here.rank)

    def _listen(self) -> None:
        """Thread: beat, and listen to what the others say, until this rank is done or has to end."""
        try:
            while not self.over.wait(BEAT):
                slot = self.context.status.slots[self.here.rank]
                said = Said(slot.count, slot.waits, self._doing(), self.beat + 1)
                self.board.beat(self.here.rank, said)
                self.present = {rank for rank in self.pids if not self._is_gone(rank)}
                self._look_for_ended()
                if self.watch.due():
                    self._listen_to_all()
                self.beat += 1
        except RunFailed as failure:
            self._end_now(cause_of(failure, self.here.rank, self._doing()))
        except RuntimeError:  # the store is gone, and with it who served it
            if not self.over.is_set():
                self._end_now(self._lost_rank(0))

    def _look_for_ended(self) -> None:
        """End where another rank has: it said so, or its process is gone."""
        told = self.board.told()
        for cause in told:
            ends_all = not cause.signal or self.board.is_done(cause.rank)  # of a signal to all every rank hears itself
            if not cause.secondary and ends_all and cause.rule in ("", HANG):
                self._end_now(cause)
        for rank in self._lost({cause.rank for cause in told}):
            self._end_now(self._without_a_word(rank))

    def _listen_to_all(self) -> None:
        """Rank 0 listens to all, and all listen to rank 0.

        Warns of silence of all ranks; raises RunFailed (hang) where it lasts too long. Ends where a rank is not there.
        """
        ranks = range(self.here.world) if self.here.rank == 0 else [0]
        said = {rank: self.board.heard_of(rank) for rank in ranks if not self.board.is_done(rank)}
        if self.here.rank == 0:
            self.watch.listen({rank: one for rank, one in said.items() if one.beat})
        lost = self.watch.without_pulse({rank: one.beat for rank, one in said.items() if rank != self.here.rank})
        if lost is not None:
            self._end_now(self._without_a_word(lost, f"gave no sign of life for {PULSE:g} s: {WHY_SILENT}"))

    def _look(self) -> None:
        """Thread: hear signals, and look at what can be seen without the store."""
        look, others = Watch(self.here.world, self.pids), sorted(rank for rank in self.pids if rank != self.here.rank)
        while not self.over.is_set():
            if (number := self.signals.next(LOOK / 4)) is not None:
                self._hear(number)
            if not look.due() or self.over.is_set():
                continue
            able = [rank for rank, pid in self.pids.items() if state(pid) not in ("", "Z", "X", "T")]
            found = look.stopped(others, LOOKS if self.here.rank == min(able) else 2 * LOOKS)
            if found is not None:
                error = f"{found[1]} was stopped (SIGSTOP), and a run cannot wait for that"
                said = in_time(partial(self.board.heard_of, found[0]), LOOK)
                self._end_now(self._lost_rank(found[0], said.doing if said else "", error), self.pids[found[0]])
            elif look.without_pulse({self.here.rank: self.beat}) is not None:  # that thread waits for the store
                where = f"its key-value store at {self.here.address}:{self.here.port}"
                error = f"{where} has not answered for {PULSE:g} s: {WHY_SILENT}"
                self._end_now(self._lost_rank(0, "", error))

    def _hear(self, number: int) -> None:
        """Act on a signal: at once where its handler is ours, else where the program's own does not end it."""
        now = time.time()
        if number in self.signals.ours or (callable(signal.getsignal(number)) and not self.over.wait(DEAF)):
            self.signals.times.append(now)
            stopped = Stopped(number)
            self._end_now(replace(cause_of(stopped, self.here.rank, self._doing()), when=now))
