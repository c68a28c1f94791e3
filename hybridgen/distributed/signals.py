"""Signals that end a run, and processes that end with the one that started them. No torch."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a run to end."""
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)  # loaded here: a process that was just forked should load nothing


class Stopped(BaseException):
    """A signal asked the run to end. Its notes tell what was kept."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = signal.Signals(number)

    def lines(self) -> list[str]:
        """What the user is told."""
        how = "" if self.number == signal.SIGINT else f" by {self.number.name}"
        return [f"stopped{how}", *(f"  {note}" for note in getattr(self, "__notes__", []))]


def raise_on_signals() -> None:
    """Turn the first signal into Stopped, so that clean-up runs, and ignore those that follow.

    A signal that is ignored already stays ignored: nohup and shells ask for that.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _raise)


def _raise(number: int, _: FrameType | None) -> None:
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)


def without_raising(numbers: Iterable[int]) -> set[int]:
    """Have signals raise nothing any more where they would; returns which ones. Another thread acts on them, which
    hears of them through signal.set_wakeup_fd().

    Raises ValueError in all threads but the main one.
    """
    found = {int(number) for number in numbers if callable(signal.getsignal(number))}
    for number in found:
        signal.signal(number, lambda *_: None)
    return found


class EndsSoon:
    """A handler of a signal that warns of the end of the time on a cluster: the run ends itself between two steps."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self.ask = ask

    def __call__(self, number: int, _: FrameType | None) -> None:
        self.ask()


@contextmanager
def warned(number: int, ask: Callable[[], None]) -> Iterator[None]:
    """A block in which a signal of this number, if it is not 0, calls ask(). Only the main thread hears signals."""
    if not number or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, EndsSoon(ask))
    try:
        yield
    finally:
        signal.signal(number, before)


class Heard:
    """Signals that this process was sent, for a thread: the main thread may be in a call that never returns."""

    def __init__(self) -> None:
        self.times: list[float] = []
        """When signals were heard."""
        self.ours: set[int] = set()
        """Signals that raise_on_signals() took care of, and that are now heard here alone."""
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def start(self) -> None:
        """Begin to hear. Raises ValueError in all threads but the main one."""
        signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        self.ours = without_raising(number for number in SIGNALS if signal.getsignal(number) is _raise)

    def next(self, seconds: float) -> int | None:
        """The next of SIGNALS that comes in this time."""
        if select.select([self.reader], [], [], seconds)[0]:
            with suppress(BlockingIOError):  # another thread took it
                number = os.read(self.reader, 1)[0]
                if number in self.ours:
                    self.times.append(time.time())
                return number if number in SIGNALS and not isinstance(signal.getsignal(number), EndsSoon) else None
        return None


@contextmanager
def held() -> Iterator[list[int]]:
    """A block that no signal interrupts; one that arrives meanwhile is delivered at its end.

    The mask alone would not do: a signal to the process reaches any of its threads that does not block it, and Python
    runs the handler in the main thread. The block may clear the list of what has arrived in that way.
    """
    arrived: list[int] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    handlers = _replaced(lambda number, _: arrived.append(number))
    try:
        yield arrived
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number in arrived:
            os.kill(os.getpid(), number)


def _replaced(handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Put a handler in the place of Python's own ones, which are returned; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    before = {number: signal.getsignal(number) for number in SIGNALS}
    own = {int(number): found for number, found in before.items() if callable(found)}
    for number in own:
        signal.signal(number, handler)
    return own


@contextmanager
def dropped() -> Iterator[None]:
    """A block that no signal interrupts, for clean-up; those that arrive meanwhile are dropped."""
    with held() as arrived:
        try:
            yield
        finally:
            while signal.sigtimedwait(SIGNALS, 0) is not None:
                pass
            arrived.clear()


def as_rank() -> None:
    """Set the signals of a process that was just started as a rank.

    Ctrl-C reaches every process of the terminal, and the launcher decides; other signals end the rank.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent ends, even while this process is stopped.

    parent: the parent's process id, to see whether it ended before this call.
    """
    _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
