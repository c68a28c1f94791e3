"""Before ranks of another launcher have met, one of each machine speaks, and who cannot come is named."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hybridgen.cli import main as command
from hybridgen.distributed import lookout
from hybridgen.distributed.place import JoinedRank

PROGRAM = """
import os, sys, time
from hybridgen.distributed import lookout, watch
from hybridgen.distributed.place import JoinedRank
from hybridgen.errors import RunFailed
lookout.LOOK = watch.LOOK = 0.1
lookout.PATIENCE = 3.0
rank, port, beside = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"]), int(os.environ.get("BESIDE", "0"))
here = JoinedRank(rank, 3, rank, "127.0.0.1", port, 0, False, beside=beside)
try:
    with lookout.Lookout(here) as look:
        time.sleep(0.5)  # until all are there
        print("ready", flush=True)
        if os.environ.get("DONE"):
            look.met()
            sys.stdin.readline()
            lookout.leave(here)
        sys.stdin.readline() or time.sleep(60)
        raise RunFailed("launcher", "nobody came")
except RunFailed as failure:
    print(*failure.lines(), file=sys.stderr)
    sys.exit(1)
"""


def ranks(port: int = 29500, count: int = 3, **given: str) -> list[subprocess.Popen[str]]:
    """Three ranks that wait for others, and go on for a line of input."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3", "MASTER_PORT": str(port), **given},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    for one in started:
        assert one.stdout is not None and one.stdout.readline() == "ready\n"
    return started


def said(started: list[subprocess.Popen[str]], line: str | None = None) -> list[str]:
    """What each of them prints to stderr until it ends."""
    return [one.communicate(line, timeout=60)[1] for one in started]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_is_named_once_and_ended(victim: int) -> None:
    started = ranks()
    started[victim].send_signal(signal.SIGSTOP)
    words = said(started)
    named = f"error[launcher]: rank {victim} of 3 failed: process {started[victim].pid} was stopped (SIGSTOP)"
    assert [word for word in words if word] == [f"{named} before it came\n"]
    assert [one.returncode for one in started] == [-9 if rank == victim else 1 for rank in range(3)]


def test_a_rank_that_ends_is_named_once() -> None:
    started = ranks()
    started[0].kill()
    words = said(started)
    named = "error[launcher]: rank 0 of 3 failed: its process ended before it came\n"
    assert [word for word in words if word] == [named]


def test_a_rank_that_ended_before_anybody_looked_is_named() -> None:
    """The launcher has said how many it starts here."""
    words = said(ranks(29501, 2, BESIDE="3"))
    named = "error[launcher]: rank 2 of 3 failed: its process ended before it came\n"
    assert [word for word in words if word] == [named]


def test_what_all_find_is_told_once() -> None:
    started = ranks()
    for one in started:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    assert said(started) == ["error[launcher]: nobody came\n", "", ""]
    assert [one.returncode for one in started] == [1, 1, 1]


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_that_is_stopped_after_all_work_is_named_and_ended(victim: int) -> None:
    """Its launcher would wait for it without end."""
    started = ranks(29501, DONE="1")
    started[victim].send_signal(signal.SIGSTOP)
    words = said([one for rank, one in enumerate(started) if rank != victim], "\n")
    assert started[victim].wait(60) == -signal.SIGKILL
    (line,) = [word for word in words if word]
    named = f"error[rank-lost]: rank {victim} of 3 failed: process {started[victim].pid} was stopped (SIGSTOP) after"
    assert line.startswith(named) and sorted(one.returncode for one in started) == [-9, 0, 0]


@pytest.mark.parametrize(("words", "leaves"), [("run --model demo -p x --cfg 2 --dry-run", True), ("models", False)])
def test_a_rank_whose_command_is_done_leaves_with_the_others(
    words: str, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[JoinedRank] = []
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["hybridgen", *words.split()])
    monkeypatch.setattr(lookout, "leave", left.append)
    monkeypatch.setattr(command, "raise_on_signals", lambda: None)
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 0 and [here.rank for here in left] == [1] * leaves


def test_ranks_of_other_jobs_are_none_of_this(monkeypatch: pytest.MonkeyPatch) -> None:
    started = ranks(29501)
    own = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "MASTER_PORT")}
    monkeypatch.setattr(os, "getppid", os.getpid)  # the ranks are children of this process
    for port, found in (("29501", {0, 1, 2, 7}), ("29502", {7})):
        monkeypatch.setattr(lookout, "_environment", with_own({**own, "WORLD_SIZE": "3", "MASTER_PORT": port}))
        assert lookout.siblings(JoinedRank(7, 8, 0, "", 1, 0, False)).keys() == found
    for one in started:
        one.kill()
        one.communicate()


def with_own(own: dict[str, str]) -> Callable[[str], dict[str, str]]:
    """What processes have in their environment, with another one for this process."""
    real = lookout._environment
    return lambda pid: own if pid == "self" else real(pid)


def test_a_rank_whose_launcher_is_killed_ends_while_it_imports(tmp_path: Path) -> None:
    """What the command imports first does not come to an end here; the rank holds a pipe that closes with it."""
    (tmp_path / "typer.py").write_text("import time; print('imports', flush=True); time.sleep(600)")
    given = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', Path.cwd())}"
    start = "import subprocess, sys; subprocess.run([sys.executable, '-m', 'hybridgen', 'run'])"
    with subprocess.Popen(
        [sys.executable, "-c", start],
        env={**os.environ, **given, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    ) as launcher:
        assert launcher.stdout is not None and launcher.stdout.readline() == "imports\n"
        launcher.kill()
        assert select.select([launcher.stdout], [], [], 60)[0] and launcher.stdout.read() == ""
