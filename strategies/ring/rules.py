"""Ring attention (arXiv 2310.01889): legality, traffic, memory."""

from __future__ import annotations

from collections.abc import Iterator

from hybridgen.errors import Violation
from hybridgen.plan import Plan
from hybridgen.strategies.ulysses.rules import split_heads
from hybridgen.traffic import Message

RULES = {
    "ring-attn2d": "Ring and attention2d both decide how K/V reaches the queries; one run can use one of them.",
}


def violations(plan: Plan) -> Iterator[Violation]:
    ring, (rows, cols) = plan.degrees.ring, plan.degrees.attn2d
    if ring > 1 and rows * cols > 1:
        yield Violation(
            "ring-attn2d",
            f"--ring {ring} and --attn2d {rows}x{cols} exclude each other; "
            f"nearest: --ring {ring * rows * cols}, or --attn2d {rows}x{cols} alone",
            RULES["ring-attn2d"],
            (f"--attn2d {rows}x{cols} --ring 1", f"--ring {ring} --attn2d 1x1"),
        )


def key_value_block(plan: Plan) -> int:
    """Bytes of K and V that one rank of a cp group holds before the exchange."""
    tokens = plan.tokens.local_size * plan.degrees.ulysses
    return 2 * tokens * split_heads(plan)[1] * plan.facts.transformer.head_dim * plan.itemsize


def traffic(plan: Plan, rank: int) -> Iterator[Message]:
    """Per layer and pass: K/V of one block to the next neighbour, R - 1 times."""
    ring = plan.degrees.ring
    if ring > 1:
        count = plan.passes * plan.stage_layers(rank) * (ring - 1)
        yield Message("ring", "ring", "p2p", "K V", key_value_block(plan), count, "hop", overlaps="attention")


def memory(plan: Plan, rank: int) -> dict[str, int]:
    """The block in use, the block in flight, and the running output in fp32, bytes."""
    if plan.degrees.ring == 1:
        return {}
    tokens = plan.tokens.local_size * plan.degrees.ulysses
    partial = tokens * split_heads(plan)[0] * (plan.facts.transformer.head_dim + 1) * 4
    return {"ring buffers": 2 * key_value_block(plan) + 2 * partial}
