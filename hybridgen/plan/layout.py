"""Where a rank stands: mesh order, rank <-> coordinates, groups, and which tokens it holds. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from hybridgen.plan.degrees import Degrees


@dataclass(frozen=True)
class Layout:
    """A mesh of ranks: `order` names every axis once, slowest first; ranks count in row-major order."""

    degrees: Degrees
    order: tuple[str, ...] = ()
    """Every axis of the mesh once, slowest first; empty means the default order, which is filled in."""

    def __post_init__(self) -> None:
        order = self.order or self.degrees.default_order
        assert sorted(order) == sorted(self.degrees.default_order), f"order must name every axis once: {order}"
        object.__setattr__(self, "order", order)

    @property
    def world_size(self) -> int:
        return self.degrees.world

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.degrees.size(axis) for axis in self.order)

    def coordinate(self, rank: int, axis: str) -> int:
        """Coordinate of a rank on one axis."""
        return rank // self.stride(axis) % self.degrees.size(axis)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Coordinate of a rank on every axis."""
        found = {}
        for axis, size in zip(reversed(self.order), reversed(self.sizes), strict=True):
            rank, found[axis] = divmod(rank, size)
        return found

    def rank(self, coordinates: dict[str, int]) -> int:
        """The rank at these coordinates (axes that are left out count as 0)."""
        return sum(self.strides[axis] * place for axis, place in coordinates.items())

    @cached_property
    def strides(self) -> dict[str, int]:
        """Distance in ranks between neighbours on every axis."""
        found, stride = {}, 1
        for axis, size in zip(reversed(self.order), reversed(self.sizes), strict=True):
            found[axis] = stride
            stride *= size
        return found

    def stride(self, axis: str) -> int:
        """Distance in ranks between neighbours on an axis."""
        return self.strides[axis]

    def group(self, rank: int, axes: Sequence[str]) -> list[int]:
        """The ranks that differ from `rank` only on `axes`, ordered by their coordinates on `axes` as listed."""
        ranks = [self.rank({**self.coordinates(rank), **dict.fromkeys(axes, 0)})]
        for axis in axes:
            ranks = [r + i * self.stride(axis) for r in ranks for i in range(self.degrees.size(axis))]
        return ranks

    def groups(self, axis: str) -> list[list[int]]:
        """All groups along one axis; every rank is in exactly one."""
        return [g for r in range(self.world_size) if (g := self.group(r, [axis]))[0] == r]

    def sequence_index(self, rank: int) -> int:
        """Which shard of the sequence a rank holds: cp index x U + ulysses index, cp index = row x cols + col."""
        here, index = self.coordinates(rank), 0
        for axis in self.degrees.sequence_axes:
            index = index * self.degrees.size(axis) + here[axis]
        return index

    def sequence_group(self, rank: int = 0) -> list[int]:
        """The ranks that share a sequence with `rank`, in order of their shard."""
        return self.group(rank, self.degrees.sequence_axes)

    def overlay(self, axis: str) -> list[int]:
        """The ranks of an axis that is laid over the mesh; shard i is rank [i].

        These are the first ranks of the first guidance branch in mesh order, or the whole world.
        """
        count = self.degrees.size(axis)
        if count == self.world_size:
            return list(range(count))
        cuts = sorted((self.stride(name), self.degrees.size(name)) for name in self.degrees.axes_of("branches"))
        return list(_first_ranks(count, tuple(cuts)))

    def branch_index(self, rank: int) -> int:
        """Which of the parts that guidance branches are divided into a rank runs."""
        here, index = self.coordinates(rank), 0
        for axis in self.degrees.axes_of("branches"):
            index = index * self.degrees.size(axis) + here[axis]
        return index

    def vae_ranks(self) -> list[int]:
        """The ranks that decode and encode."""
        return self._vae_ranks

    @cached_property
    def _vae_ranks(self) -> list[int]:
        return self.overlay("vae")


@lru_cache(maxsize=1024)
def _first_ranks(count: int, cuts: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """The first ranks in mesh order that stand first on axes of these strides and sizes, the fastest axis first."""
    ranks = tuple(range(count))
    for stride, size in cuts:
        ranks = tuple(i // stride * stride * size + i % stride for i in ranks)
    return ranks


@dataclass(frozen=True)
class TokenShards:
    """The division of `tokens` over `shards` ranks, in `patches` consecutive pieces (PipeFusion; 1 otherwise).

    Every patch has `patch_size` tokens, a multiple of `shards`, and every rank holds `shard_size` of each, so
    shapes are equal on all ranks. What is missing at the end of the sequence is padding: it takes no softmax
    mass and is dropped. A shard may be all padding.
    """

    tokens: int
    shards: int = 1
    patches: int = 1

    @property
    def patch_size(self) -> int:
        return self.shard_size * self.shards

    @cached_property
    def shard_size(self) -> int:
        """Tokens of one patch that one rank holds, padding included."""
        return -(-self.tokens // (self.patches * self.shards))

    @cached_property
    def local_size(self) -> int:
        """Tokens that one rank holds over all patches, padding included."""
        return self.shard_size * self.patches

    @property
    def padded(self) -> int:
        return self.patch_size * self.patches

    def valid(self, start: int, size: int) -> int:
        """How many of the padded positions [start, start + size) are real tokens (they come first)."""
        return min(max(self.tokens - start, 0), size)

    def span(self, index: int, width: int = 1, patch: int = 0) -> tuple[int, int]:
        """First position and valid length of `width` neighbouring shards that begin at shard `index`."""
        start = patch * self.patch_size + index * self.shard_size
        return start, self.valid(start, width * self.shard_size)

    def valid_local(self, index: int, width: int = 1) -> int:
        """Number of real tokens in `width` neighbouring shards that begin at `index`, over all patches."""
        return sum(self.span(index, width, patch)[1] for patch in range(self.patches))

    def positions(self, index: int) -> list[tuple[int, int]]:
        """Start and valid length of the piece of every patch that shard `index` holds."""
        return [self.span(index, 1, patch) for patch in range(self.patches)]


def split_rows(rows: int, parts: int) -> list[int]:
    """Sizes of `parts` contiguous pieces of `rows` rows, as equal as can be, larger ones first."""
    base, extra = divmod(rows, parts)
    return [base + (i < extra) for i in range(parts)]
