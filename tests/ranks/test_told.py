"""Ranks that are stopped, silent, missing or not alone are told of, soon and once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from hybridgen.distributed import processes, rendezvous, watch
from hybridgen.distributed.place import JoinedRank
from hybridgen.distributed.processes import RankContext, run_local
from hybridgen.distributed.status import Status
from hybridgen.errors import RunFailed
from tests.support.ranks import run_ranks

HERE = JoinedRank(0, 2, 0, "127.0.0.1", 1, 0, False)


class Heard(Exception):
    """A signal was heard."""


@contextmanager
def heard(number: int) -> Iterator[None]:
    """A block in which a signal raises Heard."""

    def raise_it(*_: object) -> None:
        raise Heard

    before = signal.signal(number, raise_it)
    try:
        yield
    finally:
        signal.signal(number, before)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


def test_a_stopped_rank_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK", 0.1)
    monkeypatch.setattr(processes, "LOOK", 0.1)

    def work(context: RankContext) -> None:
        context.status.set("step 3/9")
        if context.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(60)

    with pytest.raises(RunFailed, match=r"rank 1 of 3 .* failed in step 3/9: process \d+ is stopped"):
        run_local(3, work, deadline=30)


def test_silence_is_warned_of_and_ends_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK", 0.1)
    monkeypatch.setattr(processes, "LOOK", 0.1)
    monkeypatch.setattr(watch, "WARN", 0.5)
    warnings: list[str] = []

    def work(context: RankContext) -> None:
        context.status.set("step 3/9, ring hop", waits=context.rank != 1)
        time.sleep(60)

    with pytest.raises(RunFailed, match=r"rank 1 of 3 has said nothing for \d s, since step 3/9, ring hop") as failed:
        run_local(3, work, deadline=30, hang_timeout=2.0, warn=warnings.append)
    assert failed.value.rule == "hang"
    assert 1 <= len(warnings) <= 3 and warnings[-1].startswith("rank 1 of 3 has said nothing")


def test_time_in_which_the_watcher_is_stopped_is_no_silence() -> None:
    looks = watch.Watch(1, {}, limit=60)
    said = {0: watch.Said(1, False, "step 3/9")}
    looks.listen(said)
    looks.last -= 3600  # an hour between two looks: Ctrl-Z, and fg
    assert looks.due()
    looks.listen(said)


def test_a_signal_while_ranks_are_started_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes before the second of four ranks is forked, and another thread could take it."""
    started: list[int] = []
    before, over = psutil.Process().children(), threading.Event()
    threading.Thread(target=over.wait, daemon=True).start()
    begin = processes._no_main_module

    @contextmanager
    def struck() -> Iterator[None]:
        started.append(len(started))
        if len(started) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        with begin():
            yield

    monkeypatch.setattr(processes, "_no_main_module", struck)
    with heard(signal.SIGTERM), pytest.raises(Heard):
        run_local(4, lambda _: time.sleep(60), deadline=30)
    over.set()
    assert len(started) == 4 and psutil.Process().children() == before


def test_ranks_are_started_without_a_thread() -> None:
    """A thread of the parent could hold a lock that forked ranks, or the next run's, would never see released."""
    before = threading.active_count()
    assert run_local(2, lambda context: context.rank) == [0, 1]
    assert threading.active_count() == before


def test_signals_during_the_clean_up_are_dropped() -> None:
    cleaned: list[Status] = []

    def clean_up(status: Status) -> None:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        cleaned.append(status)

    with heard(signal.SIGTERM):
        assert run_local(1, lambda context: context.rank, on_exit=clean_up) == [0]
    assert len(cleaned) == 1


def test_marks_outlive_a_killed_rank() -> None:
    found: list[dict[str, str]] = []

    def work(context: RankContext) -> None:
        context.mark("clip", "a.mp4")
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RunFailed, match="killed by SIGKILL"):
        run_local(1, work, on_exit=lambda status: found.append(status.marks(0)))
    assert found == [{"clip": "a.mp4"}]


def test_a_result_that_is_not_on_disk_yet_is_waited_for(tmp_path: Path) -> None:
    """Rank 0 has the latents when another rank dies."""

    def work(context: RankContext) -> None:
        if context.rank == 0:
            context.status.keep(True)
            (tmp_path / "held").touch()
            time.sleep(1)
            (tmp_path / "latents").touch()
            context.status.keep(False)
            time.sleep(60)
        while not (tmp_path / "held").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RunFailed, match="rank 1 of 2"):
        run_local(2, work)
    assert (tmp_path / "latents").exists()


def test_what_a_rank_has_started_ends_with_it(tmp_path: Path) -> None:
    """Also where it is stopped, and not tied to its parent."""

    def work(context: RankContext) -> None:
        if context.rank == 0:
            child = subprocess.Popen(["sleep", "60"])
            child.send_signal(signal.SIGSTOP)
            (tmp_path / "child").write_text(str(child.pid))
            time.sleep(60)
        while not (tmp_path / "child").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RunFailed, match="rank 1 of 2"):
        run_local(2, work)
    assert watch.is_gone(int((tmp_path / "child").read_text()))


def test_a_clip_that_is_complete_is_said_to_be_however_the_run_ends(tmp_path: Path) -> None:
    from hybridgen.engine import launch
    from hybridgen.engine.job import CLIP_DONE, LATENTS_DONE

    status, job = Status(1), SimpleNamespace(parts=[], files=[])
    clip, latents = tmp_path / "clip.mp4", tmp_path / "clip.latents.safetensors"
    status.mark(LATENTS_DONE, str(latents))
    status.mark(CLIP_DONE, str(clip))
    assert launch.clean_up(job, status) == []  # type: ignore[arg-type]
    clip.touch()
    latents.touch()
    notes = launch.clean_up(job, status)  # type: ignore[arg-type]
    assert notes == [f"the clip is complete: {clip}", f"kept: {latents} (the final latents)"]


def test_a_local_run_listens_on_the_loopback_interface_alone() -> None:
    def listening(_: RankContext) -> list[str]:
        dist.barrier()
        return [one.laddr.ip for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN]

    found = run_ranks(2, listening, kept=False)
    assert found[0] and {address for rank in found for address in rank} == {"127.0.0.1"}


def test_all_groups_of_a_rank_share_one_thread_of_gloo() -> None:
    def loops(_: RankContext) -> int:
        for _group in range(3):
            dist.all_reduce(torch.ones(1), group=dist.new_group([0, 1]))
        return [path.read_text() for path in Path("/proc/self/task").glob("*/comm")].count("gloo_tcp_loop\n")

    assert run_ranks(2, loops, kept=False) == [1, 1]


def test_gloo_takes_the_interface_that_the_user_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    with pytest.raises(RunFailed, match="nowhere0"):
        run_ranks(2, lambda _: None, kept=False)


def test_small_values_between_ranks_are_no_pickles(monkeypatch: pytest.MonkeyPatch) -> None:
    from hybridgen.distributed.comm import Group, Traffic

    def exchange(context: RankContext) -> Any:
        for name in ("broadcast_object_list", "gather_object", "all_gather_object"):
            setattr(dist, name, None)
        group = Group("setup", (0, 1), context.rank, Traffic(), dist.group.WORLD)
        mine = {"rank": context.rank, "text": "ü" * (context.rank + 1)}
        return group.broadcast_object(mine), group.gather_objects(mine)

    first, second = run_ranks(2, exchange, kept=False)
    both = [{"rank": 0, "text": "ü"}, {"rank": 1, "text": "üü"}]
    assert first == (both[0], both) and second == (both[0], [])


@pytest.mark.parametrize(("rank", "missing"), [(0, "rank 1"), (1, "rank 0")])
def test_who_is_missing_is_said_and_where(rank: int, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "FIRST", 0.2)
    monkeypatch.setattr(rendezvous, "LATER", 0.2)
    said: list[str] = []
    here = replace(HERE, rank=rank, port=free_port())
    with pytest.raises(RunFailed, match=f"{missing} of 2 did not come to 127.0.0.1:{here.port} in 1 s"):
        rendezvous.meet(here, said.append, 1.0)
    assert len(said) >= 2 and f"rank {rank} of 2 waits for {missing} at 127.0.0.1:{here.port}" in said[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_ends_the_wait_for_others(rank: int) -> None:
    with heard(signal.SIGALRM), pytest.raises(Heard):
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        rendezvous.meet(replace(HERE, rank=rank, port=free_port()), print, 30)


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door, pytest.raises(RunFailed, match="is in use") as failed:
        rendezvous.meet(replace(HERE, port=door.getsockname()[1]), print, 30)
    assert failed.value.rule == "launcher" and len(failed.value.lines()) == 1


def test_a_server_that_is_no_store_does_not_hold_the_wait() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door, pytest.raises(RunFailed, match="rank 0 of 2 did not come"):
        rendezvous.meet(replace(HERE, rank=1, port=door.getsockname()[1]), print, 1.0)


def test_a_job_without_the_secret_is_refused() -> None:
    from hybridgen.engine import launch
    from hybridgen.engine.signed import signed

    store: Any = vars(dist)["HashStore"]()
    store.set("job", signed(HERE, {}))
    with pytest.raises(RunFailed, match="not signed"):
        launch._agree(None, replace(HERE, rank=1, secret="s"), store)
