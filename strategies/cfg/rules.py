"""Guidance parallelism: legality, traffic, memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hybridgen.errors import RequestError
from hybridgen.plan.axes import Axis, Degree
from hybridgen.plan.numbers import not_legal
from hybridgen.plan.plan import Plan
from hybridgen.plan.traffic import Message, Term
from hybridgen.strategies.strategy import Strategy

if TYPE_CHECKING:
    from hybridgen.distributed.mesh import Mesh
    from hybridgen.models.denoiser import Denoiser

RULES = {
    "cfg-degree": "A guided step has two branches, with and without the prompt: cfg is 1 or 2.",
    "cfg-guidance": "With guidance off there is no second branch, so half of the ranks would repeat the other half's "
    "work. Distilled checkpoints run without guidance: spend the ranks on ulysses instead.",
}


def violations(plan: Plan) -> Iterator[RequestError]:
    cfg = plan.degrees.cfg
    if cfg not in (1, 2):
        yield not_legal("cfg-degree", "cfg", cfg, "must be 1 or 2: a guided step has 2 branches", [1, 2])
    elif cfg == 2 and plan.branches == 1:
        limit = "any but 1" if plan.facts.guided_below_1 else "above 1"
        problem = f"needs guidance, but --guidance {plan.clip.guidance:g} is off (limit: {limit})"
        yield RequestError("cfg-guidance", "cfg", cfg, problem, [1])


def traffic(plan: Plan, rank: int) -> Iterator[Message]:
    """Messages once a step: the last stage's ranks exchange their shards of the prediction."""
    if plan.degrees.cfg == 1:
        return
    last = plan.layout.coordinate(rank, "pipefusion") == plan.degrees.pipefusion - 1
    size = plan.state_size * plan.itemsize if last else 0
    yield Message("cfg", "cfg", "all_gather", "prediction", size, plan.clip.steps)


def memory(plan: Plan, rank: int) -> Iterator[Term]:
    """Memory of the two gathered predictions."""
    if plan.degrees.cfg > 1:
        yield Term("cfg predictions", 2 * plan.state_size * plan.itemsize, moment="step")


def apply(model: Denoiser, mesh: Mesh, plan: Plan) -> None:
    """Give this rank the branch of its coordinate, and exchange the predictions every step."""
    from hybridgen.strategies.cfg.run import apply

    apply(model, mesh, plan)


CFG = Axis(
    "cfg",
    divides="branches",
    exchanges="prediction, once a step",
    place=10,
    why="slowest: its halves meet once a step, so they may be far apart",
    drawn="beside",
    members=("with prompt", "without"),
    alike=True,
)


def choices(degree: Degree, plan: Plan, left: int) -> list[int]:
    """Degrees of cfg to try: two halves first."""
    return [cfg for cfg in (2, 1) if left % cfg == 0]


STRATEGY = Strategy(
    "cfg",
    (
        Degree(
            "cfg",
            "Guidance branches on separate halves: 1 or 2.",
            listed=10,
            axes=(CFG,),
            engines={"trtllm": "cfg_size"},
            peers={
                "--cfg-parallel-size": ("vLLM-Omni and SGLang", "--cfg"),
                "--use_cfg_parallel": ("xDiT", "--cfg 2"),
                "--enable-cfg-parallel": ("SGLang", "--cfg 2"),
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
