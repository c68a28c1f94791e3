"""What a plan sends in a step, and which plans come first. No torch.

Seconds are not predicted yet: plans without pipefusion come first, and then those that send least.
"""

from __future__ import annotations

from hybridgen.degrees import AXES
from hybridgen.plan import Plan
from hybridgen.strategies import registry


def bytes_by_axis(plan: Plan) -> dict[str, int]:
    """What a rank sends in one denoising step, by mesh axis; the busier of PipeFusion's first and last stage."""
    most: dict[str, int] = {}
    for stage in {0, plan.degrees.pipefusion - 1}:
        totals: dict[str, int] = {}
        for message in registry.traffic(plan, plan.layout.rank({"pipefusion": stage})):
            if message.phase == "denoise" and message.total:
                totals[message.axis] = totals.get(message.axis, 0) + message.total // plan.clip.steps
        most = {axis: max(most.get(axis, 0), totals.get(axis, 0)) for axis in {*most, *totals}}
    return {axis: most[axis] for axis in AXES if axis in most}


def ranked(plans: list[Plan]) -> list[tuple[Plan, dict[str, int]]]:
    """The plans with their bytes by axis, first things first."""
    priced = [(plan, bytes_by_axis(plan)) for plan in plans]
    return sorted(priced, key=lambda p: (p[0].degrees.pipefusion > 1, sum(p[1].values())))
