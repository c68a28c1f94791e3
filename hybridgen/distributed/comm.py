"""Collectives of one group, with every byte counted and the current one named.

Strategies talk to other ranks through Group alone. What a rank sends is counted from the tensors and the size of the
group (the convention stands in hybridgen/plan/traffic.py), independently of what rules.py declares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from hybridgen.distributed.data import packed, unpacked
from hybridgen.distributed.waits import Waits

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name before torch 2.13


class PeerLost(RuntimeError):
    """A collective failed because another rank is gone: a consequence, not a cause."""


@dataclass
class Traffic:
    """Bytes this rank has sent, by strategy; `watch` hears the name of every exchange before it starts."""

    sent: Counter[str] = field(default_factory=Counter)
    watch: Callable[[str], None] = lambda _: None
    waits: Waits = field(default_factory=Waits)
    """Time in exchanges."""


@dataclass(frozen=True)
class Group:
    """The ranks that share one axis with this one. `ranks` are global, in order of their coordinate."""

    strategy: str
    ranks: tuple[int, ...]
    rank: int
    """This rank's place in `ranks`."""
    traffic: Traffic
    handle: dist.ProcessGroup | None = None

    @property
    def size(self) -> int:
        return len(self.ranks)

    @contextmanager
    def _exchange(self, name: str, sent: int) -> Iterator[None]:
        self.traffic.sent[self.strategy] += sent
        self.traffic.watch(f"{self.strategy} {name}")
        began = self.traffic.waits.begin()
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise PeerLost(f"{self.strategy} {name}: {str(error).splitlines()[0]}") from error
        self.traffic.waits.end(self.strategy, began)

    def all_to_all(self, x: Tensor) -> Tensor:
        """Send chunk i of x [size, ...] to rank i; returns [size, ...] with chunk i from rank i."""
        x = x.contiguous()
        out = torch.empty_like(x)
        with self._exchange("all-to-all", nbytes(x) * (self.size - 1) // self.size):
            dist.all_to_all_single(out, x, group=self.handle)
        return out

    def all_gather(self, x: Tensor) -> Tensor:
        """Gather x [...] of every rank: [size, ...]; shapes are equal on all ranks."""
        x = x.contiguous()
        out = x.new_empty(self.size * x.shape[0], *x.shape[1:])
        with self._exchange("all-gather", nbytes(x) * (self.size - 1)):
            _all_gather(out, x, group=self.handle)
        return torch.unflatten(out, 0, (self.size, -1))

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum x [...] over the ranks, in place."""
        x = x.contiguous()
        with self._exchange("all-reduce", 2 * nbytes(x) * (self.size - 1) // self.size):
            dist.all_reduce(x, group=self.handle)
        return x

    def broadcast(self, x: Tensor, root: int = 0) -> Tensor:
        """Fill x on every rank with that of the root, which is a place in `ranks`."""
        with self._exchange("broadcast", nbytes(x) * (self.size - 1) if self.rank == root else 0):
            dist.broadcast(x, self.ranks[root], group=self.handle)
        return x

    def gather(self, x: Tensor) -> list[Tensor] | None:
        """Gather x [...] of every rank, in the order of `ranks`, on the first; None elsewhere."""
        x = x.contiguous()
        out = [torch.empty_like(x) for _ in self.ranks] if self.rank == 0 else None
        with self._exchange("gather", nbytes(x) if self.rank else 0):
            dist.gather(x, out, dst=self.ranks[0], group=self.handle)
        # A process group counts its members by global rank, whatever order they were named in.
        return out and [out[sorted(self.ranks).index(rank)] for rank in self.ranks]

    def gather_objects(self, thing: Any) -> list[Any]:
        """Gather plain data of every rank, of one kind, on the first; [] elsewhere. Not counted, as it is small."""
        mine = self._bytes(packed(thing))
        with self._exchange("gather", 0):
            sizes = mine.new_empty(self.size, dtype=torch.int64)
            _all_gather(sizes, torch.tensor([len(mine)], device=mine.device), group=self.handle)
            padded = F.pad(mine, (0, int(sizes.max()) - len(mine)))
            every = padded.new_empty(self.size * len(padded))
            _all_gather(every, padded, group=self.handle)
        if self.rank:
            return []
        rows = zip(every.view(self.size, -1), sizes.tolist(), strict=True)
        found = [unpacked(row[:size].cpu().numpy().tobytes(), like=thing) for row, size in rows]
        # A process group counts its members by global rank, whatever order they were named in.
        return [found[sorted(self.ranks).index(rank)] for rank in self.ranks]

    def broadcast_object(self, thing: Any) -> Any:
        """Send the first rank's plain data to every rank; `thing` is of the same kind on all. Not counted."""
        mine = self._bytes(packed(thing))
        with self._exchange("broadcast", 0):
            size = torch.tensor([len(mine)], device=mine.device)
            dist.broadcast(size, self.ranks[0], group=self.handle)
            sent = mine if self.rank == 0 else mine.new_empty(int(size))
            dist.broadcast(sent, self.ranks[0], group=self.handle)
        return unpacked(sent.cpu().numpy().tobytes(), like=thing)

    def _bytes(self, data: bytes) -> Tensor:
        """Bytes as a tensor on the device that the group exchanges."""
        device = "cuda" if dist.get_backend(self.handle) == "nccl" else "cpu"
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)

    def barrier(self) -> None:
        """Wait for every rank."""
        with self._exchange("barrier", 0):
            dist.barrier(group=self.handle)

    def start_shift(self, x: Tensor) -> tuple[Tensor, Callable[[], None]]:
        """Begin to send x to the next rank and to receive the same amount from the one before: (buffer, wait).

        The buffer holds the neighbour's x once wait() has returned.
        """
        buffer = torch.empty_like(x)
        right, left = self.ranks[(self.rank + 1) % self.size], self.ranks[(self.rank - 1) % self.size]
        send = dist.P2POp(dist.isend, x, right, self.handle)
        receive = dist.P2POp(dist.irecv, buffer, left, self.handle)
        # NCCL fuses the pair; with two ranks gloo needs one fixed order on both sides, which this is.
        with self._exchange("hop", nbytes(x)):
            works = dist.batch_isend_irecv([send, receive])

        def wait() -> None:
            with self._exchange("hop", 0):
                for work in works:
                    work.wait()

        return buffer, wait

    def send(self, x: Tensor, to: int) -> Callable[[], None]:
        """Begin to send x to the group's rank `to`; the returned function waits until x may be reused."""
        x = x.contiguous()
        with self._exchange("send", nbytes(x)):
            work = dist.isend(x, self.ranks[to], group=self.handle)

        def wait(keep: Tensor = x) -> None:
            with self._exchange("send", 0):
                if work is not None:
                    work.wait()

        return wait

    def receive(self, buffer: Tensor, source: int) -> Tensor:
        """Fill the buffer with what the group's rank `source` sent."""
        with self._exchange("receive", 0):
            dist.recv(buffer, self.ranks[source], group=self.handle)
        return buffer

    def swap(self, sends: dict[int, Tensor], receives: dict[int, Tensor]) -> None:
        """Send a tensor to each rank of `sends` and fill the buffers of `receives`, all at once; keys are places."""
        ops = [dist.P2POp(dist.isend, x, self.ranks[to], self.handle) for to, x in sorted(sends.items())]
        ops += [dist.P2POp(dist.irecv, x, self.ranks[to], self.handle) for to, x in sorted(receives.items())]
        if ops:
            with self._exchange("swap", sum(map(nbytes, sends.values()))):
                for work in dist.batch_isend_irecv(ops):
                    work.wait()


def nbytes(x: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return x.numel() * x.element_size()
