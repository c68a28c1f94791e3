"""Replicas: several groups of ranks make the clips of one queue, and one that is lost loses no clip."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import hybridgen
from hybridgen.api.clips import ManyScreen, Summary, Wanted
from hybridgen.api.many import run_many
from hybridgen.distributed.progress import Event
from hybridgen.engine import worker
from hybridgen.engine.job import Job
from hybridgen.engine.options import RunOptions
from hybridgen.engine.outputs import Outputs
from hybridgen.engine.rank import Rank
from hybridgen.engine.tickets import Ticket
from hybridgen.errors import RequestError, RunFailed
from tests.support.ranks import pids

MODEL = "tiny:wan2.2-t2v"
SHORT = {"frames": 5, "steps": 2}
Heard = list[tuple[Ticket, Event]]


@contextmanager
def engine(heard: Heard, **fields: Any) -> Iterator[hybridgen.Engine]:
    def hear(ticket: Ticket, event: Event) -> None:
        heard.append((ticket, event))

    with hybridgen.Engine(**{"model": MODEL, "start_method": "fork", "on_event": hear, **fields}) as made:
        yield made


def step(ticket: Ticket, number: int) -> None:
    """Return when a clip has begun so many steps."""
    next(event for event in ticket.events() if event.kind == "step" and event.done == number)


def test_clips_are_made_side_by_side_and_those_of_a_lost_replica_by_another(tmp_path: Path) -> None:
    """Bit for bit as on one group of ranks, whichever replica makes them."""
    heard: Heard = []
    with engine(heard, ulysses=2, replicas=2) as made:
        clips = [made.submit("a lighthouse", tmp_path / f"{n}.mp4", frames=5, steps=60, seed=n) for n in (1, 2)]
        for ticket in clips:
            step(ticket, 2)
        assert sorted(ticket.replica for ticket in clips) == [0, 1] and not any(ticket.done for ticket in clips)
        lost, other = clips
        gone, ranks = pids(made, lost.replica), pids(made, other.replica)
        os.kill(gone[1], signal.SIGKILL)
        digests = [ticket.result().latents_sha256 for ticket in clips]
        words = next(event.text for ticket, event in heard if event.kind == "lost")
        assert words.startswith(f"replica {1 - other.replica} of 2: rank 1 of 2") and "SIGKILL" in words
        assert lost.replica == other.replica and pids(made, other.replica) == ranks
        assert not any(map(psutil.pid_exists, gone))
    with engine([], ulysses=2) as made:
        for seed, digest in zip((1, 2), digests, strict=True):
            alone = made.generate("a lighthouse", tmp_path / "alone.mp4", overwrite=True, frames=5, steps=60, seed=seed)
            assert alone.latents_sha256 == digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.mp4", "2.mp4", "alone.mp4"]


def test_a_clip_goes_on_from_the_state_of_the_ranks_that_were_lost(tmp_path: Path) -> None:
    heard: Heard = []
    outputs = Outputs(tmp_path / "clip.mp4", keep_every=2)
    asked = {"prompt": "a lighthouse", "frames": 5, "steps": 40, "seed": 1}
    with engine(heard) as made:
        ticket = made.ranks.submit(made.job(asked, outputs))
        step(ticket, 5)
        os.kill(pids(made)[0], signal.SIGKILL)
        digest = ticket.result().latents_sha256
        assert any(event.text.startswith("resume   after step") for _, event in heard)
        again = made.generate("a lighthouse", tmp_path / "again.mp4", frames=5, steps=40, seed=1)
    assert again.latents_sha256 == digest and len(list(tmp_path.iterdir())) == 2


class Told(ManyScreen):
    """Keeps what is told of a job."""

    def __init__(self) -> None:
        self.failures: list[tuple[int, str]] = []
        self.lost: list[str] = []

    def event(self, ticket: Ticket, event: Event) -> None:
        if event.kind == "lost":
            self.lost.append(event.text)

    def failed(self, wanted: Wanted, failure: RunFailed) -> None:
        self.failures.append((wanted.number, failure.message))


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are ended by the clip "kills"."""
    ready = worker.ready

    def die(rank: Rank) -> Any:
        if rank.job.prompt == "kills" and rank.context.rank == rank.context.world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return ready(rank)

    monkeypatch.setattr(worker, "ready", die)  # ranks are forked, so they inherit it


def job(folder: Path, lines: list[str], told: Told, **options: Any) -> Summary:
    (folder / "p.txt").write_text("".join(f"{line}\n" for line in lines))
    given = RunOptions(prompts="p.txt", **options)
    return run_many(given, {"model": MODEL, "ulysses": 2, "device": "cpu", **SHORT}, told, "fork")


@pytest.mark.usefixtures("killer")
def test_a_clip_that_ends_its_ranks_twice_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = Told()
    found = job(tmp_path, ["one", "kills", "two", "three"], told, replicas=2)
    assert (found.made, found.failed) == (3, 1)
    assert len(told.lost) == 1 and [number for number, _ in told.failures] == [2]
    entries = [json.loads(line) for line in Path("p.manifest.jsonl").read_text().splitlines()]
    assert [(entry["clip"], entry["status"]) for entry in entries] == [
        (1, "done"), (2, "failed"), (3, "done"), (4, "done"),
    ]  # fmt: skip


@pytest.mark.usefixtures("killer")
def test_a_job_that_is_to_fail_fast_ends_with_its_first_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = Told()
    with pytest.raises(RunFailed, match="clip 2: rank 1 of 2") as failed:
        job(tmp_path, ["one", "kills", "two"], told, fail_fast=True)
    assert not told.lost and any("1 of 3 clips are made" in note for note in failed.value.notes)
    entries = [json.loads(line) for line in Path("p.manifest.jsonl").read_text().splitlines()]
    assert [entry["status"] for entry in entries] == ["done", "failed", "begun"]
    found = job(tmp_path, ["one", "two", "three"], told, manifest=Path("other.jsonl"), overwrite=True)
    assert found.made == 3


class Asked(ManyScreen):
    def __init__(self) -> None:
        self.worlds: list[int] = []

    def asked(self, wanted: Wanted, job: Job) -> None:
        self.worlds.append(job.plan.world_size)


@pytest.mark.parametrize(
    ("gpus", "replicas", "given", "words"),
    [
        (4, 2, {"cfg": 2}, ""),
        (4, 2, {}, ""),
        (6, 4, {"cfg": 2}, "--replicas 4: do not share 6 GPUs evenly"),
        (6, 2, {"cfg": 2}, "--gpus 6: 2 replicas of 2 ranks"),
        (None, 0, {"cfg": 2}, "--replicas 0: must be 1 or more"),
    ],
)
def test_replicas_share_the_gpus(
    gpus: int | None, replicas: int, given: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = RunOptions(count=1, dry_run=True, gpus=gpus, replicas=replicas)
    screen = Asked()
    fields = {"model": MODEL, "prompt": "a lighthouse", "device": "cpu", **given}
    if words:
        with pytest.raises(RequestError) as refused:
            run_many(options, fields, screen)
        assert refused.value.message.startswith(words)
    else:
        run_many(options, fields, screen)
        assert screen.worlds == [2]
