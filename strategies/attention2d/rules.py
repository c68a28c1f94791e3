"""Attention2D: queries along rows, K/V along columns. Legality, traffic, memory.

Source: the attention2D of TensorRT-LLM VisualGen; ranks stand as rows x cols, cp index = row x cols + col.
"""

from __future__ import annotations

from collections.abc import Iterator

from hybridgen.errors import Violation
from hybridgen.plan import Plan
from hybridgen.strategies.ulysses.rules import split_heads
from hybridgen.traffic import Message

RULES: dict[str, str] = {}


def violations(plan: Plan) -> Iterator[Violation]:
    """Any rows x cols is legal; ring's rules refuse the two together."""
    yield from ()


def _tokens(plan: Plan) -> int:
    return plan.tokens.local_size * plan.degrees.ulysses


def traffic(plan: Plan, rank: int) -> Iterator[Message]:
    """Per layer and pass: Q gathered in the row group, K/V in the column group, partial outputs back in the row."""
    rows, cols = plan.degrees.attn2d
    q_heads, k_heads = split_heads(plan)
    head_dim, e = plan.facts.transformer.head_dim, plan.itemsize
    count = plan.passes * plan.stage_layers(rank)
    if rows > 1:
        size = (rows - 1) * 2 * _tokens(plan) * k_heads * head_dim * e
        yield Message("attention2d", "row", "all_gather", "K V", size, count, "layer")
    if cols > 1:
        query = (cols - 1) * _tokens(plan) * q_heads
        yield Message("attention2d", "col", "all_gather", "Q", query * head_dim * e, count, "layer")
        size = query * (head_dim * e + 4)
        yield Message("attention2d", "col", "all_to_all", "partial output, LSE", size, count, "layer")


def memory(plan: Plan, rank: int) -> dict[str, int]:
    """Gathered Q, K and V and the partial outputs on both sides of their exchange, bytes."""
    rows, cols = plan.degrees.attn2d
    if rows * cols == 1:
        return {}
    q_heads, k_heads = split_heads(plan)
    head_dim, e = plan.facts.transformer.head_dim, plan.itemsize
    gathered = _tokens(plan) * head_dim * e * (cols * q_heads + 2 * rows * k_heads)
    partials = 2 * cols * _tokens(plan) * q_heads * (head_dim * e + 4) if cols > 1 else 0
    return {"attention2d buffers": gathered + partials}
