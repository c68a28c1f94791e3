"""The mesh of ranks as one DeviceMesh, and the groups that strategies get from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from hybridgen.distributed.comm import Group, Traffic
from hybridgen.plan.layout import Layout
from hybridgen.plan.traffic import SEQUENCE_GATHER, SETUP


@dataclass
class Mesh:
    """This rank's view of the layout. Every group derives from `layout`; axes of size 1 have no process group."""

    layout: Layout
    rank: int
    traffic: Traffic = field(default_factory=Traffic)
    device_mesh: DeviceMesh | None = None
    overlays: dict[str, dist.ProcessGroup | None] = field(default_factory=dict)

    def coordinate(self, axis: str) -> int:
        return self.layout.coordinates(self.rank)[axis]

    def group(self, axis: str, strategy: str) -> Group:
        """The ranks that differ from this one on `axis` only; bytes sent there count for `strategy`."""
        ranks = self.layout.group(self.rank, [axis])
        handle = self.device_mesh.get_group(axis) if self.device_mesh and len(ranks) > 1 else None
        return Group(strategy, tuple(ranks), ranks.index(self.rank), self.traffic, handle)

    def way_back(self, axis: str, strategy: str) -> Group:
        """The ranks of an axis that divides the blocks once more, with a communicator of its own.

        NCCL orders what two ranks send each other within a communicator, so hidden states that go forward and
        latents that come back would wait for each other in one.
        """
        forward = self.group(axis, strategy)
        return replace(forward, handle=self.overlays.get(f"way back {forward.ranks[0]}"))

    def _overlay(self, name: str, ranks: list[int], strategy: str) -> Group | None:
        if self.rank not in ranks:
            return None
        return Group(strategy, tuple(ranks), ranks.index(self.rank), self.traffic, self.overlays.get(name))

    def world(self) -> Group:
        """The group of all ranks; its traffic counts as set-up."""
        ranks = tuple(range(self.layout.world_size))
        return Group(SETUP, ranks, self.rank, self.traffic, dist.group.WORLD if len(ranks) > 1 else None)

    def sequence(self) -> Group | None:
        """The ranks that share a sequence with rank 0, in order of their shard; None on other ranks."""
        return self._overlay("sequence", self.layout.sequence_group(0), SEQUENCE_GATHER)

    def is_on(self, axis: str) -> bool:
        """Whether this rank is one of those of an axis that is laid over the mesh."""
        return self.rank in self.layout.overlay(axis)

    def overlay(self, axis: str, strategy: str) -> Group | None:
        """The ranks of an axis that is laid over the mesh, in order of their part; None on other ranks."""
        return self._overlay(axis, self.layout.overlay(axis), strategy)


def build_mesh(layout: Layout, rank: int, device_type: str) -> Mesh:
    """Build the mesh; collective over all ranks of the default process group (none is needed for one rank)."""
    mesh = Mesh(layout, rank)
    if layout.world_size == 1:
        return mesh
    axes = [(axis, size) for axis, size in zip(layout.order, layout.sizes, strict=True) if size > 1]
    ranks = torch.arange(layout.world_size).reshape([size for _, size in axes])
    mesh.device_mesh = DeviceMesh(device_type, ranks, mesh_dim_names=tuple(axis for axis, _ in axes))
    overlaid = [axis.name for axis in layout.degrees.axes.values() if axis.place is None]
    for name, members in (("sequence", layout.sequence_group(0)), *((name, layout.overlay(name)) for name in overlaid)):
        # new_group is collective over the world: every rank calls it, members or not.
        mesh.overlays[name] = dist.new_group(members) if len(members) > 1 else None
    for axis in layout.degrees.axes.values():
        if axis.divides == "blocks" and layout.degrees.size(axis.name) > 1:
            for members in layout.groups(axis.name):
                mesh.overlays[f"way back {members[0]}"] = dist.new_group(members)
    return mesh
