"""Ranks of a joined job on several machines: the one that ends first is named, once, also where none can be asked."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore

from hybridgen.distributed import joined
from hybridgen.distributed.joined import Peers
from hybridgen.distributed.place import JoinedRank
from hybridgen.distributed.processes import RankContext
from hybridgen.distributed.signals import raise_on_signals
from hybridgen.distributed.status import Status
from hybridgen.distributed.watch import is_gone

Work = Callable[[Peers], None]


def idle(_: Peers) -> None:
    time.sleep(20)


def stop(peers: Peers) -> None:
    while peers.beat < 2:  # it has said what it does
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGSTOP)


def leave(_: Peers) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Job:
    """Ranks that are processes of this machine, and say that they are of others."""

    def __init__(self, folder: Path, machines: str, works: list[Work]) -> None:
        """machines: a letter for the machine of each rank."""
        with socket.create_server(("127.0.0.1", 0)) as door:
            self.port = int(door.getsockname()[1])
        self.folder, self.machines = folder, machines
        self.pids = [self._start(rank, work) for rank, work in enumerate(works)]

    def _start(self, rank: int, work: Work) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                self._be(rank, work)
            except BaseException:  # noqa: BLE001 - as the interpreter would end
                traceback.print_exc()
            os._exit(99)
        return pid

    def _be(self, rank: int, work: Work) -> None:
        sys.stderr = (self.folder / f"{rank}").open("w", 1)
        raise_on_signals()
        world = len(self.machines)
        here = JoinedRank(rank, world, rank, "127.0.0.1", self.port, 0, False)
        store = PrefixStore("job", TCPStore("127.0.0.1", self.port, world, rank == 0))
        store.set(f"here/{rank}", json.dumps([self.machines[rank], os.getpid(), f"host-{self.machines[rank]}"]))
        store.wait([f"here/{one}" for one in range(world)])
        status = Status(world, rank)
        status.set("step 3/9")
        peers = Peers(here, RankContext(rank, world, rank, status, store=store), None, lambda _: [])
        peers.start()
        (self.folder / f"ready-{rank}").touch()
        try:
            work(peers)
        except BaseException as error:  # noqa: BLE001 - as a run does
            peers.failed(error)

    def wait_until_ready(self) -> None:
        while len(list(self.folder.glob("ready-*"))) < len(self.machines):
            time.sleep(0.02)

    def said(self, *leave_out: int) -> list[str]:
        """What the ranks have printed at their end; those left out are killed then."""
        for rank, pid in enumerate(self.pids):
            if rank not in leave_out:
                os.waitpid(pid, 0)
        for rank in leave_out:
            os.kill(self.pids[rank], signal.SIGKILL)
            os.waitpid(self.pids[rank], 0)
        return [line for rank in range(len(self.pids)) for line in (self.folder / f"{rank}").read_text().splitlines()]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "BEAT", 0.1)
    monkeypatch.setattr(joined, "ANSWER", 2.0)
    monkeypatch.setattr(joined, "PULSE", 2.0)
    monkeypatch.setattr("hybridgen.distributed.watch.PULSE", 2.0)


def test_a_rank_that_is_stopped_elsewhere_is_named(tmp_path: Path) -> None:
    (line,) = Job(tmp_path, "ab", [idle, stop]).said(1)
    assert line.startswith("error[rank-lost]: rank 1 of 2 (host-b) failed in step 3/9: gave no sign of life for 2 s")


def test_a_stopped_rank_that_serves_the_store_ends_the_others_and_is_named(tmp_path: Path) -> None:
    """Once for each machine: the store, over which ranks agree who speaks, does not answer."""
    job = Job(tmp_path, "abb", [stop, idle, idle])
    (line,) = job.said(0)
    where = f"its key-value store at 127.0.0.1:{job.port} has not answered for 2 s"
    assert line.startswith(f"error[rank-lost]: rank 0 of 3 (host-a) failed: {where}")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_of_this_machine_is_named_and_ended(victim: int, tmp_path: Path) -> None:
    (line,) = Job(tmp_path, "aaa", [stop if rank == victim else idle for rank in range(3)]).said()
    assert line.startswith(f"error[rank-lost]: rank {victim} of 3 (host-a) failed") and "was stopped (SIGSTOP)" in line


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_of_two_is_named(victim: int, tmp_path: Path) -> None:
    (line,) = Job(tmp_path, "aa", [leave if rank == victim else idle for rank in range(2)]).said()
    assert line.startswith(f"error[rank-lost]: rank {victim} of 2 (host-a) failed") and "without a word" in line


@pytest.mark.parametrize(("machines", "words"), [("aaa", "rank 0 of 3"), ("abb", "rank 1 of 3")])
def test_an_error_of_the_store_whose_rank_is_gone_is_told_once(
    machines: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in main threads that make groups: each takes it for an error of its own."""
    monkeypatch.setattr(joined, "BEAT", 30.0)  # no other thread is sooner

    def serve(_: Peers) -> None:
        while len(list(tmp_path.glob("ready-*"))) < 3:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)

    def ask(peers: Peers) -> None:
        while True:
            peers.board.is_done(0)
            time.sleep(0.02)

    said = [line for line in Job(tmp_path, machines, [serve, ask, ask]).said() if "RunFailed" in line]
    assert len(said) == 1 and words in said[0], said


def test_a_rank_that_is_stopped_when_all_is_done_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its launcher would wait for it without end."""
    monkeypatch.setattr(joined, "LEAVE", 1.0)
    job = Job(tmp_path, "aa", [Peers.finish, lambda _: os.kill(os.getpid(), signal.SIGSTOP)])
    os.waitpid(job.pids[0], 0)
    end = time.monotonic() + 10
    while not (ended := is_gone(job.pids[1])) and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(job.pids[1], signal.SIGKILL)
    os.waitpid(job.pids[1], 0)
    assert ended


@pytest.mark.parametrize("late", [0.0, 1.5])
def test_a_signal_to_all_is_told_once(late: float, tmp_path: Path) -> None:
    """Also where one rank hears it so late that the others take the first for the cause."""
    job = Job(tmp_path, "aaa", [idle, idle, idle])
    job.wait_until_ready()
    for pid in job.pids[:2]:
        os.kill(pid, signal.SIGTERM)
    time.sleep(late)
    os.kill(job.pids[2], signal.SIGTERM)
    assert job.said() == ["stopped by SIGTERM"]


@pytest.mark.parametrize("victim", [0, 2])
def test_a_signal_to_one_rank_names_it(victim: int, tmp_path: Path) -> None:
    job = Job(tmp_path, "aaa", [idle, idle, idle])
    job.wait_until_ready()
    os.kill(job.pids[victim], signal.SIGTERM)
    (line,) = job.said()
    assert line.startswith(f"error[rank-lost]: rank {victim} of 3 (") and "in step 3/9: stopped by SIGTERM" in line
