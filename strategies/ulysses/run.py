"""Ulysses at work: a rank trades tokens of all heads for all tokens of some heads, and back.

q, k, v [B, s, H, D] -> one all-to-all -> [B, U * s, H / U, D] -> attention -> all-to-all -> out [B, s, H, D]
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridgen.models.wan import Attention, Wan
from hybridgen.plan import Plan
from hybridgen.runtime.comm import Group
from hybridgen.runtime.mesh import Mesh
from hybridgen.runtime.sequence import join, split


def scatter_heads(q: Tensor, k: Tensor, v: Tensor, group: Group, patches: int) -> tuple[Tensor, Tensor, Tensor]:
    """[B, s, H, D] -> [B, U * s, H / U, D] for all three, in one exchange.

    K/V heads fewer than ranks are repeated, so that every rank gets one (grouped-query attention).
    """
    size = group.size
    if k.shape[2] % size:
        k, v = (x.repeat_interleave(size // x.shape[2], dim=2) for x in (k, v))
    packed = torch.cat(
        [torch.unflatten(x, 2, (size, -1)).movedim(2, 0) for x in (q, k, v)], dim=3
    )  # [U, B, s, heads, D]
    received = group.all_to_all(packed)
    q_heads, k_heads = q.shape[2] // size, k.shape[2] // size
    q, k, v = torch.split(join(received, patches), [q_heads, k_heads, k_heads], dim=2)
    return q, k, v


def gather_heads(out: Tensor, group: Group, patches: int) -> Tensor:
    """[B, U * s, H / U, D] -> [B, s, H, D]."""
    received = group.all_to_all(split(out, group.size, patches))  # [U, B, s, H / U, D]
    return received.movedim(0, 2).flatten(2, 3)


def apply(model: Wan, mesh: Mesh, plan: Plan) -> None:
    """Wrap the model's attention in the two exchanges."""
    group = mesh.group("ulysses", "ulysses")

    def wrap(inner: Attention) -> Attention:
        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = inner(*scatter_heads(q, k, v, group, model.patches))
            return gather_heads(out, group, model.patches)

        return attention

    model.wrap_attention(wrap)
