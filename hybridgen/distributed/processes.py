"""Local ranks: start them, watch them, and say which one failed first and why.

Ranks are processes of this machine. Each one sends its result through a pipe, by which it also hears its launcher, and
keeps a shared status up to date that says what it is doing and why it failed: a rank that is killed could not say so at
its end.
An error that came out of a collective is secondary, since another rank is its cause.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from hybridgen.distributed.ranks import Ranks
from hybridgen.distributed.signals import as_rank, die_with_parent, dropped, held
from hybridgen.distributed.status import Cause, Status, cause_of
from hybridgen.distributed.watch import LOOK, Said, Watch
from hybridgen.errors import RunFailed

RULES = {
    "deadline": "The ranks did not end in the time they were given.",
    "rank-lost": "A rank died, and the others were ended: the clip cannot be finished without its part.",
}
GRACE = 2.0
"""Seconds to wait for a first cause once some rank has failed, and for ranks to end that have given their result."""
OWN = 0.2
"""Seconds in which a signal that ended a rank reaches this process as well, where it was sent to both."""


@dataclass(frozen=True)
class RankContext:
    """What a rank is given when it starts."""

    rank: int
    world: int
    local_rank: int
    """Number of this rank on its machine, which chooses its GPU."""
    status: Status
    door: socket.socket | None = None
    """Socket on which rank 0 of a local run serves the key-value store; it listens on the loopback interface."""
    store: Any = None
    """torch.distributed's key-value store of a job that torchrun or srun started."""
    launcher: Connection | None = None
    """The pipe to the launcher of a local run."""

    def say(self, thing: Any) -> None:
        """Tell the launcher something before this rank's result."""
        assert self.launcher is not None
        self.launcher.send_bytes(pickle.dumps((False, thing)))

    def mark(self, name: str, text: str) -> None:
        """Leave a mark that outlives this rank, such as where the latents are."""
        self.status.mark(name, text)
        if self.store is not None:  # whoever tells in this rank's place reads it there
            with suppress(RuntimeError):
                self.store.set(f"marks/{self.rank}", json.dumps(self.status.marks(self.rank)))


def run_local(
    world: int,
    main: Callable[[RankContext], Any] | Sequence[Callable[[RankContext], Any]],
    *,
    start_method: str = "fork",
    preload: Sequence[str] = (),
    deadline: float | None = None,
    hang_timeout: float | None = None,
    warn: Callable[[str], None] = lambda text: None,
    on_exit: Callable[[Status], None] = lambda status: None,
    status: Status | None = None,
) -> list[Any]:
    """Run main(context) on `world` ranks of this machine and return their results, by rank; `main` may be one for each.

    "fork" shares what this process has imported; main may then be any callable. `preload` are modules that a fork
    server imports before it forks the first rank. Raises RunFailed naming the first
    rank that failed; nothing is left running, however this function ends. `deadline` is in seconds; `hang_timeout` is
    the silence of all ranks, in seconds, that ends them; warn is given warnings; on_exit is given the ranks' status at
    the end. `status` is made unless it is given.
    """
    ranks = Ranks(status or Status(world))
    mains = main if isinstance(main, Sequence) else [main] * world
    try:
        start(ranks, mains, start_method, preload)
        watch(ranks, deadline, hang_timeout, warn)
        return [ranks.results[rank] for rank in range(world)]
    finally:
        with dropped():
            ranks.kill()
            on_exit(ranks.status)
            ranks.status.close()


def start(
    ranks: Ranks,
    mains: Sequence[Callable[[RankContext], Any]],
    start_method: str,
    preload: Sequence[str],
    first_device: int = 0,
) -> None:
    """Start the processes. Signals wait until all are there: Python swallows exceptions in hooks after a fork.

    first_device: number of rank 0's GPU; the others take those after it.
    """
    context: Any = multiprocessing.get_context(start_method)
    if start_method == "forkserver":
        context.set_forkserver_preload(list(preload))
        forkserver.ensure_running()  # before signals are held, since it would hold them for ever
    if start_method != "fork":
        resource_tracker.ensure_running()
    _flush()
    parent = None if start_method == "forkserver" else os.getpid()
    with held(), socket.create_server(("127.0.0.1", 0)) as door:
        reader, ranks.lifeline = context.Pipe(duplex=False)
        for rank, main in enumerate(mains):
            ours, theirs = context.Pipe()
            given = RankContext(rank, len(mains), first_device + rank, ranks.status.of(rank), door, launcher=theirs)
            ranks.pipes.append(ours)
            process = context.Process(target=_rank_main, args=(given, main, parent, reader, ranks.lifeline))
            with _no_main_module():
                process.start()
            theirs.close()
            ranks.processes.append(process)
        reader.close()


@contextmanager
def _no_main_module() -> Iterator[None]:
    """Keep processes that are not forked from running the user's script again, which ranks do not need."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _rank_main(
    given: RankContext, main: Callable[[RankContext], Any], parent: int | None, reader: Any, writer: Any
) -> None:
    die_with_parent(parent)
    gc.freeze()  # what a rank was forked with is none of its garbage, and to look at it would copy it
    as_rank()
    writer.close()
    threading.Thread(target=_die_with_parent, args=(reader,), daemon=True).start()
    code = 0
    try:
        given.status.set("start")
        result = pickle.dumps((True, main(given)))
        _flush()
        assert given.launcher is not None
        given.launcher.send_bytes(result)
    except BaseException as error:  # noqa: BLE001 - everything ends a rank, and everything is reported
        given.status.fail(cause_of(error, given.rank, given.status.read(given.rank)))
        code = 1
    _flush()
    # No unwinding: destructors of a process group may wait for peers that are gone.
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError, ValueError):  # it may be closed, or have no reader any more
            stream.flush()


def _die_with_parent(reader: Any) -> None:
    """Die when the launcher has: of a fork server the kernel knows another parent."""
    try:
        reader.recv()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGKILL)


def watch(ranks: Ranks, deadline: float | None, hang_timeout: float | None, warn: Callable[[str], None]) -> None:
    """Return when every rank has given its result; raise RunFailed soon after the first has ended without."""
    end = time.monotonic() + deadline if deadline else float("inf")
    running = {process.sentinel: rank for rank, process in enumerate(ranks.processes)}
    look = Watch(
        ranks.world, {rank: process.pid or 0 for rank, process in enumerate(ranks.processes)}, hang_timeout, warn
    )
    while running and time.monotonic() < end:
        open_pipes = [pipe for rank, pipe in enumerate(ranks.pipes) if rank not in ranks.results]
        wait = max(0.0, min(LOOK, end - time.monotonic()))
        heard: list[Any] = [*running, ranks.bell[0], *(pipe for pipe in open_pipes if not pipe.closed)]
        ready = multiprocessing.connection.wait(heard, None if ranks.idle else wait)
        if ranks.bell[0] in ready:
            ranks.bell[0].recv_bytes()
            ranks.answer()
        for rank, pipe in enumerate(ranks.pipes):
            if pipe in ready:
                _receive(ranks, rank)
        for sentinel in [one for one in ready if one in running]:
            _ended(ranks, running.pop(sentinel))
        if len(ranks.results) == ranks.world:
            end = min(end, time.monotonic() + GRACE)
        elif look.due() and not ranks.idle:
            _look(ranks, look, sorted(running.values()))
    if len(ranks.results) < ranks.world:
        doing = "; ".join(f"rank {rank}: {ranks.status.read(rank)}" for rank in list(running.values())[:4])
        raise RunFailed("deadline", f"{len(running)} ranks still running after {deadline:g} s ({doing})")


def _receive(ranks: Ranks, rank: int) -> None:
    """Read what a rank says, or its result; close the pipe of a rank that has ended without one."""
    try:
        is_result, thing = pickle.loads(ranks.pipes[rank].recv_bytes())
    except (EOFError, OSError):
        ranks.pipes[rank].close()
        return
    if is_result:
        ranks.results[rank] = thing
    else:
        ranks.hear(rank, thing)


def _ended(ranks: Ranks, rank: int) -> None:
    """Take note that a rank's process has ended. Raises RunFailed if it gave no result."""
    ranks.processes[rank].join()
    while rank not in ranks.results and not ranks.pipes[rank].closed and ranks.pipes[rank].poll():
        _receive(ranks, rank)
    if rank not in ranks.results:
        raise _first_cause(ranks).failure(ranks.world)


def _look(ranks: Ranks, look: Watch, running: list[int]) -> None:
    """Raise RunFailed for a rank that is stopped, or for silence that has lasted too long."""
    found = look.stopped(running)
    if found is not None:
        rank, what = found
        error = f"{what} is stopped (SIGSTOP); a run cannot wait for that"
        raise Cause(rank, ranks.status.read(rank), error, False, time.time(), socket.gethostname()).failure(ranks.world)
    slots = ranks.status.slots
    waiting = [rank for rank in range(ranks.world) if rank not in ranks.results]
    look.listen({rank: Said(slots[rank].count, slots[rank].waits, ranks.status.read(rank)) for rank in waiting})


def _first_cause(ranks: Ranks) -> Cause:
    """The earliest failure that is not a consequence of another, after waiting a little for it to show."""
    end = time.monotonic() + GRACE
    while True:
        causes = [_cause(ranks, rank) for rank in range(ranks.world)]
        known = sorted((c for c in causes if c is not None), key=lambda c: (c.secondary, c.when))
        if known and (not known[0].secondary or time.monotonic() > end):
            if known[0].signal:
                time.sleep(OWN)
            return known[0]
        time.sleep(0.05)


def _cause(ranks: Ranks, rank: int) -> Cause | None:
    """Why a rank ended without a result; None while it has not."""
    told, code = ranks.status.cause(rank), ranks.processes[rank].exitcode
    if told is not None or code is None or rank in ranks.results:
        return told
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code} before its result"
    hint = " (the kernel does this when memory runs out)" if code == -signal.SIGKILL else ""
    aborted = code == -signal.SIGABRT  # NCCL's watchdog ends a rank so when a peer is gone
    sent = -code if code in (-signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT) else 0
    return Cause(rank, ranks.status.read(rank), how + hint, aborted, 0.0, socket.gethostname(), signal=sent)
