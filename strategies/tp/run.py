"""Tensor parallelism at work: every rank holds a slice of each block's matrices, and whole heads.

Matrices that make heads or feed-forward channels are cut by outputs, those that take them in by inputs; what the latter
give is summed over the ranks, and the bias is added once, after the sum. A q/k norm over all heads has its sums of
squares added up over the ranks, those of q and k in one message; one head by head needs no other rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridgen.distributed.comm import Group
from hybridgen.distributed.mesh import Mesh
from hybridgen.models.denoiser import Denoiser
from hybridgen.models.load import take_slice
from hybridgen.models.slots import Cuts, Normed
from hybridgen.plan.plan import Plan


class RowLinear(nn.Module):
    """A linear layer of which this rank has some of the inputs: [B, S, in / T] -> [B, S, out], summed over ranks."""

    def __init__(self, linear: nn.Linear, group: Group) -> None:
        super().__init__()
        self.group = group
        self.weight = take_slice(linear.weight, 1, group.rank, group.size)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        out = self.group.all_reduce(F.linear(x, self.weight))
        return out if self.bias is None else out.add_(self.bias)


def cut_columns(linear: nn.Linear, group: Group) -> None:
    """Keep this rank's outputs of a linear layer."""
    linear.weight = take_slice(linear.weight, 0, group.rank, group.size)
    if linear.bias is not None:
        linear.bias = take_slice(linear.bias, 0, group.rank, group.size)
    linear.out_features //= group.size


def cut_block(block: nn.Module, cuts: Cuts, group: Group) -> None:
    """Keep this rank's heads and feed-forward channels of a block; one that was cut for an earlier clip stays so."""
    if isinstance(block.get_submodule(cuts.rows[0]), RowLinear):
        return
    for name in cuts.columns:
        cut_columns(block.get_submodule(name), group)  # type: ignore[arg-type]
    for name in cuts.norms:
        norm: Any = block.get_submodule(name)
        norm.weight = take_slice(norm.weight, 0, group.rank, group.size)
    for name in cuts.rows:
        block.set_submodule(name, RowLinear(block.get_submodule(name), group))  # type: ignore[arg-type]
    for name in cuts.heads:
        parent, _, attribute = name.rpartition(".")
        owner = block.get_submodule(parent)
        setattr(owner, attribute, getattr(owner, attribute) // group.size)


def norm_over_ranks(group: Group, *pairs: Normed) -> list[Tensor]:
    """RMS norm of tensors [B, S, inner / T] of which every rank has some channels, one reduction for all of them."""
    squares = torch.cat([x.float().pow(2).sum(-1, keepdim=True) for _, x in pairs], -1)
    means = group.all_reduce(squares) / (pairs[0][1].shape[-1] * group.size)
    return [
        (x.float() * torch.rsqrt(mean.unsqueeze(-1) + norm.eps)).type_as(x) * norm.weight
        for (norm, x), mean in zip(pairs, means.unbind(-1), strict=True)
    ]


def apply(model: Denoiser, mesh: Mesh, plan: Plan) -> None:
    """Cut every block's matrices, and let the norms see all heads."""
    group = mesh.group("tp", "tp")
    for block in model.blocks():
        cut_block(block, model.cuts, group)
    model.slots.norm = lambda *pairs: norm_over_ranks(group, *pairs)
