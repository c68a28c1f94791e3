"""Attention2D: queries along rows, K/V along columns. Legality, traffic, memory.

Source: the attention2D of TensorRT-LLM VisualGen; ranks stand as rows x cols, cp index = row x cols + col.
"""

from __future__ import annotations

from collections.abc import Iterator

from hybridgen.errors import Violation
from hybridgen.plan import FP32, Plan
from hybridgen.traffic import Message, Term

RULES: dict[str, str] = {}


def violations(plan: Plan) -> Iterator[Violation]:
    """Any rows x cols is legal; ring's rules refuse the two together."""
    yield from ()


def traffic(plan: Plan, rank: int) -> Iterator[Message]:
    """Per layer and pass: Q gathered in the row group, K/V in the column group, partial outputs back in the row."""
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
    """Gathered Q, K and V and the partial outputs on both sides of their exchange."""
    rows, cols = plan.degrees.attn2d
    if rows * cols == 1:
        return
    q_heads, k_heads = plan.attention_heads
    head_dim, e = plan.facts.transformer.head_dim, plan.itemsize
    gathered = plan.attention_tokens * head_dim * e * (cols * q_heads + 2 * rows * k_heads)
    partials = 2 * cols * plan.attention_tokens * q_heads * (head_dim * e + FP32) if cols > 1 else 0
    yield Term("attention2d buffers", gathered + partials)
