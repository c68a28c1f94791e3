"""The command as a process of its own, forked from this one, which has imported torch and diffusers already."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

from hybridgen.cli.main import main
from hybridgen.engine import imports

assert imports  # a fresh process would take seconds for it

SECONDS = 400


def hybridgen(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`hybridgen WORDS` in a folder, offline, with nobody to type; its exit code and what it printed."""
    outputs = [folder / f".{name}-{os.getpid()}" for name in ("stdout", "stderr")]
    pid = os.fork()
    if pid == 0:
        _become(folder, list(words), outputs)
    code = _wait(pid)
    stdout, stderr = (path.read_text() for path in outputs)
    for path in outputs:
        path.unlink()
    return subprocess.CompletedProcess(["hybridgen", *words], code, stdout, stderr)


def _become(folder: Path, words: list[str], outputs: list[Path]) -> None:
    """Run the command in this forked process, and end it."""
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.environ["HF_HUB_OFFLINE"] = "1"
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, path in enumerate(outputs, start=1):
            file = path.open("wb", 0)
            os.dup2(file.fileno(), number)
        sys.stdout, sys.stderr = (io.TextIOWrapper(os.fdopen(n, "wb", 0), write_through=True) for n in (1, 2))
        sys.argv = ["hybridgen", *words]
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter would end
        traceback.print_exc()
    os._exit(code)


def _wait(pid: int) -> int:
    """The exit code; negative for a signal, as subprocess has it. TimeoutExpired after SECONDS."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise subprocess.TimeoutExpired("hybridgen", SECONDS)
