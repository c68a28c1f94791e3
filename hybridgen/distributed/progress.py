"""Progress on stderr: a bar on a terminal, a line now and then in a log. One rank shows it."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

LOG_SECONDS = 30.0
LOG_SHARE = 0.1


class _Stderr:
    """A stderr that may be closed: a run does not end because nobody reads it."""

    def write(self, text: str) -> None:
        with suppress(OSError, AttributeError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError, AttributeError):
            sys.stderr.flush()

    @property
    def encoding(self) -> str:
        return getattr(sys.stderr, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        return sys.stderr is not None and sys.stderr.isatty()

    def fileno(self) -> int:
        return sys.stderr.fileno()


def _width() -> int:
    """Columns of the terminal that stderr is, of which the last stays free; 79 where it does not say."""
    with suppress(OSError, AttributeError, ValueError):
        columns = os.get_terminal_size(_Stderr().fileno()).columns
        return max(columns - 1, 9) if columns else 79
    return 79


class Event(NamedTuple):
    """Something that happened to a clip."""

    kind: str
    """begin: ranks have it; lost: these ranks failed, and it is made again; stage: one is done; step: a denoising step
    is done; preview: a picture of it is there; chunk: frames are decoded; note: a remark or warning; done, failed,
    cancelled: the last one."""
    text: str = ""
    """Name of the stage, path of the picture, the remark, the replica that begins, or why ranks are lost."""
    done: int = 0
    """Steps or frames that are done."""
    total: int = 0
    """Steps or frames of the clip."""
    seconds: float = 0.0
    """What the stage or step took (s)."""
    left: float = 0.0
    """What the remaining steps will take at the mean rate (s)."""


@dataclass
class Progress:
    """Progress of a run. mode: "bar" draws a bar, "lines" adds a line every 30 s or 10%, "none" is silent.

    `tell` is given every event, whatever the mode.
    """

    mode: Literal["bar", "lines", "none"] = "none"
    total: int = 0
    last_line: float = 0.0
    last_share: float = 0.0
    seconds: list[float] = field(default_factory=list)
    bar: Bar | None = None
    tell: Callable[[Event], None] = lambda event: None

    @staticmethod
    def for_stream(quiet: bool) -> Progress:
        """Progress for this stderr: a bar on a terminal, lines elsewhere, whatever variables say of colour."""
        return Progress("none" if quiet else "bar" if _Stderr().isatty() else "lines")

    def stage(self, name: str, detail: str, seconds: float) -> None:
        """Show one finished stage; its line stays on the screen."""
        self.tell(Event("stage", name, seconds=seconds))
        room = min(34, _width() - 21) if self.mode == "bar" else 34
        self._show(f"{name:<8} {detail:<{max(room, 1)}} {seconds:8.1f} s")

    def note(self, text: str) -> None:
        """Show a line that stays on the screen, above the bar; on a terminal it is folded to the width."""
        self.tell(Event("note", text.strip()))
        self._show(text)

    def _show(self, text: str) -> None:
        if self.mode == "bar" and len(text) > (width := _width()):
            text = textwrap.fill(text, width, subsequent_indent=" " * min(9, width // 3))
        if self.bar is not None:
            self.bar.console.print(text, markup=False, highlight=False)
        elif self.mode != "none":
            print(text, file=_Stderr(), flush=True)

    def start(self, total: int) -> None:
        """Start the count of denoising steps that are about to run."""
        self.total, self.last_line = total, time.monotonic()
        if self.mode == "bar":
            self.bar = _bar(total)
            self.bar.start()

    def step(self, seconds: float) -> None:
        """Show that one denoising step is done, and the seconds it took."""
        self.seconds.append(seconds)
        self.tell(Event("step", "denoise", self.done, self.total, seconds, self.left))
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], advance=1, rate=f"{self.rate:.2f} s/step")
            if self.done == self.total:
                self.bar.stop()
                self.bar = None
        elif self.mode == "lines" and self._due():
            self._show(f"{time.strftime('%H:%M:%S')} {self._line()}")

    def _due(self) -> bool:
        now, share = time.monotonic(), self.done / self.total
        due = now - self.last_line >= LOG_SECONDS or share - self.last_share >= LOG_SHARE - 1e-9
        # Short runs would print ten lines at once: at most one a second, and always the last.
        if self.done == self.total or (due and now - self.last_line >= 1.0):
            self.last_line, self.last_share = now, share
            return True
        return False

    @property
    def done(self) -> int:
        """Number of steps that are done."""
        return len(self.seconds)

    @property
    def rate(self) -> float:
        """Mean seconds per step; the first step warms up and is left out."""
        rest = self.seconds[1:] or self.seconds
        return sum(rest) / len(rest)

    @property
    def left(self) -> float:
        """Seconds that the remaining steps will take at the mean rate."""
        return self.rate * (self.total - self.done)

    def _line(self) -> str:
        return (
            f"denoise  {self.done}/{self.total} {self.done / self.total:4.0%}  {self.rate:.2f} s/step  "
            f"{clock(self.left)} left"
        )


def _bar(total: int) -> Bar:
    """A bar of the denoising steps, as much of it as fits the terminal, that vanishes when it is stopped."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    width = _width()
    console = Console(file=_Stderr(), width=width)  # type: ignore[arg-type]
    # A rank that is killed could not show the cursor again.
    console.show_cursor = lambda show=True: False  # type: ignore[method-assign]
    columns: list[Any] = [MofNCompleteColumn(), TextColumn("{task.fields[rate]}")]  # 27 columns with 9999 steps
    if width >= 38:
        columns = ["denoise ", SpinnerColumn(), *columns]
    if width >= 52:
        columns += [TimeRemainingColumn(), "left"]
    if width >= 60:
        columns.insert(2, BarColumn(min(24, width - 54)))
    bar = Bar(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    bar.add_task("denoise", total=total, rate="first step ...")
    return bar


def clock(seconds: float) -> str:
    """Seconds as a clock: 75 is "1:15"; hours only when there are any."""
    minutes, secs = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"
