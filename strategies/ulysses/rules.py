"""Ulysses sequence parallelism (arXiv 2309.14509): legality, traffic, memory."""

from __future__ import annotations

from collections.abc import Iterator

from hybridgen.degrees import divisors, nearest
from hybridgen.errors import Violation
from hybridgen.plan import Plan
from hybridgen.traffic import Message

RULES = {
    "ulysses-heads": "Ulysses gives each rank whole heads, so it must divide the heads that tensor parallelism leaves.",
    "ulysses-kv-heads": "With grouped K/V heads, ulysses must divide them, or they must divide ulysses (then each rank "
    "holds a copy of one K/V head).",
}


def legal_degrees(plan: Plan) -> list[int]:
    """Ulysses degrees that the model's heads allow under the plan's tp."""
    heads, key_heads = plan.heads
    return [u for u in divisors(heads) if key_heads % u == 0 or u % key_heads == 0]


def violations(plan: Plan) -> Iterator[Violation]:
    ulysses, tp = plan.degrees.ulysses, plan.degrees.tp
    heads, key_heads = plan.heads
    close = nearest(ulysses, legal_degrees(plan))
    left = f"{heads} heads" if tp == 1 else f"{heads} heads that --tp {tp} leaves"
    options = tuple(f"--ulysses {u}" for u in sorted(close, key=lambda u: (abs(u - ulysses), u)))
    if heads % ulysses:
        yield Violation(
            "ulysses-heads",
            f"--ulysses {ulysses} does not divide the {left} of {plan.facts.name}; "
            f"nearest: {', '.join(map(str, close))}",
            RULES["ulysses-heads"],
            options,
        )
    elif key_heads % ulysses and ulysses % key_heads:
        yield Violation(
            "ulysses-kv-heads",
            f"--ulysses {ulysses} neither divides nor is a multiple of the {key_heads} K/V heads of "
            f"{plan.facts.name}; nearest: {', '.join(map(str, close))}",
            RULES["ulysses-kv-heads"],
            options,
        )


def split_heads(plan: Plan) -> tuple[int, int]:
    """(query heads, K/V heads) that attention sees on one rank after the exchange."""
    heads, key_heads = plan.heads
    return heads // plan.degrees.ulysses, max(key_heads // plan.degrees.ulysses, 1)


def traffic(plan: Plan, rank: int) -> Iterator[Message]:
    """Per layer and pass: one fused exchange of Q, K and V, one of the output."""
    ulysses = plan.degrees.ulysses
    if ulysses == 1:
        return
    q_heads, k_heads = split_heads(plan)
    head = plan.tokens.local_size * plan.facts.transformer.head_dim * plan.itemsize
    count = plan.passes * plan.stage_layers(rank)
    sent = (ulysses - 1) * head
    yield Message("ulysses", "ulysses", "all_to_all", "Q K V", sent * (q_heads + 2 * k_heads), count, "layer")
    yield Message("ulysses", "ulysses", "all_to_all", "output", sent * q_heads, count, "layer")


def memory(plan: Plan, rank: int) -> dict[str, int]:
    """Send and receive buffers of the fused exchange, bytes."""
    ulysses = plan.degrees.ulysses
    if ulysses == 1:
        return {}
    q_heads, k_heads = split_heads(plan)
    head = plan.tokens.local_size * ulysses * plan.facts.transformer.head_dim * plan.itemsize
    return {"ulysses buffers": 2 * head * (q_heads + 2 * k_heads)}
