"""Tensor parallelism (arXiv 1909.08053): legality, traffic, memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hybridgen.errors import RequestError
from hybridgen.plan.axes import Axis, Degree
from hybridgen.plan.numbers import divisors, not_legal
from hybridgen.plan.plan import FP32, Plan
from hybridgen.plan.traffic import Message, Phase
from hybridgen.strategies.strategy import Strategy

if TYPE_CHECKING:
    from hybridgen.distributed.mesh import Mesh
    from hybridgen.models.denoiser import Denoiser

RULES = {
    "tp-heads": "Tensor parallelism gives each rank whole query and K/V heads.",
    "tp-ffn": "Tensor parallelism splits the feed-forward layer into equal slices.",
}


def legal_degrees(plan: Plan) -> list[int]:
    """Degrees that the model's heads and feed-forward channels allow."""
    facts = plan.facts.transformer
    return divisors(math.gcd(facts.heads, facts.key_heads, facts.ffn))


def violations(plan: Plan) -> Iterator[RequestError]:
    tp, facts = plan.degrees.tp, plan.facts.transformer
    for rule, size, what in (
        ("tp-heads", facts.heads, "heads"),
        ("tp-heads", facts.key_heads, "K/V heads"),
        ("tp-ffn", facts.ffn, "feed-forward channels"),
    ):
        if size % tp:
            yield not_legal(
                rule, "tp", tp, f"does not divide the {size} {what} of {plan.facts.name}", legal_degrees(plan)
            )
            return


def traffic(plan: Plan, rank: int) -> Iterator[Message]:
    """Messages per layer and pass: one all-reduce after self-attention, cross-attention and the feed-forward layer
    each, and the sums of squares of the norms over all heads. These are q and k of self-attention together, q of
    cross-attention, and once per expert k of each branch's text and of the embedded images.

    A text stream with weights of its own has the all-reduces once, but not in the last layer, of which it needs only K
    and V.
    """
    tp = plan.degrees.tp
    if tp == 1:
        return
    facts, local, layers = plan.facts.transformer, plan.tokens.local_size, len(plan.blocks(rank))
    count = plan.passes * layers

    def reduce(what: str, size: int, count: int, phase: Phase = "denoise") -> Message:
        return Message("tp", "tp", "all_reduce", what, 2 * size * (tp - 1) // tp, count, phase)

    outputs = 3 if facts.cross_attention else 2
    yield reduce("activations", local * facts.hidden * plan.itemsize, count * outputs)
    for tokens in plan.own_texts(rank) if facts.text_stream == "own" else ():
        whole = sum(layer < facts.layers - 1 for layer in plan.blocks(rank))
        yield reduce("text activations", tokens * facts.hidden * plan.itemsize, whole * outputs, "setup")
    if facts.head_norm:
        return
    yield reduce("sums of q and k", local * 2 * FP32, count)
    if facts.cross_attention:
        experts = min(plan.facts.experts, plan.clip.steps)  # a single step is the first expert's
        yield reduce("sums of q", local * FP32, count)
        for tokens in plan.own_texts(rank):
            yield reduce("sums of text k", tokens * FP32, layers * experts)
        if plan.picture_tokens:
            yield reduce("sums of picture k", plan.picture_tokens * FP32, layers * experts)


def apply(model: Denoiser, mesh: Mesh, plan: Plan) -> None:
    """Cut every block's matrices, and let the norms see all heads."""
    from hybridgen.strategies.tp.run import apply

    apply(model, mesh, plan)


TP = Axis(
    "tp",
    divides="weights",
    exchanges="activations, after every matrix pair",
    place=30,
    why="inside a stage, around the ranks that share its sequence",
    alike=True,
)


def choices(degree: Degree, plan: Plan, left: int) -> list[int]:
    """Legal degrees that divide the remaining ranks."""
    return [tp for tp in legal_degrees(plan) if left % tp == 0]


STRATEGY = Strategy(
    "tp",
    (
        Degree(
            "tp",
            "Ranks that split every weight.",
            listed=60,
            axes=(TP,),
            engines={"trtllm": "tp_size"},
            peers={
                "--tensor_parallel_degree": ("xDiT", "--tp"),
                "--tensor-parallel-size": ("vLLM-Omni", "--tp"),
                "--tp-size": ("SGLang", "--tp"),
            },
        ),
    ),
    apply,
    RULES,
    violations,
    traffic,
    choices=choices,
)
