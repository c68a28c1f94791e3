"""hybridgen plan: every legal way to spread a clip over so many ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any

import typer

from hybridgen.cli import text
from hybridgen.cli.options import as_fields, with_recipe_flags
from hybridgen.degrees import AXES, divisors, nearest
from hybridgen.errors import RequestError
from hybridgen.job import degrees_data
from hybridgen.plan import Plan
from hybridgen.planner.candidates import legal_plans
from hybridgen.planner.memory import estimate, peak
from hybridgen.recipe import compose
from hybridgen.resolve import resolve
from hybridgen.strategies import registry

EXAMPLES = "Examples: hybridgen plan --gpus 72 --heads 40 | hybridgen plan --gpus 8 --model wan2.1-1.3b --json"


@with_recipe_flags(("", "request"))
def plan(
    gpus: Annotated[int, typer.Option("--gpus", help="Number of ranks.", metavar="N", min=1)],
    heads: Annotated[int, typer.Option("--heads", help="Attention heads instead of the model's own.", metavar="N")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
    **flags: Any,
) -> None:
    """List every legal plan with the bytes each axis sends and the memory a rank needs.

    80 frames count as the published 20 latent frames.
    """
    asked = flags.get("frames")
    if asked is not None and asked % 4 == 0 and asked > 0:
        flags["frames"] = asked - 3
    template = resolve(compose(None, [], as_fields(flags)))
    if heads:
        template = with_heads(template, heads)
    plans = sorted(legal_plans(template, gpus), key=lambda p: (not is_exact(p), not runs(p), total_bytes(p)))
    if as_json:
        text.answer(json.dumps(as_data(template, gpus, plans), indent=2))
        return
    text.answer(*as_table(template, gpus, plans, asked))


def with_heads(template: Plan, heads: int) -> Plan:
    """The same model with its hidden size cut into another number of heads. Raises RequestError (heads)."""
    transformer = template.facts.transformer
    if heads < 1 or transformer.hidden % heads:
        close = ", ".join(map(str, nearest(heads, divisors(transformer.hidden))))
        raise RequestError(
            "heads",
            f"--heads {heads} does not divide the hidden size {transformer.hidden} of {template.facts.name}; "
            f"nearest: {close}",
        )
    changed = replace(transformer, heads=heads, head_dim=transformer.hidden // heads, kv_heads=0)
    return template.replace(facts=replace(template.facts, transformer=changed))


def is_exact(plan: Plan) -> bool:
    """Whether the plan is exact with the usual short warm-up."""
    return plan.degrees.pipefusion == 1


def runs(plan: Plan) -> bool:
    """Whether this version can run the plan."""
    return all(s.runs for s in registry.active(plan))


def bytes_by_axis(plan: Plan) -> dict[str, int]:
    """What a rank sends in one denoising step, by mesh axis; the busier of PipeFusion's first and last stage."""
    most: dict[str, int] = {}
    for stage in {0, plan.degrees.pipefusion - 1}:
        totals: dict[str, int] = {}
        for message in registry.traffic(plan, plan.layout.rank({"pipefusion": stage})):
            if message.axis in AXES and message.total:
                totals[message.axis] = totals.get(message.axis, 0) + message.total // plan.clip.steps
        most = {axis: max(most.get(axis, 0), totals.get(axis, 0)) for axis in {*most, *totals}}
    return {axis: most[axis] for axis in AXES if axis in most}


def total_bytes(plan: Plan) -> int:
    """What a rank sends in one denoising step."""
    return sum(bytes_by_axis(plan).values())


def as_data(template: Plan, gpus: int, plans: list[Plan]) -> dict[str, Any]:
    """The content of --json."""
    clip = template.clip
    return {
        "request": {
            "size": f"{clip.width}x{clip.height}",
            "frames": clip.frames,
            "steps": clip.steps,
            "guidance": clip.guidance,
            "heads": template.facts.transformer.heads,
            "dtype": template.dtype,
        },
        "model": template.facts.name,
        "world_size": gpus,
        "candidates": [
            {
                "config": str(p.degrees),
                "degrees": degrees_data(p),
                "order": [axis for axis in p.order if p.degrees.size(axis) > 1],
                "exact": is_exact(p),
                "runs": runs(p),
                "memory_gb": {
                    **{name: round(n / 1e9, 3) for name, n in estimate(p).items()},
                    "peak": round(peak(p) / 1e9, 3),
                },
                "bytes_per_step": bytes_by_axis(p),
            }
            for p in plans
        ],
    }


def as_table(template: Plan, gpus: int, plans: list[Plan], asked: int | None) -> list[str]:
    """The plans as a table, those that send least first."""
    clip, facts = template.clip, template.facts
    frames = asked if asked is not None else clip.frames
    lines = [
        f"{facts.name}  {clip.width}x{clip.height}, {frames} frames, {clip.steps} steps, "
        f"{facts.transformer.heads} heads, {template.dtype}     {gpus} ranks",
        f"{len(plans)} legal plans, by what a rank sends in a step; which is fastest is not predicted yet",
        "",
    ]
    if not plans:
        return [*lines[:1], f"no legal plan has {gpus} ranks"]
    columns = [axis for axis in AXES if any(p.degrees.size(axis) > 1 for p in plans)]
    head = ["plan", *(f"{axis}/step" for axis in columns), "sent/step", "GB/rank", "kind"]
    rows = []
    for p in plans:
        sent = bytes_by_axis(p)
        kind = "exact" if is_exact(p) else "approximate"
        rows.append(
            [
                str(p.degrees),
                *(text.size(sent[axis]) if axis in sent else "-" for axis in columns),
                text.size(total_bytes(p)),
                f"{peak(p) / 1e9:.1f}",
                kind if runs(p) else f"{kind}, plans only",
            ]
        )
    return lines + text.table(head, rows)
