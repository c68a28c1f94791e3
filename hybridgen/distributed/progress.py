"""Progress on stderr: a line rewritten on a terminal, a line now and then in a log. One rank shows it."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

LOG_SECONDS = 30.0
LOG_SHARE = 0.1


@dataclass
class Progress:
    """mode: "bar" rewrites one line, "lines" adds one every 30 s or 10%, "none" is silent."""

    mode: str = "none"
    total: int = 0
    last_line: float = 0.0
    last_share: float = 0.0
    seconds: list[float] = field(default_factory=list)

    @staticmethod
    def for_stream(quiet: bool) -> Progress:
        """A bar only where stderr is a terminal: what environment variables say of colour does not count."""
        return Progress("none" if quiet else "bar" if sys.stderr.isatty() else "lines")

    def stage(self, name: str, detail: str, seconds: float) -> None:
        """One finished stage; stays on the screen."""
        if self.mode != "none":
            self._print(f"{name:<8} {detail:<34} {seconds:8.1f} s")

    def note(self, text: str) -> None:
        if self.mode != "none":
            self._print(text)

    def start(self, total: int) -> None:
        self.total, self.last_line = total, time.monotonic()
        if self.mode == "bar":
            self._rewrite(f"denoise  0/{total}  first step ...")

    def step(self, seconds: float) -> None:
        """One denoising step is done; it took so many seconds."""
        self.seconds.append(seconds)
        if self.mode == "bar":
            self._rewrite(self._bar())
        elif self.mode == "lines" and self._due():
            self._print(f"{time.strftime('%H:%M:%S')} {self._line()}")

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
        return len(self.seconds)

    @property
    def rate(self) -> float:
        """Seconds per step; the first warms up and is left out."""
        rest = self.seconds[1:] or self.seconds
        return sum(rest) / len(rest)

    def _line(self) -> str:
        left = self.rate * (self.total - self.done)
        return (
            f"denoise  {self.done}/{self.total} {self.done / self.total:4.0%}  {self.rate:.2f} s/step  "
            f"{clock(left)} left"
        )

    def _bar(self) -> str:
        filled = round(24 * self.done / self.total)
        left = self.rate * (self.total - self.done)
        return (
            f"denoise  {self.done}/{self.total}  [{'#' * filled}{'.' * (24 - filled)}]  "
            f"{self.rate:.2f} s/step  {clock(left)} left"
        )

    def _rewrite(self, text: str) -> None:
        _write(f"\r\x1b[K{text}")

    def _print(self, text: str) -> None:
        start = "\r\x1b[K" if self.mode == "bar" else ""
        _write(f"{start}{text}\n")


def _write(text: str) -> None:
    with suppress(OSError, AttributeError):  # nobody listens any more, which is no reason to end a run
        sys.stderr.write(text)
        sys.stderr.flush()


def clock(seconds: float) -> str:
    """75 -> "1:15"; hours only when there are any."""
    minutes, secs = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"
