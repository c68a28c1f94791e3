"""What benchmarks/faults.py does to a run."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchmarks.fault_runs import Run

SOON = 10.0
"""Seconds in which every run should end."""
Fault = Callable[[Run, int], None]


class Missed(Exception):
    """The run had ended, or what was to be hit was not there."""


def to_rank(number: int) -> Fault:
    """A signal to one rank, as soon as it is there."""

    def fault(run: Run, victim: int) -> None:
        end = time.monotonic() + SOON
        while len(ranks := run.ranks()) <= victim:
            if run.ended() or time.monotonic() > end:
                raise Missed
            time.sleep(0.005)
        os.kill(ranks[victim], number)

    return fault


def to_launcher(number: int, times: int = 1, group: bool = False) -> Fault:
    """A signal to the process that was started, or to all of its group."""

    def fault(run: Run, _: int) -> None:
        if run.ended():
            raise Missed
        for _ in range(times):
            with suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(run.pid, number)
            time.sleep(0.025)

    return fault


def as_forked(number: int, group: bool) -> Fault:
    """A signal as soon as some of the ranks are there."""

    def fault(run: Run, victim: int) -> None:
        while len(run.ranks()) <= victim and not run.ended():
            pass
        to_launcher(number, group=group)(run, victim)

    return fault


def to_ffmpeg(number: int) -> Fault:
    def fault(run: Run, _: int) -> None:
        while not (found := run.ffmpeg()):
            if run.ended():
                raise Missed
            time.sleep(0.005)
        os.kill(found[0], number)

    return fault


def stop_and_kill(run: Run, victim: int) -> None:
    """A rank is stopped and its launcher is killed."""
    to_rank(signal.SIGSTOP)(run, victim)
    os.kill(run.pid, signal.SIGKILL)


def take_memory(run: Run, victim: int) -> None:
    """A rank may take no more memory than it has."""
    ranks = run.ranks()
    if len(ranks) <= victim:
        raise Missed
    now = int(Path(f"/proc/{ranks[victim]}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(ranks[victim], resource.RLIMIT_AS, (now, now))


def fill(name: str) -> Fault:
    """A folder's disk gets full."""

    def fault(run: Run, _: int) -> None:
        with suppress(OSError), (run.folder / name / "filler").open("wb") as file:
            while file.write(bytes(4096)):
                file.flush()

    return fault


def forbid(run: Run, _: int) -> None:
    """The folder of the results may not be written any more."""
    line = ["mount", "-o", "remount,ro", str(run.out)]
    if subprocess.run(line, capture_output=True, check=False).returncode:
        raise Missed  # a file is open


def remove(run: Run, _: int) -> None:
    shutil.rmtree(run.out)


def nothing(_: Run, __: int) -> None:
    """No fault: the run is started in a place that fails."""
