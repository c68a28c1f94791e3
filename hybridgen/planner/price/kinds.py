"""Ranks of a plan that may hold or send different amounts, one of each kind. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from hybridgen.plan.plan import Plan


def kinds(plan: Plan, decoding: bool = True) -> list[int]:
    """One rank of every kind, rank 0 first: of ranks that differ on axes declared as `alike` only, the first.

    Of PipeFusion's stages in the middle, one of each size is taken; those that decode are apart unless only what
    happens before counts.
    """
    degrees, places = plan.degrees, [dict[str, int]()]
    if all(degrees.size(name) == 1 for name in degrees.unlike):
        return [0]
    for name in degrees.unlike:
        if degrees.size(name) > 1 and degrees.axes[name].place is not None:
            own = _stages(plan, decoding) if name == "pipefusion" else range(degrees.size(name))
            places = [{**place, name: i} for place in places for i in own]
    ranks = [plan.layout.rank(place) for place in places]
    overlaid = (name for name in degrees.unlike if degrees.size(name) > 1 and degrees.axes[name].place is None)
    return list(dict.fromkeys([*ranks, *(rank for name in overlaid for rank in plan.layout.overlay(name))]))


def _stages(plan: Plan, decoding: bool) -> Sequence[int]:
    """The first stage, the last, those that decode, and of the others one of each number of blocks."""
    last, vae = plan.degrees.pipefusion - 1, plan.layout.vae_ranks() if decoding else []
    found: dict[tuple[int, int], int] = {}
    for stage, blocks in enumerate(plan.stage_sizes):
        apart = stage in (0, last) or plan.layout.rank({"pipefusion": stage}) in vae
        found.setdefault((blocks, stage if apart else -1), stage)
    return list(found.values())
