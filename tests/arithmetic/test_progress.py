"""Progress: a bar on a terminal, lines in a log, and neither ends a run."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from contextlib import suppress

import pytest

from hybridgen.distributed.progress import Progress, clock


def show(progress: Progress, steps: int = 4) -> None:
    progress.stage("load", "cfg2", 1.0)
    progress.start(steps)
    for step in range(steps):
        if step == 2:
            progress.note("low-noise expert")
        progress.step(0.5)
    progress.stage("denoise", f"{steps} steps", 2.0)


def everything(terminal: int) -> bytes:
    """What was written to a terminal whose other end is closed."""
    found = b""
    with suppress(OSError):  # the end of what there is
        while part := os.read(terminal, 4096):
            found += part
    return found


def test_a_terminal_shows_a_bar_that_leaves_the_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, follower = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", os.fdopen(follower, "w", buffering=1))
    progress = Progress.for_stream(quiet=False)
    assert progress.mode == "bar"
    show(progress)
    sys.stderr.close()
    shown = everything(terminal).decode()
    assert "4/4" in shown and "0.50 s/step" in shown and shown.count("low-noise expert") == 1
    last = shown.split("\x1b[2K")[-1]  # after the bar was wiped away
    assert last.startswith("denoise  4 steps") and last.endswith("2.0 s\r\n")
    assert "\x1b[?25l" not in shown  # a rank that is killed could not show the cursor again


@pytest.mark.parametrize("columns", [100, 60, 40, 25])
def test_nothing_is_wider_than_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", os.fdopen(follower, "w", buffering=1))
    progress = Progress.for_stream(quiet=False)
    progress.stage("write", "a-long-name-of-a-file-that-does-not-fit-anywhere-without-folding.mp4", 1.0)
    show(progress)
    sys.stderr.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", everything(terminal).decode())
    lines = re.split(r"[\r\n]+", shown)
    assert max(map(len, lines)) <= columns and any("4/4" in line for line in lines)
    assert "".join(line.strip() for line in lines).count("a-long-name-of-a-file-that-does-not-fit") == 1


def test_a_log_gets_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress.for_stream(quiet=False)
    assert progress.mode == "lines"
    show(progress)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines if "4/4" not in line] == ["load", "low-noise", "denoise"]
    assert any("4/4 100%  0.50 s/step  0:00 left" in line for line in lines) and "\x1b" not in "".join(lines)


def test_quiet_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    show(Progress.for_stream(quiet=True))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("mode", ["bar", "lines"])
def test_a_closed_stream_ends_nothing(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "stderr", os.fdopen(writer, "w", buffering=1, closefd=False))
    show(Progress(mode))  # type: ignore[arg-type]
    os.close(writer)
    monkeypatch.setattr(sys, "stderr", None)
    show(Progress(mode))  # type: ignore[arg-type]


@pytest.mark.parametrize(("seconds", "shown"), [(75, "1:15"), (0.4, "0:00"), (3661, "1:01:01")])
def test_times_are_short(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown
