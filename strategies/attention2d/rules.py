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
    """The most of: gathered Q, K and V with what is seen of them; partial outputs on both sides of their exchange;
    those of the own queries with their sum in fp32 and in the plan's dtype. Beside it, what is seen of a text that no
    exchange brings.
    """
    rows, cols = plan.degrees.attn2d
    if rows * cols == 1:
        return
    q_heads, k_heads = plan.attention_heads
    head_dim, e = plan.facts.transformer.head_dim, plan.itemsize
    tokens = plan.attention_tokens
    out, key_value = tokens * q_heads * head_dim * e, 2 * tokens * k_heads * head_dim * e
    partial = tokens * q_heads * (head_dim * e + FP32)
    sending = key_value * (rows + 1) * (rows > 1)
    seeing = key_value * rows * (rows > 1) + out * cols * (1 + (cols > 1))
    merging = cols * partial + tokens * q_heads * head_dim * (FP32 + (e if e < FP32 else 0))
    beside = partial * (plan.facts.transformer.text_stream == "own")
    size = max(sending, seeing, 2 * cols * partial, merging) if cols > 1 or beside else max(sending, seeing)
    yield Term("attention2d buffers", size + beside, moment="attention")
