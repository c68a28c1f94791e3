"""How many ranks are started on every host, and which of them then share a domain. No torch."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from hybridgen.planner.hardware.constants import Hardware


class Hosts(NamedTuple):
    """Ranks over hosts."""

    sizes: tuple[int, ...]
    """Ranks of every host, in order."""

    @property
    def number(self) -> int:
        return len(self.sizes)

    @property
    def each(self) -> int:
        """Ranks of the first host."""
        return self.sizes[0]

    @property
    def even(self) -> bool:
        return all(size == self.each for size in self.sizes)

    @property
    def torchrun(self) -> str:
        """The torchrun options to type on every host."""
        usual = f"torchrun --nnodes {self.number} --nproc-per-node {self.each} ... -m hybridgen run ..."
        if self.even:
            return usual
        counts = dict.fromkeys(size for size in self.sizes if size != self.each)
        others = "".join(f"; on {self._named(size)} --nproc-per-node {size}" for size in counts)
        return f"{usual} (with --node-rank K on host K, counted from 0{others})"

    def _named(self, size: int) -> str:
        """The hosts of a size by their node rank: "host 2", "hosts 1-3, 5"."""
        places = [place for place, one in enumerate(self.sizes) if one == size]
        firsts = [place for place in places if place - 1 not in places]
        lasts = [place for place in places if place + 1 not in places]
        runs = [f"{a}-{b}" if a < b else str(a) for a, b in zip(firsts, lasts, strict=True)]
        return f"host{'s' * (len(places) > 1)} {', '.join(runs)}"


class Borders(NamedTuple):
    """The places of ranks: those of one domain stand together, and in it those of one near group."""

    domain: int
    """Ranks of a domain; where domains differ in size, of the largest."""
    near: int = 1
    """Ranks that a faster link joins within a domain; 1 where there is none."""
    starts: tuple[int, ...] = ()
    """The first rank of every domain, where they differ in size."""

    def place(self, rank: int) -> tuple[int, int]:
        """The domain of a rank, and the near group in it."""
        if not self.starts:
            return rank // self.domain, rank % self.domain // self.near
        domain = bisect_right(self.starts, rank) - 1
        return domain, (rank - self.starts[domain]) // self.near

    def is_one_domain(self, ranks: int) -> bool:
        """Whether so many ranks stand in one domain."""
        return ranks <= (self.starts[1] if len(self.starts) > 1 else self.domain)

    def are_alike(self, ranks: int) -> bool:
        """Whether any two of so many ranks are joined by the same link."""
        return self.is_one_domain(ranks) and (self.near == 1 or ranks <= self.near)

    def hold_evenly(self, ranks: int) -> bool:
        """Whether any so many ranks from a multiple of that number on are joined by the same link."""
        return not self.starts and self.domain % ranks == 0 and (self.near == 1 or self.near % ranks == 0)

    def sizes(self, ranks: int) -> list[int]:
        """How many of so many ranks stand in each domain."""
        starts = self.starts or range(0, ranks, self.domain)
        edges = [*(start for start in starts if start < ranks), ranks]
        return [end - start for start, end in pairwise(edges)]


@lru_cache(maxsize=1024)
def spread(ranks: int, per_node: int, domain: int = 1) -> Hosts:
    """Spread ranks evenly over hosts, so that one command starts them all: the largest share that divides them.

    Hosts of a wider domain must fit into as many domains as full ones would take. Where an even spread would leave one
    rank per host, hosts are filled.
    """
    most = -(-ranks // domain) * (domain // per_node) if domain > per_node else ranks
    full = min(ranks, per_node)
    even = (share for share in range(full, 1, -1) if ranks % share == 0 and ranks // share <= most)
    each = next(even, full)
    left = ranks % each
    return Hosts((each,) * (ranks // each) + ((left,) if left else ()))


@lru_cache(maxsize=1024)
def filled(ranks: int, hosts: tuple[int, ...]) -> Hosts:
    """Fill hosts of these sizes with ranks, in order."""
    ends = list(accumulate(hosts))
    number = next((count for count, end in enumerate(ends, start=1) if end >= ranks), len(hosts))
    return Hosts((*hosts[: number - 1], ranks - sum(hosts[: number - 1])))


def hosts_of(ranks: int, hardware: Hardware) -> Hosts:
    """Ranks over the hosts of a machine: spread evenly, or in order where its hosts differ in size."""
    if hardware.hosts:
        return filled(ranks, hardware.hosts)
    return spread(ranks, hardware.per_node, hardware.domain)


def borders(ranks: int, hardware: Hardware) -> Borders:
    """Where so many ranks stand on a machine."""
    domain, per_node, near = hardware.domain, hardware.per_node, hardware.near.size if hardware.near else 1
    if hardware.hosts:
        return _uneven(hardware.hosts, max(domain // per_node, 1))._replace(near=near)
    return _even(ranks, domain, per_node, near)


@lru_cache(maxsize=1024)
def _even(ranks: int, domain: int, per_node: int, near: int) -> Borders:
    """Borders where all hosts are of one size."""
    hosts = spread(ranks, per_node, domain)
    if hosts.number > 1 and hosts.even:
        domain = domain // per_node * hosts.each if domain >= per_node else math.gcd(domain, hosts.each)
    return Borders(domain, near)


@lru_cache(maxsize=64)
def _uneven(hosts: Sequence[int], together: int) -> Borders:
    """Borders of domains of so many hosts each."""
    sizes = [sum(hosts[first : first + together]) for first in range(0, len(hosts), together)]
    return Borders(max(sizes), starts=tuple(accumulate(sizes[:-1], initial=0)))
