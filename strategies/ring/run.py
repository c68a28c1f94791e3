"""Ring attention at work: K/V blocks travel around the group; each rank merges what its queries see of each block.

q, k, v [B, s, H, D] -> R partial outputs with log-sum-exp, one per block, merged in fp32 -> out [B, s, H, D]
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridgen.models.wan import Attend, Wan
from hybridgen.plan import Plan
from hybridgen.runtime.attention import Merge
from hybridgen.runtime.comm import Group
from hybridgen.runtime.mesh import Mesh


def ring_attention(q: Tensor, k: Tensor, v: Tensor, group: Group, attend: Attend) -> Tensor:
    """k, v [B, s, H, D] are this rank's block; `attend` sees one block at a time."""
    merge = Merge(q)
    block = torch.stack([k, v])
    for hop in range(group.size):
        owner = (group.rank - hop) % group.size
        last = hop == group.size - 1
        arriving, wait = (block, None) if last else group.start_shift(block)  # posted before the block is attended
        merge.add(*attend(q, block[0], block[1], [owner]))
        if wait:
            wait()
        block = arriving
    return merge.result(q.dtype)


def apply(model: Wan, mesh: Mesh, plan: Plan) -> None:
    """Replace the model's attention over local keys by the ring."""
    group = mesh.group("ring", "ring")
    model.wrap_attention(lambda _: lambda q, k, v: ring_attention(q, k, v, group, model.attend))
