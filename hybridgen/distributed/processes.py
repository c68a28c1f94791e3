"""Local ranks: start them, watch them, and say which one failed first and why.

Ranks are processes of this machine. Each one writes its result, or the cause of its failure, to a file of its own
before it ends, and keeps a shared line up to date that says what it is doing: a rank that is killed cannot write.
An error that came out of a collective is secondary, since another rank is its cause.
"""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from hybridgen.distributed.files import written_whole
from hybridgen.errors import RunFailed

RULES = {
    "deadline": "The ranks did not end in the time they were given.",
    "rank-lost": "A rank died, and the others were ended: the clip cannot be finished without its part.",
}
LINE = 96
"""Bytes of a rank's status line."""
CONSEQUENCES = ("DistBackendError", "AcceleratorError")
"""Errors in which a dead peer shows on a GPU outside of a collective's call."""
GRACE = 2.0
"""Seconds to wait for a first cause once some rank has failed."""


@dataclass
class Status:
    """The shared lines that say what each rank is doing; written by ranks, read by the one who reports."""

    lines: Any
    rank: int = 0

    def set(self, text: str) -> None:
        self.lines[self.rank * LINE : (self.rank + 1) * LINE] = text.encode()[: LINE - 1].ljust(LINE, b"\0")

    def read(self, rank: int) -> str:
        return bytes(self.lines[rank * LINE : (rank + 1) * LINE]).split(b"\0")[0].decode(errors="replace")


@dataclass(frozen=True)
class Cause:
    """Why a rank failed."""

    rank: int
    doing: str
    error: str
    secondary: bool
    when: float
    host: str = ""
    traceback: str = ""
    rule: str = ""
    """Rule of an error that all ranks end with together; "" where one rank failed."""

    def failure(self, world: int, notes: tuple[str, ...] = ()) -> RunFailed:
        if self.rule:
            return RunFailed(self.rule, self.error, notes, self.traceback)
        doing = f" in {self.doing}" if self.doing else ""
        host = f" ({self.host})" if self.host else ""
        return RunFailed(
            "rank-lost", f"rank {self.rank} of {world}{host} failed{doing}: {self.error}", notes, self.traceback
        )


@dataclass(frozen=True)
class RankContext:
    """What a rank is given when it starts."""

    rank: int
    world: int
    local_rank: int
    """Number of this rank on its machine, which chooses its GPU."""
    folder: Path
    """Scratch folder shared by the ranks of this machine."""
    status: Status
    store: Any = None
    """torch.distributed's key-value store of a job that torchrun or srun started; run_local's ranks make their own."""

    def mark(self, name: str, text: str) -> None:
        """Leave a mark that outlives this rank, such as where the latents are; a full disk does not end the run."""
        with suppress(OSError), written_whole(self.folder / name) as part:
            part.write_text(text)


def run_local(
    world: int,
    main: Callable[[RankContext], Any] | Sequence[Callable[[RankContext], Any]],
    *,
    start_method: str = "fork",
    preload: Sequence[str] = (),
    deadline: float | None = None,
    on_exit: Callable[[Path], None] = lambda folder: None,
) -> list[Any]:
    """Run main(context) on `world` ranks of this machine and return their results, by rank; `main` may be one for each.

    "fork" shares what this process has imported; main may then be any callable. `preload` are modules that a fork
    server imports before it forks the first rank. Raises RunFailed naming the first
    rank that failed; nothing is left running, however this function ends. `deadline` is in seconds; on_exit is given
    the ranks' scratch folder at the end.
    """
    context = multiprocessing.get_context(start_method)
    if start_method == "forkserver":
        context.set_forkserver_preload(list(preload))
    lines = context.RawArray(ctypes.c_char, LINE * world)
    with tempfile.TemporaryDirectory(prefix="hybridgen-") as name:
        folder, status = Path(name), Status(lines)
        mains = main if isinstance(main, Sequence) else [main] * world
        processes, lifeline = _start(context, mains, folder, status)
        try:
            _watch(processes, folder, status, deadline)
            return [pickle.loads((folder / f"result-{rank}").read_bytes()) for rank in range(world)]
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.join()
            lifeline.close()
            on_exit(folder)


def _start(
    context: BaseContext, mains: Sequence[Callable[[RankContext], Any]], folder: Path, status: Status
) -> tuple[list[BaseProcess], Any]:
    """Start the processes with a lifeline: its write end is open in this process alone; when it closes, ranks die."""
    _flush()
    reader, writer = context.Pipe(duplex=False)
    processes: list[BaseProcess] = []
    for rank, main in enumerate(mains):
        given = RankContext(rank, len(mains), rank, folder, Status(status.lines, rank))
        process = context.Process(target=_rank_main, args=(given, main, reader, writer))  # type: ignore[attr-defined]
        with _no_main_module():
            process.start()
        processes.append(process)
    reader.close()
    return processes, writer


@contextmanager
def _no_main_module() -> Iterator[None]:
    """Keep processes that are not forked from running the user's script again, which ranks do not need."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _rank_main(given: RankContext, main: Callable[[RankContext], Any], reader: Any, writer: Any) -> None:
    gc.freeze()  # what a rank was forked with is none of its garbage, and to look at it would copy it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    writer.close()
    threading.Thread(target=_die_with_parent, args=(reader,), daemon=True).start()
    given.status.set("start")
    code = 0
    try:
        result = main(given)
        with written_whole(given.folder / f"result-{given.rank}") as part:
            part.write_bytes(pickle.dumps(result))
    except BaseException as error:  # noqa: BLE001 - everything ends a rank, and everything is reported
        cause = cause_of(error, given.rank, given.status.read(given.rank))
        # Where the disk is full, the status line must do.
        with suppress(OSError), written_whole(given.folder / f"cause-{given.rank}") as part:
            part.write_text(json.dumps(asdict(cause)))
        code = 1
    _flush()
    # No unwinding: destructors of a process group may wait for peers that are gone.
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError, ValueError):  # it may be closed, or have no reader any more
            stream.flush()


def cause_of(error: BaseException, rank: int, doing: str) -> Cause:
    """Describe an exception that ended a rank."""
    from hybridgen.distributed.comm import PeerLost

    trace = "".join(traceback.format_exception(error))
    if isinstance(error, RunFailed):
        return Cause(rank, doing, error.message, False, time.time(), socket.gethostname(), trace, error.rule)
    text = str(error).strip().splitlines()[0] if str(error).strip() else ""
    name = type(error).__name__
    return Cause(
        rank,
        doing,
        f"{name}: {text}" if text else name,
        isinstance(error, PeerLost) or name in CONSEQUENCES,
        time.time(),
        socket.gethostname(),
        trace,
    )


def _die_with_parent(reader: Any) -> None:
    try:
        reader.recv()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(processes: list[BaseProcess], folder: Path, status: Status, deadline: float | None) -> None:
    """Return when every rank has ended well; raise RunFailed soon after the first has not."""
    end = time.monotonic() + deadline if deadline else None
    pending = {process.sentinel: rank for rank, process in enumerate(processes)}
    while pending:
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            doing = "; ".join(f"rank {rank}: {status.read(rank)}" for rank in list(pending.values())[:4])
            raise RunFailed("deadline", f"{len(pending)} ranks still running after {deadline:g} s ({doing})")
        for sentinel in multiprocessing.connection.wait(list(pending), left):
            rank = pending.pop(sentinel)  # type: ignore[arg-type]
            processes[rank].join()
            if processes[rank].exitcode != 0:
                raise _first_cause(processes, folder, status).failure(len(processes))


def _first_cause(processes: list[BaseProcess], folder: Path, status: Status) -> Cause:
    """The earliest failure that is not a consequence of another, after waiting a little for it to show."""
    end = time.monotonic() + GRACE
    while True:
        causes = [_cause(rank, process, folder, status) for rank, process in enumerate(processes)]
        known = sorted((c for c in causes if c is not None), key=lambda c: (c.secondary, c.when))
        if known and (not known[0].secondary or time.monotonic() > end):
            return known[0]
        time.sleep(0.05)


def _cause(rank: int, process: BaseProcess, folder: Path, status: Status) -> Cause | None:
    path = folder / f"cause-{rank}"
    if path.exists():
        return Cause(**json.loads(path.read_bytes()))
    code = process.exitcode
    if code is None or code == 0:
        return None
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    hint = " (the kernel does this when memory runs out)" if code == -signal.SIGKILL else ""
    aborted = code == -signal.SIGABRT  # NCCL's watchdog ends a rank so when a peer is gone
    return Cause(rank, status.read(rank), how + hint, aborted, 0.0, socket.gethostname())
