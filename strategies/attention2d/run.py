"""Attention2D at work: each rank attends the queries of its row over the keys of its column.

q [B, s, H, D] gathered in the row group -> cols * s queries; k, v gathered in the column group -> rows * s keys;
partial outputs and log-sum-exp go back to the queries' owners in one all-to-all and are merged in fp32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridgen.models.wan import Wan
from hybridgen.plan import Plan
from hybridgen.runtime.attention import attend, merge_stacked
from hybridgen.runtime.comm import Group
from hybridgen.runtime.kernels import Kernel
from hybridgen.runtime.mesh import Mesh
from hybridgen.runtime.sequence import join, split


def pack(out: Tensor, lse: Tensor) -> Tensor:
    """out [..., D] and fp32 lse [..., 1] side by side in out's dtype, [..., D + 4 / itemsize], bits unchanged."""
    return torch.cat([out, lse.contiguous().view(out.dtype)], -1)


def unpack(packed: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """The inverse of pack."""
    out, lse = torch.split(packed, [head_dim, packed.shape[-1] - head_dim], -1)
    return out, lse.contiguous().view(torch.float32)


def attention2d(
    q: Tensor, k: Tensor, v: Tensor, row: Group, column: Group, keys: int, kernel: Kernel, patches: int
) -> Tensor:
    """`keys` is how many of the column's gathered tokens are real; they come first.

    row: the ranks of one row, which share out the queries; column: the ranks of one column, which share out the keys.
    """
    if column.size > 1:
        k, v = join(column.all_gather(torch.cat([k, v], -1)), patches).chunk(2, -1)
    if row.size > 1:
        q = join(row.all_gather(q), patches)
    out, lse = attend(kernel, q, k[:, :keys], v[:, :keys])
    if row.size == 1:
        return out
    partials = row.all_to_all(split(pack(out, lse), row.size, patches))  # [cols, B, s, H, D + ...]
    outs, lses = unpack(partials, out.shape[-1])
    return merge_stacked(outs, lses, out.dtype)


def apply(model: Wan, mesh: Mesh, plan: Plan) -> None:
    """Replace the model's attention over local keys by the two-dimensional one."""
    # The mesh axis "col" runs along a row: its group is the row group; "row" runs down a column.
    row, column = mesh.group("col", "attention2d"), mesh.group("row", "attention2d")
    kernel, tokens, width, cols = model.kernel, plan.tokens, plan.degrees.ulysses, plan.degrees.attn2d[1]
    blocks = [(r * cols + mesh.coordinate("col")) * width for r in range(column.size)]
    keys = sum(tokens.valid_local(block, width) for block in blocks)
    model.wrap_attention(lambda _: lambda q, k, v: attention2d(q, k, v, row, column, keys, kernel, tokens.patches))
