"""Which link a group of ranks spans, and what a message costs on it. No torch.

Ranks fill domains (GPUs joined by the inside link) in order; hosts.py says which rank stands where.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from hybridgen.plan.layout import Layout
from hybridgen.planner.hardware.constants import Hardware, Link
from hybridgen.planner.hardware.hosts import Borders


class Span(NamedTuple):
    """Span of the worst group of an axis: its size, and its ranks where it has fewest."""

    size: int
    together: int
    """Ranks in the domain that has fewest of them."""
    near: int = 1
    """Ranks in the near group that has fewest of them; 1 on a machine without near groups."""

    @property
    def crosses(self) -> bool:
        return self.together < self.size

    @property
    def away(self) -> float:
        """Share of a rank's peers that are outside of its domain."""
        return (self.size - self.together) / (self.size - 1)


@lru_cache(maxsize=4096)
def span_of_axis(stride: int, size: int, world: int, borders: Borders) -> Span:
    """The worst group of an axis whose neighbours stand `stride` ranks apart."""
    if borders.starts or (borders.domain % borders.near and not borders.is_one_domain(world)):
        block = stride * size
        starts = (first + offset for first in range(0, world, block) for offset in range(stride))
        spans = (span_of_ranks(range(start, start + block, stride), borders) for start in starts)
        return min(spans, key=lambda one: (one.together, one.near))
    near = _fewest(stride, size, world, borders.near) if borders.near > 1 else 1
    return Span(size, _fewest(stride, size, world, borders.domain), near)


def _fewest(stride: int, size: int, world: int, part: int) -> int:
    """Ranks of an axis that stand in one part, where ranks fill parts of one size; of the group that has fewest."""
    block = stride * size
    if world <= part or part % block == 0:
        return size
    if stride >= part:
        return 1
    if part % stride == 0 and block % part == 0:
        return part // stride
    # The first and the last group of a block: if a border of parts lies in the block, one of them crosses it.
    # Only the place in a part matters.
    starts = {(first + offset) % part for first in range(0, world, block) for offset in (0, stride - 1)}
    return min(_fewest_from(start, stride, size, part) for start in starts)


def _fewest_from(start: int, stride: int, size: int, part: int) -> int:
    """Ranks of the part that holds fewest, of `size` ranks from `start` on, which lies in the first part; a stride is
    shorter than a part."""
    borders = range(part, start + (size - 1) * stride + 1, part)
    before = [0, *(-((start - border) // stride) for border in borders), size]
    return min(after - so_far for so_far, after in pairwise(before))


@lru_cache(maxsize=4096)
def span_of_ranks(ranks: range | tuple[int, ...], borders: Borders) -> Span:
    """The span of these ranks."""
    places = [borders.place(rank) for rank in ranks]
    together = min(Counter(domain for domain, _ in places).values())
    return Span(len(ranks), together, min(Counter(places).values()))


def span(layout: Layout, axis: str, borders: Borders) -> Span:
    """The worst group of a mesh axis, of one that is laid over the mesh ("vae"), or of all ranks ("world")."""
    if axis in layout.degrees.axes and axis not in layout.order:
        return span_of_ranks(tuple(layout.overlay(axis)), borders)
    if axis in layout.order:
        return span_of_axis(layout.stride(axis), layout.degrees.size(axis), layout.world_size, borders)
    return span_of_ranks(range(layout.world_size), borders)


def link(hardware: Hardware, where: Span) -> Link:
    """The slowest link in use."""
    if where.crosses:
        return hardware.across
    is_near = hardware.near is not None and where.near == where.size
    return hardware.near if hardware.near is not None and is_near else hardware.between


class Share(NamedTuple):
    """The part of a message that a rank sends over one link."""

    link: Link
    part: float
    """Bytes over this link, in units of what the rank sends to one of its peers."""
    rate: float
    """Bytes a second that one GPU sends over it in such a message."""


@lru_cache(maxsize=4096)
def shares(hardware: Hardware, collective: str, where: Span) -> tuple[Share, ...]:
    """What of a collective's bytes a rank sends over each link in use, innermost first.

    An all-to-all sends every peer its part. What leaves a domain counts for the inside link as well: it crosses a
    shared bus, and elsewhere the copies that bound what a GPU reaches of its link are the same. A gather or a reduction
    sends every byte to another part of the machine once, through the adapters of all ranks that stand together, and
    spreads it inside.
    """
    near, within = hardware.near, 1
    levels = [(hardware.inside, where.together, True), (hardware.outside, where.size, False)]
    found = []
    for by, ranks, is_shared in [(near, where.near, near.shared_bus), *levels] if near else levels:
        beyond, further = (where.size - within), (where.size - ranks)
        if within < where.size:
            part = (beyond if is_shared else beyond - further) if collective == "all_to_all" else beyond / within
            found.append(Share(by, part, by.rate(collective)))
        within = ranks
    return tuple(found)


def farthest(hardware: Hardware, places: Borders, ranks: int) -> Link:
    """The slowest link between any two of so many ranks."""
    if not places.is_one_domain(ranks):
        return hardware.outside
    return hardware.near if hardware.near is not None and places.are_alike(ranks) else hardware.inside


def sent_over(by: Link, hardware: Hardware, collective: str, size: float, where: Span) -> float:
    """Bytes that a rank sends over one link, of a message of `size` bytes."""
    found, peers = shares(hardware, collective, where), where.size - 1
    if collective == "p2p":
        return size if found[-1].link is by else 0.0
    return sum(size * one.part / peers for one in found if one.link is by)


def exchange_seconds(hardware: Hardware, collective: str, size: float, where: Span) -> float:
    """Seconds of one message in which a rank sends `size` bytes. Every GPU has its own adapters, and all links are at
    work at the same time; what crosses domains takes no less than it would inside of one."""
    by = link(hardware, where)
    if collective == "p2p":
        return by.hop.value + size / by.rate(collective)
    found, peers = shares(hardware, collective, where), where.size - 1
    least = size / hardware.inside.rate(collective) if where.crosses else 0.0
    return by.latency.value + max(least, *[size * one.part / peers / one.rate for one in found])
