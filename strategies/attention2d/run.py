"""Attention2D at work: each rank attends the queries of its row over the keys of its column.

q [B, s, H, D] gathered in the row group -> cols * s queries; k, v gathered in the column group -> rows * s keys;
partial outputs and log-sum-exp go back to the queries' owners in one all-to-all and are merged in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybridgen.distributed.attention import merge_stacked
from hybridgen.distributed.comm import Group
from hybridgen.distributed.mesh import Mesh
from hybridgen.distributed.sequence import join, split
from hybridgen.models.denoiser import Denoiser
from hybridgen.models.slots import Attend, KeyValue, Partial, Pass
from hybridgen.plan.plan import Plan


def pack(out: Tensor, lse: Tensor) -> Tensor:
    """Put out [..., D] and fp32 lse [..., 1] side by side in out's dtype, [..., D + 4 / itemsize], bits unchanged."""
    return torch.cat([out, lse.contiguous().view(out.dtype)], -1)


def unpack(packed: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Split what pack() put together."""
    out, lse = torch.split(packed, [head_dim, packed.shape[-1] - head_dim], -1)
    return out, lse.contiguous().view(torch.float32)


def attention2d(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_group: Group,
    key_group: Group,
    blocks: list[int],
    attend: Attend,
    patches: int,
    now: Pass,
    beside: Sequence[Partial] = (),
) -> Tensor:
    """Attend with the queries of a row of ranks to the keys of a column, which are cp `blocks`.

    `beside` are partial results of the own queries over keys that every rank has.
    """

    def seen() -> Partial:  # what it gathers is gone when its result is sent
        keys, values, queries = k, v, q
        if key_group.size > 1:
            keys, values = join(key_group.all_gather(torch.cat([k, v], -1)), patches).chunk(2, -1)
        if query_group.size > 1:
            queries = join(query_group.all_gather(q), patches)
        return attend(queries, keys, values, blocks, now)

    if query_group.size > 1:
        partials = query_group.all_to_all(split(pack(*seen()), query_group.size, patches))  # [cols, B, s, H, D + ...]
        parts = [*zip(*unpack(partials, v.shape[-1]), strict=True), *beside]
    else:
        parts = [seen(), *beside]
    outs, lses = zip(*parts, strict=True)
    return outs[0] if len(outs) == 1 else merge_stacked(outs, torch.stack(lses), q.dtype)


def apply(model: Denoiser, mesh: Mesh, plan: Plan) -> None:
    """Replace the model's attention over local keys by the two-dimensional one."""
    # Along a row of ranks the column changes: the group of the axis "col" holds the ranks of one row.
    query_group, key_group = mesh.group("col", "attention2d"), mesh.group("row", "attention2d")
    (rows, cols), col = plan.degrees.attn2d, mesh.coordinate("col")
    blocks = [row * cols + col for row in range(rows)]

    def attention(q: Tensor, k: Tensor, v: Tensor, text: KeyValue | None, now: Pass) -> Tensor:
        beside, pieces = model.attend_text(q, text), model.state.pieces(now.patch)
        return attention2d(q, k, v, query_group, key_group, blocks, model.attend_blocks, pieces, now, beside)

    model.slots.attention = attention
