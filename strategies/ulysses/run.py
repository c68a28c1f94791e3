"""Ulysses at work: a rank trades tokens of all heads for all tokens of some heads, and back.

q, k, v [B, s, H, D] -> one all-to-all -> [B, U * s, H / U, D] -> attention -> all-to-all -> out [B, s, H, D]
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridgen.distributed.comm import Group
from hybridgen.distributed.mesh import Mesh
from hybridgen.distributed.sequence import join, split
from hybridgen.models.denoiser import Denoiser
from hybridgen.models.slots import KeyValue, Pass
from hybridgen.plan.plan import Plan


def scatter_heads(q: Tensor, k: Tensor, v: Tensor, group: Group, patches: int) -> tuple[Tensor, Tensor, Tensor]:
    """Exchange tokens for heads: q, k, v [B, s, H, D] -> [B, U * s, H / U, D] each, in one exchange."""
    size = group.size
    k, v = spread_heads(k, size), spread_heads(v, size)
    received = group.all_to_all(
        torch.cat([torch.unflatten(x, 2, (size, -1)).movedim(2, 0) for x in (q, k, v)], dim=3)
    )  # [U, B, s, heads, D]
    q_heads, k_heads = q.shape[2] // size, k.shape[2] // size
    q, k, v = torch.split(join(received, patches), [q_heads, k_heads, k_heads], dim=2)
    return q, k, v


def own_heads(text: KeyValue | None, group: Group) -> KeyValue | None:
    """K and V of this rank's heads, [B, n, Hk / U, D], from those of the text, [B, n, Hk, D], which every rank has."""
    if text is None:
        return None
    k, v = (spread_heads(x, group.size).chunk(group.size, dim=2)[group.rank] for x in text)
    return k, v


def spread_heads(x_BSHD: Tensor, size: int) -> Tensor:
    """Repeat K or V heads where they are fewer than ranks, so that every rank gets one (grouped-query attention)."""
    num_heads = x_BSHD.shape[2]
    return x_BSHD.repeat_interleave(size // num_heads, dim=2) if num_heads % size else x_BSHD


def gather_heads(out: Tensor, group: Group, patches: int) -> Tensor:
    """Exchange heads for tokens: [B, U * s, H / U, D] -> [B, s, H, D]."""
    received = group.all_to_all(split(out, group.size, patches))  # [U, B, s, H / U, D]
    return received.movedim(0, 2).flatten(2, 3)


def apply(model: Denoiser, mesh: Mesh, plan: Plan) -> None:
    """Wrap the model's attention in the two exchanges."""
    group, inner = mesh.group("ulysses", "ulysses"), model.slots.attention

    def attention(q: Tensor, k: Tensor, v: Tensor, text: KeyValue | None, now: Pass) -> Tensor:
        pieces = model.state.pieces(now.patch)
        out = inner(*scatter_heads(q, k, v, group, pieces), own_heads(text, group), now)
        return gather_heads(out, group, pieces)

    model.slots.attention = attention
