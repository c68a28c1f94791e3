"""Guidance parallelism at work: each half of the mesh runs one branch, and both get both predictions.

prediction of one branch, in the form of x -> all-gather over 2 ranks -> combined on each
"""

from __future__ import annotations

from torch import Tensor

from hybridgen.distributed.mesh import Mesh
from hybridgen.models.denoiser import Denoiser
from hybridgen.models.slots import Pass, Step
from hybridgen.plan.plan import Plan


def apply(model: Denoiser, mesh: Mesh, plan: Plan) -> None:
    """Give this rank the branch of its coordinate (0: with the prompt) and exchange the predictions every step."""
    group, combine = mesh.group("cfg", "cfg"), model.slots.guide
    model.slots.branches = [mesh.coordinate("cfg")]

    def guide(predictions: list[Tensor], x: Tensor, step: Step, now: Pass) -> Tensor:
        return combine(list(group.all_gather(predictions[0])), x, step, now)

    model.slots.guide = guide
