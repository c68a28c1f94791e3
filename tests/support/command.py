"""The command as a process of its own, forked from this one, which has imported torch and diffusers already."""

from __future__ import annotations

import io
import itertools
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from hybridgen.cli.main import main
from hybridgen.engine import imports
from tests.support import huge_pages

assert imports  # a fresh process would take seconds for it

SECONDS = 400
_number = itertools.count()


@dataclass(frozen=True)
class Command:
    """A command that was started, and the files that it prints to."""

    words: list[str]
    pid: int
    outputs: list[Path]

    def wait_for(self, text: str) -> None:
        """Return when it has printed this to stderr. TimeoutError after SECONDS."""
        end = time.monotonic() + SECONDS
        while text not in self.outputs[1].read_text():
            if time.monotonic() > end:
                raise TimeoutError(f"{text} was not printed")
            time.sleep(0.02)

    def finish(self, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
        """Its exit code, negative for a signal, and what it printed. TimeoutExpired after these seconds."""
        code = _wait(self.pid, seconds)
        stdout, stderr = (path.read_text() for path in self.outputs)
        for path in self.outputs:
            path.unlink()
        return subprocess.CompletedProcess(self.words, code, stdout, stderr)


def hybridgen(folder: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """`hybridgen WORDS` in a folder, offline, with nobody to type; its exit code and what it printed.

    options: as for start().
    """
    return start(folder, *words, **options).finish()


def start(
    folder: Path,
    *words: str,
    environment: Mapping[str, str] = {},
    tree: Path | None = None,
    prepare: Callable[[], None] = lambda: None,
) -> Command:
    """The same, without waiting for its end. It leads a process group of its own.

    environment: variables beside those of this process; tree: the folder whose hybridgen runs, imported afresh;
    prepare: called in the process before the command.
    """
    outputs = [folder / f".{name}-{next(_number)}-{os.getpid()}" for name in ("stdout", "stderr")]
    for path in outputs:
        path.touch()
    huge_pages.fold()
    pid = os.fork()
    if pid == 0:
        os.environ.update({"HF_HUB_OFFLINE": "1", **environment})
        _become(folder, list(words), outputs, tree, prepare)
    return Command(["hybridgen", *words], pid, outputs)


def _become(
    folder: Path, words: list[str], outputs: list[Path], tree: Path | None, prepare: Callable[[], None]
) -> None:
    """Run the command in this forked process, and end it."""
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, path in enumerate(outputs, start=1):
            file = path.open("wb", 0)
            os.dup2(file.fileno(), number)
        sys.stdout, sys.stderr = (io.TextIOWrapper(os.fdopen(n, "wb", 0), write_through=True) for n in (1, 2))
        sys.argv = ["hybridgen", *words]
        prepare()
        (main if tree is None else _main_of(tree))()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter would end
        traceback.print_exc()
    os._exit(code)


def _main_of(tree: Path) -> Callable[[], None]:
    """The command of the hybridgen in a folder; what it imports beside itself is there already."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "hybridgen"]:
        del sys.modules[name]
    sys.path.insert(0, str(tree))
    os.environ["PYTHONPATH"] = str(tree)  # for the processes that it starts
    found: Callable[[], None] = import_module("hybridgen.cli.main").main
    assert import_module("hybridgen").__file__ == str(tree / "hybridgen" / "__init__.py")
    return found


def _wait(pid: int, seconds: float) -> int:
    """The exit code; negative for a signal, as subprocess has it. TimeoutExpired after these seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise subprocess.TimeoutExpired("hybridgen", seconds)
