"""A cluster's warning: the state is kept first, then the run ends with a code to start it again on."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridgen.distributed.files import written_whole
from hybridgen.engine import pace, state_file
from hybridgen.engine.options import PreemptSignal, RunOptions
from hybridgen.engine.outputs import AUTO
from hybridgen.engine.pace import Pace
from tests.support import command
from tests.support.command import Command
from tests.support.runs import latents

TINY = ("run", "--model", "tiny:wan2.2-t2v", "--device", "cpu", "--frames", "5", "--steps", "60", "--ulysses", "2")
WARNED = ("--preempt-signal", "USR1", "--resume")
AGAIN = 75


def begun(started: Command, text: str = "/60") -> Command:
    """The command once it denoises."""
    started.wait_for(text)
    return started


def test_a_warned_run_waits_for_the_rank_that_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*given: Any) -> Any:
        time.sleep(2)
        return written_whole(*given)

    monkeypatch.setattr(state_file, "written_whole", late)
    started = begun(command.start(tmp_path, *TINY, "-p", "x", "--out", "clip.mp4", *WARNED))
    os.kill(started.pid, signal.SIGUSR1)
    assert started.finish().returncode == AGAIN
    assert [path.name for path in tmp_path.iterdir()] == ["clip.state.safetensors"]


def test_a_warned_run_keeps_its_state_and_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    clip = ("-p", "a lighthouse", "--seed", "3", "--out", "clip.mp4", "--latents", "clip.safetensors")
    assert command.hybridgen(tmp_path, *TINY, *clip).returncode == 0
    whole = latents(tmp_path / "clip.safetensors")
    again = (*TINY, *clip, *WARNED, "--overwrite")
    started = begun(command.start(tmp_path, *again))
    os.killpg(started.pid, signal.SIGUSR1)  # the ranks hear it as well, as on a cluster
    ended = started.finish()
    assert ended.returncode == AGAIN, ended.stderr
    assert "ended by SIGUSR1 after" in ended.stderr and "--resume goes on" in ended.stderr, ended.stderr
    on = command.hybridgen(tmp_path, *again)
    assert on.returncode == 0 and "resume   after step" in on.stderr, on.stderr
    assert torch.equal(latents(tmp_path / "clip.safetensors"), whole)
    assert not list(tmp_path.glob("*.state.*"))


@pytest.mark.parametrize("world", [0, 4])
def test_a_warned_job_keeps_the_states_of_all_its_clips(world: int, tmp_path: Path) -> None:
    """On one machine, and where every rank hears the signal, as under srun."""
    (tmp_path / "p.txt").write_text("one\ntwo\nthree\nfour\n")
    words = (*TINY, "--prompts", "p.txt", "--replicas", "2", *WARNED)
    ranks = started(tmp_path, world, *words)
    begun(ranks[0], "(replica 0 of 2)")
    begun(ranks[0], "(replica 1 of 2)")
    time.sleep(0.5)
    for rank in ranks:
        os.kill(rank.pid, signal.SIGUSR1)
    ends = [rank.finish() for rank in ranks]
    assert ends[0].returncode == AGAIN and not any(end.returncode for end in ends[1:]), ends[0].stderr
    states = sorted(path.name for path in tmp_path.glob("*.state.safetensors"))
    assert len(states) == 2 and all(name in ends[0].stderr for name in states)
    on = [rank.finish() for rank in started(tmp_path, world, *words)]
    assert on[0].returncode == 0, on[0].stderr
    entries = [json.loads(line) for line in (tmp_path / "p.manifest.jsonl").read_text().splitlines()]
    assert [entry["status"] for entry in entries] == ["done"] * 4
    assert not list(tmp_path.glob("*.state.safetensors"))


def started(folder: Path, world: int, *words: str) -> list[Command]:
    """The command, or the ranks of a joined job."""
    if not world:
        return [command.start(folder, *words)]
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = str(door.getsockname()[1])
    same = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    given = [{**same, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
    return [command.start(folder, *words, environment=one) for one in given]


def test_the_pace_is_that_of_a_hundredth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    own, kept = Pace(began=0.0), []
    for _ in range(20_000):
        clock[0] += 0.5
        if own.is_due():
            clock[0] += 2.0
            own.kept(2.0)
            kept.append(clock[0])
    spent = 2.0 * len(kept)
    assert kept[0] < 60 and 0.005 < spent / clock[0] <= 0.0105


def test_the_pace_is_kept_by_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = state_file.keep

    def told(*given: Any) -> None:
        (tmp_path / f"kept-{given[0].context.rank}-{given[3]}").touch()
        keep(*given)

    monkeypatch.setattr(state_file, "keep", told)  # ranks are forked, so they inherit it
    monkeypatch.setattr(pace, "SHARE", 1e9)
    assert RunOptions(preempt_signal=PreemptSignal.USR2).outputs.keep_every == AUTO
    done = command.hybridgen(tmp_path, *TINY, "-p", "x", "--preempt-signal", "USR2", "--out", "clip.mp4")
    assert done.returncode == 0, done.stderr
    steps = [{path.name.split("-")[2] for path in tmp_path.glob(f"kept-{rank}-*")} for rank in (0, 1)]
    assert steps[0] == steps[1] and len(steps[0]) > 0
