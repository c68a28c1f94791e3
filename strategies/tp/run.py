"""Tensor parallelism at work: every rank holds a slice of each block's matrices, and whole heads.

to_q, to_k, to_v and the first feed-forward matrix are cut by rows (outputs), to_out and the second by columns
(inputs); what those two give is summed over the ranks, and the bias is added once, after the sum. The q/k norm spans
all heads, so its sums of squares are added up over the ranks, those of q and k in one message.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridgen.models.wan import Normed, Wan
from hybridgen.models.wan_load import take_slice
from hybridgen.plan import Plan
from hybridgen.runtime.comm import Group
from hybridgen.runtime.mesh import Mesh


class RowLinear(nn.Module):
    """A linear layer of which this rank has some of the inputs: [B, S, in / T] -> [B, S, out], summed over ranks."""

    def __init__(self, linear: nn.Linear, group: Group) -> None:
        super().__init__()
        self.group = group
        self.weight = take_slice(linear.weight, 1, group.rank, group.size)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        out = self.group.all_reduce(F.linear(x, self.weight))
        return out + self.bias if self.bias is not None else out


def cut_rows(linear: nn.Linear, group: Group) -> None:
    """Keep this rank's outputs of a linear layer."""
    linear.weight = take_slice(linear.weight, 0, group.rank, group.size)
    if linear.bias is not None:
        linear.bias = take_slice(linear.bias, 0, group.rank, group.size)
    linear.out_features //= group.size


def cut_attention(attn: Any, group: Group) -> None:
    """Keep this rank's heads of an attention layer."""
    for linear in (attn.to_q, attn.to_k, attn.to_v):
        cut_rows(linear, group)
    for norm in (attn.norm_q, attn.norm_k):
        norm.weight = take_slice(norm.weight, 0, group.rank, group.size)
    attn.to_out[0] = RowLinear(attn.to_out[0], group)
    attn.heads //= group.size


def norm_over_ranks(group: Group, *pairs: Normed) -> list[Tensor]:
    """RMS norm of tensors [B, S, inner / T] of which every rank has some channels, one reduction for all of them."""
    squares = torch.cat([x.float().pow(2).sum(-1, keepdim=True) for _, x in pairs], -1)
    means = group.all_reduce(squares) / (pairs[0][1].shape[-1] * group.size)
    return [
        (x.float() * torch.rsqrt(mean.unsqueeze(-1) + norm.eps)).type_as(x) * norm.weight
        for (norm, x), mean in zip(pairs, means.unbind(-1), strict=True)
    ]


def apply(model: Wan, mesh: Mesh, plan: Plan) -> None:
    """Cut every block's matrices, and let the norms see all heads."""
    group = mesh.group("tp", "tp")
    for block in model.blocks():
        cut_attention(block.attn1, group)
        cut_attention(block.attn2, group)
        cut_rows(block.ffn.net[0].proj, group)
        block.ffn.net[2] = RowLinear(block.ffn.net[2], group)
    model.norm = lambda *pairs: norm_over_ranks(group, *pairs)
    model.wrap_attention(lambda attention: attention)  # the stock processors know nothing of other ranks
