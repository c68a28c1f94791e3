"""What each rank is doing, has done and has failed with, in memory that outlives the rank. No torch."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing import reduction
from typing import Any

from hybridgen.errors import RunFailed

CONSEQUENCES = ("DistBackendError", "AcceleratorError")
"""Errors in which a dead peer shows on a GPU outside of a collective's call."""
KEEP = 5.0
"""Seconds that a run which ends gives a rank to put its result on disk."""
ERROR, TRACEBACK = 1000, 8000
"""Characters of an error's text and of its traceback that are kept."""


@dataclass(frozen=True)
class Cause:
    """Why a rank failed."""

    rank: int
    doing: str
    error: str
    secondary: bool
    """Whether another rank is the cause."""
    when: float
    host: str = ""
    traceback: str = ""
    rule: str = ""
    """Rule of an error that all ranks end with together; "" where one rank failed."""
    signal: int = 0
    """The signal that asked the run to end; 0 where a rank failed."""

    def failure(self, world: int, notes: tuple[str, ...] = ()) -> RunFailed:
        """The error that the user is shown."""
        if self.rule:
            return RunFailed(self.rule, self.error, notes, self.traceback)
        doing = f" in {self.doing}" if self.doing else ""
        host = f" ({self.host})" if self.host else ""
        return RunFailed(
            "rank-lost", f"rank {self.rank} of {world}{host} failed{doing}: {self.error}", notes, self.traceback
        )


def cause_of(error: BaseException, rank: int, doing: str) -> Cause:
    """Describe an exception that ended a rank."""
    from hybridgen.distributed.comm import PeerLost
    from hybridgen.distributed.signals import Stopped

    trace, host = "".join(traceback.format_exception(error))[-TRACEBACK:], socket.gethostname()
    made = Cause(rank, doing, "", False, time.time(), host, trace)
    if isinstance(error, RunFailed):
        return replace(made, error=error.message, rule=error.rule)
    if isinstance(error, (KeyboardInterrupt, Stopped)):
        number = error.number if isinstance(error, Stopped) else signal.SIGINT
        return replace(made, error=f"stopped by {number.name}", signal=int(number))
    text = str(error).strip().splitlines()[0][:ERROR] if str(error).strip() else ""
    name = type(error).__name__
    secondary = isinstance(error, PeerLost) or name in CONSEQUENCES
    return replace(made, error=f"{name}: {text}" if text else name, secondary=secondary)


class Slot(ctypes.Structure):
    """One rank's part of the memory; texts end with a zero byte."""

    _fields_ = (
        ("count", ctypes.c_uint64),
        ("waits", ctypes.c_bool),
        ("keeps", ctypes.c_bool),
        ("warned", ctypes.c_bool),
        ("doing", ctypes.c_char * 160),
        ("marks", ctypes.c_char * 12_000),
        ("cause", ctypes.c_char * 48_000),
    )


class Status:
    """The slots of all ranks. Every rank writes its own; the one who reports reads all.

    The memory is a file that has no name on any disk, so neither a full nor a read-only disk matters.
    """

    def __init__(self, world: int, rank: int = 0, memory: int | None = None) -> None:
        """memory: descriptor of the memory, which is made if none is given."""
        self.world, self.rank = world, rank
        if memory is None:
            memory = os.memfd_create("hybridgen")
            os.ftruncate(memory, ctypes.sizeof(Slot) * world)
        self.memory = memory
        self.slots = (Slot * world).from_buffer(mmap.mmap(memory, ctypes.sizeof(Slot) * world))

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.world, self.rank, reduction.DupFd(self.memory))

    def close(self) -> None:
        """Close the descriptor; the memory lasts as long as somebody uses it."""
        os.close(self.memory)

    def of(self, rank: int) -> Status:
        """The same memory for a rank that writes it."""
        made = object.__new__(Status)  # copy() would pass the descriptor on, as to another process
        vars(made).update(vars(self), rank=rank)
        return made

    def set(self, doing: str, waits: bool = False) -> None:
        """Say what this rank does now. waits: whether it waits for other ranks in it."""
        slot = self.slots[self.rank]
        slot.doing, slot.waits, slot.count = _fits(doing, Slot.doing.size), waits, slot.count + 1

    def warn(self) -> None:
        """Tell the ranks of this memory that their time is over: they keep the state of the clip, and end."""
        for slot in self.slots:
            slot.warned = True

    @property
    def warned(self) -> bool:
        """Whether this rank was told so."""
        return bool(self.slots[self.rank].warned)

    def keep(self, keeps: bool) -> None:
        """Say whether this rank has a result that is not on disk yet, for which a run that ends should wait."""
        self.slots[self.rank].keeps = keeps

    def wait_until_kept(self, rank: int, can: Callable[[], bool] = lambda: True) -> None:
        """Wait, for KEEP seconds at most, until a rank's result is on disk, as long as it can put it there."""
        end = time.monotonic() + KEEP
        while self.slots[rank].keeps and can() and time.monotonic() < end:
            time.sleep(0.01)

    def read(self, rank: int) -> str:
        """What a rank said that it does."""
        return bytes(self.slots[rank].doing).decode(errors="replace")

    def mark(self, name: str, text: str) -> None:
        """Leave a mark that outlives this rank, such as where the latents are."""
        packed = json.dumps({**self.marks(self.rank), name: text}).encode()
        if len(packed) < Slot.marks.size:
            self.slots[self.rank].marks = packed

    def forget(self) -> None:
        """Take back the marks of this rank: they are of a clip that is done."""
        self.slots[self.rank].marks = b""

    def marks(self, rank: int) -> dict[str, str]:
        """The marks that a rank has left."""
        found: dict[str, str] = _loaded(bytes(self.slots[rank].marks)) or {}
        return found

    def fail(self, cause: Cause) -> None:
        """Note why this rank ends."""
        packed = json.dumps(asdict(cause)).encode()
        if len(packed) >= Slot.cause.size:
            packed = json.dumps(asdict(replace(cause, traceback="", error=cause.error[:ERROR]))).encode()
        self.slots[self.rank].cause = packed[: Slot.cause.size - 1]

    def cause(self, rank: int) -> Cause | None:
        """Why a rank ended, if it could say so."""
        found = _loaded(bytes(self.slots[rank].cause))
        return Cause(**found) if found else None


def _received(world: int, rank: int, memory: Any) -> Status:
    return Status(world, rank, memory.detach())


def _fits(text: str, size: int) -> bytes:
    return text.encode(errors="replace")[: size - 1]


def _loaded(packed: bytes) -> Any:
    """The JSON of a slot; None where there is none, or a rank was killed while it wrote."""
    with suppress(ValueError):
        return json.loads(packed)
    return None
