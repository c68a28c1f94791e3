"""Jobs of many clips under torchrun and srun: rank 0 hands out the clips, and replicas make them side by side."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hybridgen.distributed.place import JoinedRank
from hybridgen.engine import signed as signing
from hybridgen.engine.handed import Ended
from hybridgen.errors import RunFailed
from tests.support import command
from tests.support.command import Command

TINY = ("run", "--model", "tiny:wan2.2-t2v", "--device", "cpu", "--frames", "5", "--ulysses", "2")
LINES = ({"prompt": "one", "seed": 1}, {"prompt": "two", "size": "96x64", "steps": 3}, {"prompt": "three"})
HERE = JoinedRank(0, 2, 0, "127.0.0.1", 1, 0, False)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


def joined(folder: Path, world: int, *words: str) -> list[Command]:
    """Start the ranks of a job, as torchrun does."""
    same = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    given = [{**same, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
    return [command.start(folder, *TINY, *words, environment=one) for one in given]


def listed(folder: Path, *lines: dict[str, Any]) -> None:
    (folder / "p.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def entries(folder: Path, name: str = "p.manifest.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_joined_replicas_make_the_clips_that_one_machine_makes(tmp_path: Path) -> None:
    """Each clip once, on the ranks of one replica; and what is there is not made again."""
    listed(tmp_path, *LINES, {"prompt": "bad", "frames": 6})
    words = ("--steps", "2", "--prompts", "p.jsonl", "--replicas", "2")
    ranks = [rank.finish() for rank in joined(tmp_path, 4, *words)]
    assert [rank.returncode for rank in ranks] == [1, 0, 0, 0], ranks[0].stderr
    assert [rank.stdout for rank in ranks[1:]] == [""] * 3 and len(ranks[0].stdout.splitlines()) == 3
    assert "on 2 replicas" in ranks[0].stderr and not any(rank.stderr for rank in ranks[1:])
    assert {f"(replica {n} of 2)" in ranks[0].stderr for n in (0, 1)} == {True}
    made = entries(tmp_path)
    assert [entry["status"] for entry in made] == ["done", "done", "done", "refused"]
    again = [rank.finish() for rank in joined(tmp_path, 2, *words[:-2])]
    assert "3 there already" in again[0].stderr
    for path in tmp_path.glob("*.mp4"):
        path.unlink()
    local = command.hybridgen(tmp_path, *TINY, *words[:-2], "--manifest", "local.jsonl")
    assert local.returncode == 1
    digests = [[entry.get("latents_sha256") for entry in found] for found in (made, entries(tmp_path, "local.jsonl"))]
    assert digests[0] == digests[1] and len(set(digests[0])) == 4


def test_a_rank_that_dies_ends_the_job_once_and_started_again_it_goes_on(tmp_path: Path) -> None:
    listed(tmp_path, {"prompt": "one", "steps": 2}, {"prompt": "two", "steps": 90}, {"prompt": "three", "steps": 2})
    words = ("--prompts", "p.jsonl", "--checkpoint-every", "5")
    ranks = joined(tmp_path, 2, *words)
    ranks[0].wait_for("clip 2")
    while not list(tmp_path.glob("*.state.safetensors")):
        time.sleep(0.05)
    os.kill(ranks[1].pid, signal.SIGKILL)
    first, second = (rank.finish() for rank in ranks)
    assert (first.returncode, second.returncode) == (1, -signal.SIGKILL)
    assert first.stderr.count("error[rank-lost]: rank 1 of 2") == 1 and "1 of 3 clips are made" in first.stderr
    assert [entry["status"] for entry in entries(tmp_path)] == ["done", "begun", "begun"]
    on = [rank.finish() for rank in joined(tmp_path, 2, *words, "--resume")]
    assert on[0].returncode == 0 and "resume   after step" in on[0].stderr and "1 there already" in on[0].stderr
    assert [entry["status"] for entry in entries(tmp_path)] == ["done"] * 3


def test_a_job_that_is_to_fail_fast_cancels_the_clips_of_all_replicas(tmp_path: Path) -> None:
    """Those under way when a line is found that cannot be made."""
    long = ({"prompt": word, "steps": 4000} for word in ("two", "three"))
    listed(tmp_path, {"prompt": "one", "steps": 2}, *long, {"prompt": "bad", "frames": 6})
    words = ("--prompts", "p.jsonl", "--replicas", "2", "--fail-fast")
    ranks = [rank.finish() for rank in joined(tmp_path, 4, *words)]
    assert [rank.returncode for rank in ranks] == [2, 0, 0, 0]
    assert "error[frames]: p.jsonl:4:1" in ranks[0].stderr and "1 of 4 clips are made" in ranks[0].stderr
    assert all(f"(replica {n} of 2)" in ranks[0].stderr for n in (0, 1))
    assert [path.name for path in tmp_path.glob("*.mp4")] == [entries(tmp_path)[0]["output"]]
    assert not list(tmp_path.glob("*.part*"))


def test_a_wait_for_an_order_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing, "TURN", timedelta(seconds=0.2))
    server = TCPStore("127.0.0.1", free_port(), is_master=True, wait_for_workers=False)
    waits = TCPStore("127.0.0.1", server.port, is_master=False)
    threading.Timer(1.0, lambda: server.set("order", "come")).start()
    before = time.thread_time()
    assert signing.await_key(waits, "order") == b"come"
    assert time.thread_time() - before < 0.2


def test_what_comes_back_is_signed_and_of_known_classes() -> None:
    here = JoinedRank(0, 2, 0, "127.0.0.1", 1, 0, False, secret="s")
    sent = signing.signed(here, Ended(failure=("frames", "no")))
    assert signing.verified(here, sent, Ended.PARTS) == Ended(failure=("frames", "no"))
    with pytest.raises(RunFailed, match="not signed"):
        signing.verified(HERE, sent, Ended.PARTS)
    with pytest.raises(RunFailed, match="something else"):
        signing.verified(here, signing.signed(here, here), Ended.PARTS)
