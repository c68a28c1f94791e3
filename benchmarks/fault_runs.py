"""Runs of the demo model that benchmarks/faults.py hits: how they are started, and what is seen of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from benchmarks.srun import srun

PROMPT = "a red circle moves right"
REQUEST = "run --model demo --steps 60 --seed 1 --out out/clip.mp4 --report out/report.json".split()
SPLITS = {4: "--cfg 2 --ulysses 2 --vae 2".split(), 3: "--ring 3 --vae 3".split()}
"""Degrees of runs, by number of ranks."""
MARK = "HYBRIDGEN_FAULTS"
"""Variable that marks the processes of a run, with its folder."""


@dataclass
class Run:
    """A command in a folder of its own."""

    folder: Path
    pid: int
    world: int
    variable: str = ""
    """Variable that tells a rank its number; "" where hybridgen starts its ranks itself."""
    code: int | None = None

    @property
    def said(self) -> str:
        return read(str(self.folder / "stderr"))

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def ended(self) -> bool:
        """Whether the process that was started has ended."""
        if self.code is None:
            with suppress(ChildProcessError):
                done, status = os.waitpid(self.pid, os.WNOHANG)
                self.code = os.waitstatus_to_exitcode(status) if done else None
        return self.code is not None

    def alive(self) -> list[int]:
        """Processes of the run that are there, whoever their parent is."""
        mark = f"{MARK}={self.folder}"
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
        return [
            pid
            for pid in pids
            if (fields := stat(pid)) and fields[0] not in "ZX" and (int(fields[3]) == self.pid or mark in environ(pid))
        ]

    def ranks(self) -> list[int]:
        """The ranks, by number, as far as they are there."""
        if not self.variable:
            return [pid for pid in children(self.pid) if "ffmpeg" not in command(pid)]
        found = {
            pid: environ(pid) for pid in self.alive() if "hybridgen" in command(pid) and "torch" not in command(pid)
        }
        numbers = {
            pid: [word for word in words if word.startswith(f"{self.variable}=")] for pid, words in found.items()
        }
        return [pid for pid, _ in sorted(numbers.items(), key=lambda one: one[1]) if numbers[pid]]

    def ffmpeg(self) -> list[int]:
        return [pid for pid in self.alive() if "ffmpeg" in command(pid)]

    def end(self) -> None:
        """Kill what is left."""
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while not self.ended():
            time.sleep(0.01)

    def wait_for(self, text: str, limit: float) -> bool:
        """Whether the run has a rank and has printed a text, in this time and before it ended."""
        end = time.monotonic() + limit
        while not (text in self.said and self.ranks()):
            if self.ended() or time.monotonic() > end:
                return False
            time.sleep(0.05 if self.variable else 0.005)
        return True


def read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def stat(pid: int) -> list[str]:
    """State, parent, group, session and so on of a process; [] where there is none."""
    return read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def children(pid: int) -> list[int]:
    return sorted(
        int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in read(str(path)).split()
    )


def command(pid: int) -> str:
    return read(f"/proc/{pid}/cmdline").replace("\0", " ")


def environ(pid: int) -> list[str]:
    return read(f"/proc/{pid}/environ").split("\0")


def start(folder: Path, launcher: str = "", stdout: str = "", ignore: int | None = None, folders: str = "") -> Run:
    """Start a run with its output in files of the folder, and its results in a folder `out` there.

    launcher: "torchrun", "restarts" (torchrun with one restart), "srun" (its stand-in), or "" for none.
    stdout: a file in the place of the one in the folder.
    ignore: a signal that the run ignores from its start.
    folders: variables of the environment that are set to folders, as NAME=PATH.
    """
    world = 3 if launcher else 4
    words = [*REQUEST, *SPLITS[world], "-p", PROMPT]
    (folder / "out").mkdir(exist_ok=True)
    name, _, value = folders.partition("=")
    os.environ.update({MARK: str(folder), **({name: value} if name else {})})
    begin = partial(_become, folder, stdout, ignore)
    try:
        if not launcher:
            return Run(folder, _forked(begin, partial(_hybridgen, words)), world)
        if launcher == "srun":
            return Run(
                folder, _forked(begin, partial(srun, world, partial(_ending, partial(_hybridgen, words)))), world
            )
        line = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        line += ["--max-restarts=1"] if launcher == "restarts" else []
        line += ["-m", "hybridgen", *words]
        return Run(folder, _forked(begin, partial(os.execv, line[0], line)), world, "RANK")
    finally:
        os.environ.pop(name, None)


def alone(folder: Path, words: list[str], world: int) -> Run:
    """Start the command with these words, in a folder, on ranks that it starts itself."""
    os.environ[MARK] = str(folder)
    return Run(folder, _forked(partial(_become, folder, "", None), partial(_hybridgen, words)), world)


def _become(folder: Path, stdout: str, ignore: int | None) -> None:
    """Make this process one of its own, in a folder."""
    os.setsid()
    os.chdir(folder)
    for number, path in ((1, stdout or "stdout"), (2, "stderr")):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup may have started this benchmark
    if ignore is not None:
        signal.signal(ignore, signal.SIG_IGN)


def _forked(*steps: Callable[[], None]) -> int:
    """Run functions in a new process, which ends with them; returns its id."""
    pid = os.fork()
    if pid == 0:
        _ending(*steps)
    return pid


def _ending(*steps: Callable[[], None]) -> NoReturn:
    """Run functions, and end this process as the interpreter would."""
    code = 1
    try:
        for step in steps:
            step()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - printed, as the interpreter does
        traceback.print_exc()
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


def _hybridgen(words: list[str]) -> None:
    """The command, in this process: it was forked from one that has imported what the command needs."""
    from hybridgen.cli.main import main

    sys.stdout, sys.stderr = (os.fdopen(number, "w", 1) for number in (1, 2))
    sys.argv = ["hybridgen", *words]
    main()


def small_disk(folder: Path) -> bool:
    """Mount a file system of 1 MB in memory there; whether that was allowed."""
    folder.mkdir(exist_ok=True)
    line = ["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", str(folder)]
    return subprocess.run(line, capture_output=True, check=False).returncode == 0


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)
