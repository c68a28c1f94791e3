"""Ring attention at work: K/V blocks travel around the group; each rank merges what its queries see of each block.

q, k, v [B, s, H, D] -> R partial outputs with log-sum-exp, one per block, merged in fp32 -> out [B, s, H, D]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybridgen.distributed.attention import Merge
from hybridgen.distributed.comm import Group
from hybridgen.distributed.mesh import Mesh
from hybridgen.models.denoiser import Denoiser
from hybridgen.models.slots import Attend, KeyValue, Partial, Pass
from hybridgen.plan.plan import Plan


def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, group: Group, attend: Attend, now: Pass, beside: Sequence[Partial] = ()
) -> Tensor:
    """Attend around a ring: k, v [B, s, H, D] are this rank's block, and `attend` takes one block at a time.

    `beside` are partial results of the own queries over keys that do not travel.
    """
    merge = Merge(q)
    for part in beside:
        merge.add(*part)
    block = torch.stack([k, v])
    for hop in range(group.size):
        owner = (group.rank - hop) % group.size
        last = hop == group.size - 1
        arriving, wait = (block, None) if last else group.start_shift(block)  # posted before the block is attended
        merge.add(*attend(q, block[0], block[1], [owner], now))
        if wait:
            wait()
        block = arriving
    return merge.result(q.dtype)


def apply(model: Denoiser, mesh: Mesh, plan: Plan) -> None:
    """Replace the model's attention over local keys by the ring."""
    group = mesh.group("ring", "ring")

    def attention(q: Tensor, k: Tensor, v: Tensor, text: KeyValue | None, now: Pass) -> Tensor:
        return ring_attention(q, k, v, group, model.attend_blocks, now, model.attend_text(q, text))

    model.slots.attention = attention
