"""Which link a group of ranks spans, and what a message costs on it. No torch.

Ranks fill domains (GPUs joined by the inside link) in order: rank r stands in domain r // size, of the size that
hosts.py gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from hybridgen.plan.layout import Layout
from hybridgen.planner.hardware.constants import Hardware, Link


class Span(NamedTuple):
    """Span of the worst group of an axis: its size, and its ranks in the domain that has fewest."""

    size: int
    together: int

    @property
    def crosses(self) -> bool:
        return self.together < self.size

    @property
    def away(self) -> float:
        """Share of a rank's peers that are outside of its domain."""
        return (self.size - self.together) / (self.size - 1)


@lru_cache(maxsize=4096)
def span_of_axis(stride: int, size: int, world: int, domain: int) -> Span:
    """The worst group of an axis whose neighbours stand `stride` ranks apart."""
    block = stride * size
    if world <= domain or domain % block == 0:
        return Span(size, size)
    if stride >= domain:
        return Span(size, 1)
    if domain % stride == 0 and block % domain == 0:
        return Span(size, domain // stride)
    # The first and the last group of a block: if a border of domains lies in the block, one of them crosses it.
    starts = (first + offset for first in range(0, world, block) for offset in (0, stride - 1))
    return min((span_of_ranks(range(s, s + block, stride), domain) for s in starts), key=lambda s: s.together)


def span_of_ranks(ranks: Sequence[int], domain: int) -> Span:
    """The span of these ranks."""
    return Span(len(ranks), min(Counter(rank // domain for rank in ranks).values()))


def span(layout: Layout, axis: str, domain: int) -> Span:
    """The worst group of a mesh axis, of one that is laid over the mesh ("vae"), or of all ranks ("world")."""
    if axis in layout.degrees.axes and axis not in layout.order:
        return span_of_ranks(layout.overlay(axis), domain)
    if axis in layout.order:
        return span_of_axis(layout.stride(axis), layout.degrees.size(axis), layout.world_size, domain)
    return span_of_ranks(range(layout.world_size), domain)


def link(hardware: Hardware, where: Span) -> Link:
    """The slowest link in use."""
    return hardware.across if where.crosses else hardware.inside


def exchange_seconds(hardware: Hardware, collective: str, size: float, where: Span) -> float:
    """Seconds of one message in which a rank sends `size` bytes.

    Every GPU has its own adapter. What leaves the domain goes through it, at the same time as what stays inside, or on
    a shared bus after that. A gather or a reduction sends every byte to another domain once, through the adapters of
    all ranks that stand together, and spreads it inside.
    """
    by = link(hardware, where)
    if collective == "p2p":
        return by.hop.value + size / by.bandwidth.value
    if not where.crosses:
        return by.latency.value + size / by.bandwidth.value
    inside, leaving = size, size * where.away
    if collective != "all_to_all":
        leaving /= where.together
    elif not hardware.shared_bus:
        inside -= leaving
    slowest = max(inside / hardware.inside.bandwidth.value, leaving / hardware.outside.bandwidth.value)
    return by.latency.value + slowest
