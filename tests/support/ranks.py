"""Run a function on CPU ranks, for tests: gloo groups of processes that are kept from case to case, or forked anew."""

from __future__ import annotations

import gc
import io
import multiprocessing
import pickle
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from hybridgen.api.session import Engine
from hybridgen.distributed import peak_memory
from hybridgen.distributed.processes import RankContext, run_local
from hybridgen.distributed.rendezvous import init_process_group
from hybridgen.distributed.status import Cause, Status, cause_of
from hybridgen.engine.replicas import Replicas
from hybridgen.errors import RunFailed
from tests.support import huge_pages

FORK = multiprocessing.get_context("fork")
KEPT = 8
"""Ranks that are kept at most; a case with more of them forks its own."""
_forks = 0
"""Above 0 while cases fork their ranks."""


def run_ranks(
    world: int, fn: Callable[[RankContext], Any], deadline: float = 120.0, group: bool = True, kept: bool = True
) -> list[Any]:
    """fn(context) on `world` ranks, one thread each; the results by rank.

    `group`: make the default process group first; else fn does that. Ranks that are kept from case to case are given
    copies of fn and of all that it refers to. A case forks ranks of its own where it measures their memory or ends
    them (not `kept`), and where it depends on what is patched here (see `forked`).
    A rank's exception comes back as RunFailed with the rank's traceback in its text.
    """

    def main(context: RankContext) -> Any:
        torch.set_num_threads(1)
        if group and world > 1:
            init_process_group(context, torch.device("cpu"))
        with torch.no_grad():
            result = fn(context)
        if dist.is_initialized():
            dist.barrier()
        return result

    if _forks or not kept or world > KEPT:
        huge_pages.fold()
        return run_local(world, main, deadline=deadline)
    return _pool.run(world, main, deadline)


@contextmanager
def forked() -> Iterator[None]:
    """Cases fork their ranks: what this process has patched, ranks have too, and what they patch ends with them."""
    global _forks
    _forks += 1
    try:
        yield
    finally:
        _forks -= 1


@dataclass
class Pool:
    """Ranks that wait for cases. They end with this process, and when a case has failed."""

    pipes: list[Connection] = field(default_factory=list)
    processes: list[ForkProcess] = field(default_factory=list)

    def run(self, world: int, main: Callable[[RankContext], Any], deadline: float) -> list[Any]:
        """main(context) on the first `world` ranks."""
        while len(self.pipes) < world:
            self._start_rank()
        packed = _packed(main)
        with socket.create_server(("127.0.0.1", 0)) as door:
            for rank, pipe in enumerate(self.pipes[:world]):
                pipe.send((rank, world, packed))
                send_handle(pipe, door.fileno(), self.processes[rank].pid)
            try:
                return self._results(world, time.monotonic() + deadline)
            except BaseException:
                self.end()  # other ranks wait for the one that failed
                raise

    def end(self) -> None:
        """Kill all ranks."""
        for process in self.processes:
            process.kill()
            process.join()
        self.pipes, self.processes = [], []

    def _start_rank(self) -> None:
        ours, theirs = FORK.Pipe()
        self.pipes.append(ours)
        process = FORK.Process(target=_serve, args=(theirs, list(self.pipes)), daemon=True)
        process.start()
        theirs.close()
        self.processes.append(process)

    def _results(self, world: int, end: float) -> list[Any]:
        results: dict[int, Any] = {}
        while len(results) < world:
            pending = {rank: pipe for rank, pipe in enumerate(self.pipes[:world]) if rank not in results}
            ready = wait(list(pending.values()), max(0.0, end - time.monotonic()))
            if not ready:
                raise RunFailed("deadline", f"ranks {sorted(pending)} are not done")
            for rank in (rank for rank, pipe in pending.items() if pipe in ready):
                results[rank] = pickle.loads(pending[rank].recv_bytes())
                if isinstance(results[rank], Cause):
                    raise results[rank].failure(world)
        return [results[rank] for rank in range(world)]


_pool = Pool()


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles tensors as their bytes; torch's own way writes an archive for each, which takes most of a case's time."""

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is torch.Tensor and thing.layout is torch.strided and thing.numel():
            numbers = thing.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
            return _tensor, (numbers, thing.dtype, thing.shape, thing.requires_grad)
        return super().reducer_override(thing)


def _packed(main: Callable[[RankContext], Any]) -> bytes:
    file = io.BytesIO()
    _Packer(file).dump(main)
    return file.getvalue()


def _tensor(numbers: bytes, dtype: torch.dtype, shape: torch.Size, requires_grad: bool) -> torch.Tensor:
    return torch.frombuffer(bytearray(numbers), dtype=dtype).reshape(shape).requires_grad_(requires_grad)


def _serve(pipe: Connection, others: list[Connection]) -> None:
    """A rank: do what comes through the pipe until it closes."""
    gc.freeze()  # to look at what this process was forked with would copy it
    for other in others:
        other.close()  # an end that stays open here would keep other ranks alive
    while True:
        try:
            rank, world, packed = pipe.recv()
            door = socket.socket(fileno=recv_handle(pipe))
        except EOFError:
            return
        status = Status(world, rank)
        try:
            found = pickle.loads(packed)(RankContext(rank, world, rank, status, door))
            if dist.is_initialized():
                dist.destroy_process_group()
        except BaseException as error:  # noqa: BLE001 - it is raised by the one who asked
            found = cause_of(error, rank, status.read(rank))
        pipe.send_bytes(pickle.dumps(found))
        status.close()
        door.close()


def without_memory() -> None:
    """On a rank: do not look at its memory, which takes longer than all else that a tiny model does."""
    peak_memory.private_bytes = lambda: 0
    peak_memory.reset_high_water = lambda: False


def pids(engine: Engine, replica: int = 0) -> list[int]:
    """The processes of a replica's ranks, in their order; none while it has no ranks."""
    assert isinstance(engine.ranks, Replicas)
    ranks = engine.ranks.residents[replica].ranks
    return [process.pid or 0 for process in ranks.processes] if ranks is not None else []
