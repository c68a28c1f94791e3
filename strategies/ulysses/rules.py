"""Ulysses sequence parallelism (arXiv 2309.14509): legality, traffic, memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hybridgen.errors import RequestError
from hybridgen.plan.axes import Axis, Degree
from hybridgen.plan.numbers import divisors, not_legal
from hybridgen.plan.plan import Plan
from hybridgen.plan.traffic import Message, Term
from hybridgen.strategies.strategy import Strategy

if TYPE_CHECKING:
    from hybridgen.distributed.mesh import Mesh
    from hybridgen.models.denoiser import Denoiser

RULES = {
    "ulysses-heads": "Ulysses gives each rank whole heads, so it must divide the heads that tensor parallelism leaves.",
    "ulysses-kv-heads": "With grouped K/V heads, ulysses must divide them, or they must divide ulysses (then each rank "
    "holds a copy of one K/V head).",
}


def legal_degrees(plan: Plan) -> list[int]:
    """Ulysses degrees that the model's heads allow under the plan's tp degree."""
    heads, key_heads = plan.heads
    return [u for u in divisors(heads) if key_heads % u == 0 or u % key_heads == 0]


def violations(plan: Plan) -> Iterator[RequestError]:
    ulysses, tp = plan.degrees.ulysses, plan.degrees.tp
    heads, key_heads = plan.heads
    model = plan.facts.name
    if heads % ulysses:
        left = f"{heads} heads" if tp == 1 else f"{heads} heads that --tp {tp} leaves"
        complaint = f"does not divide the {left} of {model}"
        yield not_legal("ulysses-heads", "ulysses", ulysses, complaint, legal_degrees(plan))
    elif key_heads % ulysses and ulysses % key_heads:
        complaint = f"neither divides nor is a multiple of the {key_heads} K/V heads of {model}"
        yield not_legal("ulysses-kv-heads", "ulysses", ulysses, complaint, legal_degrees(plan))


def traffic(plan: Plan, rank: int) -> Iterator[Message]:
    """Messages per layer and pass: one fused exchange of Q, K and V, and one of the output."""
    ulysses = plan.degrees.ulysses
    if ulysses == 1:
        return
    q_heads, k_heads = plan.attention_heads
    head = plan.tokens.local_size * plan.facts.transformer.head_dim * plan.itemsize
    count = plan.passes * len(plan.blocks(rank))
    sent = (ulysses - 1) * head
    yield Message("ulysses", "ulysses", "all_to_all", "Q K V", sent * (q_heads + 2 * k_heads), count)
    yield Message("ulysses", "ulysses", "all_to_all", "output", sent * q_heads, count)


def memory(plan: Plan, rank: int) -> Iterator[Term]:
    """Memory of the fused exchange's send and receive buffers; while attention runs, of what was received."""
    if plan.degrees.ulysses == 1:
        return
    q_heads, k_heads = plan.attention_heads
    head = plan.attention_tokens * plan.facts.transformer.head_dim * plan.itemsize
    received = head * (q_heads + 2 * k_heads)
    yield Term("ulysses buffers", 2 * received, moment="exchange")
    yield Term("ulysses buffers", received, moment="attention")


def apply(model: Denoiser, mesh: Mesh, plan: Plan) -> None:
    """Wrap the model's attention in the two exchanges."""
    from hybridgen.strategies.ulysses.run import apply

    apply(model, mesh, plan)


ULYSSES = Axis(
    "ulysses",
    divides="heads",
    exchanges="Q K V in, O out",
    place=70,
    why="fastest: attention waits for both of its exchanges, so its ranks are neighbours",
    drawn="inside",
    alike=True,
)


def choices(degree: Degree, plan: Plan, left: int) -> list[int]:
    """Degrees that the heads allow, the widest first."""
    return [ulysses for ulysses in reversed(legal_degrees(plan)) if left % ulysses == 0]


STRATEGY = Strategy(
    "ulysses",
    (
        Degree(
            "ulysses",
            "Ranks that trade heads for tokens.",
            listed=20,
            axes=(ULYSSES,),
            engines={"xdit": "ulysses_degree", "trtllm": "ulysses_size"},
            peers={
                "--ulysses_degree": ("xDiT", "--ulysses"),
                "--ulysses-degree": ("vLLM-Omni and SGLang", "--ulysses"),
                "--ulysses_size": ("Wan", "--ulysses"),
            },
        ),
    ),
    apply,
    RULES,
    violations,
    traffic,
    memory,
    choices,
)
