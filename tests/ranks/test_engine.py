"""Ranks that stay: every clip of an engine is the clip of a fresh start, whatever was made before it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

import hybridgen
from hybridgen.distributed.progress import Event
from hybridgen.engine import decode
from hybridgen.engine.tickets import Ticket
from hybridgen.errors import RequestError, RunFailed
from tests.support.ranks import pids

CLIPS: list[dict[str, Any]] = [
    {"frames": 9, "steps": 3, "seed": 1},
    {"frames": 5, "steps": 2, "seed": 2, "size": (96, 64), "guidance": 2.0},
]


@contextmanager
def engine(**fields: Any) -> Iterator[hybridgen.Engine]:
    with hybridgen.Engine(**{"model": "tiny:wan2.2-t2v", "start_method": "fork", **fields}) as made:
        yield made


def digest(folder: Path, made: hybridgen.Engine, **clip: Any) -> str:
    return made.generate("a lighthouse", folder / "clip.mp4", overwrite=True, **clip).latents_sha256


def test_a_clip_is_that_of_a_fresh_start_whatever_came_before(tmp_path: Path) -> None:
    """In random order, other shapes and cancelled clips between them; with every strategy that holds state."""
    random = Random(7)
    splits: list[dict[str, Any]] = [
        {"cfg": 2, "tp": 2, "vae": 2},
        {"pipefusion": 2, "patches": 2, "warmup": 1},
        {"model": "tiny:cosmos3", "ring": 2},
    ]
    for split in splits:
        fresh = []
        for clip in CLIPS:
            with engine(**split) as made:
                fresh.append(digest(tmp_path, made, **clip))
        with engine(**split) as made:
            for index in random.sample([0, 1, 1], 3):
                given_up = made.submit("given up", tmp_path / "no.mp4", frames=9, steps=30, seed=random.randrange(99))
                for event in given_up.events():
                    if event.kind == "step":
                        given_up.cancel()
                assert given_up.cancelled, split
                assert digest(tmp_path, made, **CLIPS[index]) == fresh[index], (split, index)
        assert len(set(fresh)) == len(fresh)
    assert not (tmp_path / "no.mp4").exists()


def test_a_cancelled_clip_ends_within_two_steps_and_leaves_nothing(tmp_path: Path) -> None:
    with engine(ulysses=2) as made:
        ticket = made.submit("a lighthouse", tmp_path / "clip.mp4", steps=400)
        steps = 0
        for event in ticket.events():
            steps = event.done if event.kind == "step" else steps
            if steps == 3 and event.kind == "step":
                ticket.cancel()
        assert ticket.done and ticket.cancelled and steps <= 3 + 2 + 1  # a step may be told after the order is sent
        with pytest.raises(RunFailed, match="cancelled"):
            ticket.result()
        waiting = made.submit("a lighthouse", tmp_path / "other.mp4", steps=400)
        waiting.cancel()
    assert list(tmp_path.iterdir()) == []


def test_a_clip_that_waits_is_cancelled_at_once(tmp_path: Path) -> None:
    with engine() as made:
        first = made.submit("a lighthouse", tmp_path / "a.mp4", steps=3)
        second = made.submit("a lighthouse", tmp_path / "b.mp4", steps=3)
        second.cancel()
        assert second.done and second.cancelled and not first.done
        assert first.result().output == tmp_path / "a.mp4"
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_what_cannot_be_made_is_refused_alone(tmp_path: Path) -> None:
    """The engine goes on, on the same ranks."""
    with engine(cfg=2) as made:
        digest(tmp_path, made, **CLIPS[0])
        ranks = pids(made)
        for fields, rule in (({"frames": 10}, "frames"), ({"guidance": 1.0}, "cfg-guidance"), ({"cfg": 1}, "engine")):
            with pytest.raises(RequestError) as refused:
                made.submit("a lighthouse", tmp_path / "no.mp4", **fields)
            assert refused.value.rule.startswith(rule)
        digest(tmp_path, made, **CLIPS[1])
        assert pids(made) == ranks and len(ranks) == 2
    assert not any(map(psutil.pid_exists, ranks))


def test_a_rank_that_dies_ends_its_clip_and_the_next_starts_ranks_again(tmp_path: Path) -> None:
    with engine(ulysses=2, fail_fast=True) as made:
        alone = digest(tmp_path, made, **CLIPS[0])
        ticket = made.submit("a lighthouse", tmp_path / "lost.mp4", steps=400)
        queued = made.submit("a lighthouse", tmp_path / "queued.mp4", **CLIPS[0])
        for event in ticket.events():
            if event.kind == "step" and event.done == 2:
                os.kill(pids(made)[1], signal.SIGKILL)
        with pytest.raises(RunFailed, match="rank 1 of 2"):
            ticket.result()
        assert queued.result().latents_sha256 == alone
    assert not list(tmp_path.glob("lost*"))


def test_idle_ranks_take_no_time_and_are_waited_for_by_none(tmp_path: Path) -> None:
    """Nor does the thread that holds them: no look, no beat, no watch of silence."""
    with engine(ulysses=2, hang_timeout=4.0) as made:
        digest(tmp_path, made, **CLIPS[0])
        time.sleep(0.5)  # what the clip leaves behind
        before = [psutil.Process(pid).cpu_times() for pid in pids(made)]
        time.sleep(5)  # longer than ranks may be silent while they make a clip
        after = [psutil.Process(pid).cpu_times() for pid in pids(made)]
        assert sum(a.user + a.system - b.user - b.system for a, b in zip(after, before, strict=True)) < 0.05
        digest(tmp_path, made, **CLIPS[1])


def test_events_come_in_order_to_reader_and_callback(tmp_path: Path) -> None:
    heard: list[tuple[Ticket, Event]] = []
    with engine(on_event=lambda ticket, event: heard.append((ticket, event))) as made:
        ticket = made.submit("a lighthouse", tmp_path / "clip.mp4", frames=5, steps=3)
        events = list(ticket.events())
    assert [event for _, event in heard] == events and all(one is ticket for one, _ in heard)
    assert [(e.done, e.total) for e in events if e.kind == "step"] == [(1, 3), (2, 3), (3, 3)]
    assert [(e.done, e.total) for e in events if e.kind == "chunk"] == [(1, 5), (5, 5)]
    assert events[-1].kind == "done" and events[-1].text == str(tmp_path / "clip.mp4")


def test_an_engine_lives_in_a_thread_and_after_another(tmp_path: Path) -> None:
    """The thread that made it may end before its ranks do."""
    made: list[hybridgen.Engine] = []

    def make() -> None:
        made.append(hybridgen.Engine(model="tiny:wan2.2-t2v", ulysses=2, start_method="fork"))
        made[0].generate("a lighthouse", tmp_path / "one.mp4", **CLIPS[0])

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    digest(tmp_path, made[0], **CLIPS[1])
    made[0].close()
    with pytest.raises(RunFailed, match="closed"):
        made[0].submit("a lighthouse", tmp_path / "late.mp4")
    with engine() as second:
        digest(tmp_path, second, **CLIPS[0])


def test_an_error_in_the_block_ends_the_ranks_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeyError), engine() as made:
        ticket = made.submit("a lighthouse", tmp_path / "clip.mp4", steps=4000)
        next(event for event in ticket.events() if event.kind == "step")
        ranks = pids(made)
        raise KeyError
    with pytest.raises(RunFailed, match="closed"):
        ticket.result()
    assert ranks and not any(map(psutil.pid_exists, ranks)) and list(tmp_path.iterdir()) == []


def test_an_engine_that_is_closed_at_once_waits_for_latents_that_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = decode.keep_latents

    def late(*given: Any) -> Path:
        time.sleep(1)
        return keep(*given)

    monkeypatch.setattr(decode, "keep_latents", late)  # ranks are forked, so they inherit it
    with engine(ulysses=2) as made:
        ticket = made.submit("a lighthouse", tmp_path / "clip.mp4", **CLIPS[0])
        next(event for event in ticket.events() if event.kind == "stage" and event.text == "denoise")
        made.close(at_once=True)
        with pytest.raises(RunFailed, match="closed") as failed:
            ticket.result()
    (kept,) = tmp_path.iterdir()
    assert kept.name == "clip.latents.safetensors" and f"kept: {kept}" in failed.value.notes[0]


def test_an_engine_refuses_a_process_that_was_forked_from_its_own(tmp_path: Path) -> None:
    """Nobody would make the clip there, and its result would be waited for without end."""
    reader, writer = os.pipe()
    with engine() as made:
        if (child := os.fork()) == 0:
            try:
                made.submit("a lighthouse", tmp_path / "no.mp4", **CLIPS[0])
            except RunFailed as failure:
                os.write(writer, failure.message.encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        with os.fdopen(reader) as said:
            assert f"belongs to process {os.getpid()}" in said.read()
        assert digest(tmp_path, made, **CLIPS[0])
