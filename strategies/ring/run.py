"""Ring attention at work: K/V blocks travel around the group; each rank merges what its queries see of each block.

q, k, v [B, s, H, D] -> R partial outputs with log-sum-exp, one per block, merged in fp32 -> out [B, s, H, D]
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridgen.models.wan import Wan
from hybridgen.plan import Plan
from hybridgen.runtime.attention import Merge, attend
from hybridgen.runtime.comm import Group
from hybridgen.runtime.kernels import Kernel
from hybridgen.runtime.mesh import Mesh


def ring_attention(q: Tensor, k: Tensor, v: Tensor, group: Group, valid: list[int], kernel: Kernel) -> Tensor:
    """valid[i] is how many of the tokens of rank i's block are real; they come first."""
    merge = Merge(q)
    block = torch.stack([k, v])
    for hop in range(group.size):
        owner = (group.rank - hop) % group.size
        last = hop == group.size - 1
        arriving, wait = (block, None) if last else group.start_shift(block)  # posted before the block is attended
        length = valid[owner]
        if length:
            merge.add(*attend(kernel, q, block[0][:, :length], block[1][:, :length]))
        if wait:
            wait()
        block = arriving
    return merge.result(q.dtype)


def apply(model: Wan, mesh: Mesh, plan: Plan) -> None:
    """Replace the model's attention over local keys by the ring."""
    group, kernel = mesh.group("ring", "ring"), model.kernel
    width = plan.degrees.ulysses
    valid = [plan.tokens.valid_local(i * width, width) for i in range(group.size)]
    model.wrap_attention(lambda _: lambda q, k, v: ring_attention(q, k, v, group, valid, kernel))
