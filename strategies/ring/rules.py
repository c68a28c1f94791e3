"""Ring attention (arXiv 2310.01889): legality, traffic, memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hybridgen.errors import RequestError
from hybridgen.plan.axes import Axis, Degree
from hybridgen.plan.plan import FP32, Plan
from hybridgen.plan.traffic import Message, Term
from hybridgen.strategies.strategy import Strategy

if TYPE_CHECKING:
    from hybridgen.distributed.mesh import Mesh
    from hybridgen.models.denoiser import Denoiser

RULES = {
    "ring-attn2d": "Ring and attention2d both decide how K/V reaches the queries; one run can use one of them.",
}


def violations(plan: Plan) -> Iterator[RequestError]:
    ring, (rows, cols) = plan.degrees.ring, plan.degrees.attn2d
    if ring > 1 and rows * cols > 1:
        problem = f"excludes --attn2d {rows}x{cols}"
        near = f"--ring {ring} alone, or --attn2d {rows}x{cols} alone"
        yield RequestError("ring-attn2d", "ring", ring, problem, near, [{"attn2d": None}, {"ring": None}])


def traffic(plan: Plan, rank: int) -> Iterator[Message]:
    """Messages per layer and pass: K/V of one block to the next neighbour, R - 1 times."""
    ring = plan.degrees.ring
    if ring > 1:
        count = plan.passes * len(plan.blocks(rank)) * (ring - 1)
        yield Message("ring", "ring", "p2p", "K V", plan.key_value_block, count, overlaps="attention")


def memory(plan: Plan, rank: int) -> Iterator[Term]:
    """Memory of the block in use, the block in flight, its partial output, and the running output in fp32.

    The first part becomes the running output: without a copy where it is in fp32. Of a text that stays where it is a
    part comes before the others.
    """
    if plan.degrees.ring > 1:
        queries = plan.attention_tokens * plan.attention_heads[0]
        part = queries * plan.facts.transformer.head_dim
        beside = plan.facts.transformer.text_stream == "own"
        running = part * FP32 * (plan.itemsize < FP32 or plan.degrees.ring > 2 or beside)
        parts = part * plan.itemsize * (1 + (beside and plan.itemsize < FP32)) + 2 * queries * FP32
        yield Term("ring buffers", 2 * plan.key_value_block + parts + running, moment="attention")


def apply(model: Denoiser, mesh: Mesh, plan: Plan) -> None:
    """Replace the model's attention over local keys by the ring."""
    from hybridgen.strategies.ring.run import apply

    apply(model, mesh, plan)


RING = Axis(
    "ring",
    divides="keys",
    exchanges="K V, hop by hop",
    place=40,
    why="its K/V travels while attention runs, so ulysses stands closer",
    drawn="across",
    alike=True,
)


STRATEGY = Strategy(
    "ring",
    (
        Degree(
            "ring",
            "Ranks in a ring of K/V.",
            listed=30,
            axes=(RING,),
            engines={"xdit": "ring_degree", "trtllm": "ring_size"},
            peers={
                "--ring_degree": ("xDiT", "--ring"),
                "--ring-degree": ("vLLM-Omni and SGLang", "--ring"),
                "--ring_size": ("Wan", "--ring"),
            },
        ),
    ),
    apply,
    RULES,
    violations,
    traffic,
    memory,
)
