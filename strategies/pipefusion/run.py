"""PipeFusion at work, synchronous steps: every stage runs its blocks, branches follow each other through the stages.

hidden state [1, local, D] of one branch -> next stage; the last stage guides and steps x and sends it to the first
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridgen.models.wan import Step, Wan
from hybridgen.plan import Plan
from hybridgen.runtime.mesh import Mesh


def apply(model: Wan, mesh: Mesh, plan: Plan) -> None:
    """Replace how a pass runs through the blocks and where the step is made."""
    group = mesh.group("pipefusion", "pipefusion")
    stage, last = group.rank, group.size - 1
    model.keep_layers(plan.blocks(mesh.rank))
    local_step = model.advance

    def predict(x: Tensor, step: Step) -> list[Tensor]:
        predictions, in_flight = [], []
        for branch in model.branches:
            condition = model.condition(step, branch)
            if stage == 0:
                hidden = model.embed(x, step.expert)
            else:
                shape = (1, plan.tokens.local_size, plan.facts.transformer.hidden)
                hidden = group.receive(torch.empty(shape, dtype=model.dtype, device=model.device), stage - 1)
            hidden = model.run_blocks(hidden, step, condition)
            if stage == last:
                predictions.append(model.head(hidden, step, condition))
            else:
                in_flight.append(group.send(hidden, stage + 1))
        for wait in in_flight:
            wait()
        return predictions

    def advance(x: Tensor, predictions: list[Tensor], step: Step) -> Tensor:
        if stage == last:
            x = local_step(x, predictions, step)
            group.send(x, 0)()
        elif stage == 0:
            group.receive(x, last)
        return x

    model.predict, model.advance = predict, advance
