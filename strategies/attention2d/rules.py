"""Attention2D: queries along rows, K/V along columns. Legality, traffic, memory.

Source: the attention2D of TensorRT-LLM VisualGen; ranks stand as rows x cols, cp index = row x cols + col.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hybridgen.plan.axes import Axis, Degree, Value
from hybridgen.plan.plan import FP32, Plan
from hybridgen.plan.traffic import Message, Term
from hybridgen.strategies.strategy import Strategy

if TYPE_CHECKING:
    from hybridgen.distributed.mesh import Mesh
    from hybridgen.models.denoiser import Denoiser


def traffic(plan: Plan, rank: int) -> Iterator[Message]:
    """Messages per layer and pass: Q in the row group, K/V in the column group, partial outputs back in the row."""
    rows, cols = plan.degrees.attn2d
    q_heads, k_heads = plan.attention_heads
    head_dim, e = plan.facts.transformer.head_dim, plan.itemsize
    count = plan.passes * len(plan.blocks(rank))
    if rows > 1:
        size = (rows - 1) * 2 * plan.attention_tokens * k_heads * head_dim * e
        yield Message("attention2d", "row", "all_gather", "K V", size, count)
    if cols > 1:
        query = (cols - 1) * plan.attention_tokens * q_heads
        yield Message("attention2d", "col", "all_gather", "Q", query * head_dim * e, count)
        size = query * (head_dim * e + FP32)
        yield Message("attention2d", "col", "all_to_all", "partial output, LSE", size, count)


def memory(plan: Plan, rank: int) -> Iterator[Term]:
    """The most that is held at once for the exchanges; shards of several patches are copied when they are joined."""
    rows, cols = plan.degrees.attn2d
    if rows * cols == 1:
        return
    queries = plan.attention_tokens * plan.attention_heads[0]
    head_dim, e = plan.facts.transformer.head_dim, plan.itemsize
    out, partial, key_value = queries * head_dim * e, queries * (head_dim * e + FP32), plan.key_value_block
    sum_fp32, sum_own = queries * head_dim * FP32, out if e < FP32 else 0
    beside = partial * (plan.facts.transformer.text_stream == "own")  # of a text that no exchange brings
    copied = plan.tokens.patches > 1
    keys, gathered = rows * key_value * (rows > 1), cols * out * (cols > 1)
    merged = cols > 1 or beside > 0
    most = max(
        (2 * keys if copied else keys + key_value) * (rows > 1),  # K and V: own and gathered, or gathered and joined
        keys + 2 * gathered * copied,  # Q: gathered and joined
        keys + gathered + cols * out,  # Q, and what is seen of K and V
        2 * cols * partial * (cols > 1),  # partial outputs on both sides of their exchange
        (cols * partial + sum_fp32 + sum_own) * merged,  # partial outputs of the own queries, their sum, and the result
    )
    yield Term("attention2d buffers", most + beside, moment="attention")


def apply(model: Denoiser, mesh: Mesh, plan: Plan) -> None:
    """Replace the model's attention over local keys by the two-dimensional one."""
    from hybridgen.strategies.attention2d.run import apply

    apply(model, mesh, plan)


ROW = Axis(
    "row",
    divides="keys",
    exchanges="K V (ranks of one column)",
    place=50,
    why="outside the columns: K/V is sent once, queries and partial outputs cross a row twice",
    drawn="down",
    alike=True,
)
COL = Axis(
    "col",
    divides="keys",
    exchanges="Q out, partial O back (ranks of one row)",
    place=60,
    why="beside ulysses: what crosses a row crosses it twice",
    drawn="across",
    alike=True,
)


def choices(degree: Degree, plan: Plan, left: int) -> list[Value]:
    """Grids that may be chosen: any, but none together with a ring."""
    return degree.divisions(left) if plan.degrees.ring == 1 else [degree.one]


STRATEGY = Strategy(
    "attention2d",
    (
        Degree(
            "attn2d",
            "Grid of ranks, rows x columns: Q gathered along rows, K/V along columns.",
            listed=50,
            metavar="RxC",
            axes=(ROW, COL),
            engines={"trtllm": "attn2d_size"},
        ),
    ),
    apply,
    traffic=traffic,
    memory=memory,
    choices=choices,
)
