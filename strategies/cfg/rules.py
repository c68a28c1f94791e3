"""Guidance parallelism: legality, traffic, memory."""

from __future__ import annotations

from collections.abc import Iterator

from hybridgen.errors import Violation
from hybridgen.plan import Plan
from hybridgen.traffic import Message

RULES = {
    "cfg-degree": "A guided step has two branches, with and without the prompt: cfg is 1 or 2.",
    "cfg-guidance": "With guidance off there is no second branch, so half of the ranks would repeat the other half's "
    "work. Distilled checkpoints run without guidance: spend the ranks on ulysses instead.",
}


def violations(plan: Plan) -> Iterator[Violation]:
    cfg = plan.degrees.cfg
    if cfg not in (1, 2):
        yield Violation(
            "cfg-degree",
            f"--cfg {cfg} is not possible: a guided step has 2 branches; nearest: 1, 2",
            RULES["cfg-degree"],
            ("--cfg 2", "--cfg 1"),
        )
    elif cfg == 2 and plan.branches == 1:
        yield Violation(
            "cfg-guidance",
            f"--cfg 2 needs guidance, but --guidance {plan.clip.guidance:g} is off (limit: above 1); nearest: --cfg 1",
            RULES["cfg-guidance"],
            ("--cfg 1",),
        )


def traffic(plan: Plan, rank: int) -> Iterator[Message]:
    """Once a step the last stage's ranks exchange their shard of the prediction."""
    if plan.degrees.cfg == 1:
        return
    last = plan.layout.coordinates(rank)["pipefusion"] == plan.degrees.pipefusion - 1
    shard = plan.tokens.local_size * plan.facts.transformer.prediction_channels * plan.itemsize
    yield Message("cfg", "cfg", "all_gather", "prediction", shard if last else 0, plan.clip.steps, "step")


def memory(plan: Plan, rank: int) -> dict[str, int]:
    """The two gathered predictions, bytes."""
    if plan.degrees.cfg == 1:
        return {}
    return {"cfg predictions": 2 * plan.tokens.local_size * plan.facts.transformer.prediction_channels * plan.itemsize}
