"""hybridgen plan: every legal way to spread a clip over so many ranks."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any, Optional

import typer

from hybridgen.cli import text
from hybridgen.cli.options import with_recipe_flags
from hybridgen.degrees import AXES
from hybridgen.errors import RequestError
from hybridgen.plan import Plan
from hybridgen.planner.candidates import legal_plans
from hybridgen.planner.memory import peak, terms
from hybridgen.planner.ranking import ranked
from hybridgen.recipe import compose
from hybridgen.resolve import MAX_RANKS, published_frames, resolve, with_heads

EXAMPLES = "hybridgen plan --gpus 72 --heads 40\n\nhybridgen plan --gpus 8 --model wan2.1-1.3b --json"
SHOWN = 10
"""Plans in the table unless --all is given."""

Priced = list[tuple[Plan, dict[str, int]]]
"""Plans, and what a rank sends in a step by axis."""


@with_recipe_flags(("", "request"))
def plan(
    gpus: Annotated[int, typer.Option("--gpus", help="Number of ranks.", metavar="N")],
    heads: Annotated[
        Optional[int], typer.Option("--heads", help="Attention heads instead of the model's own.", metavar="N")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every plan, not the first ten.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
    **flags: Any,
) -> None:
    """List the legal plans for a number of ranks, with what each axis sends and the memory a rank needs."""
    if not 1 <= gpus <= MAX_RANKS:
        near = 1 if gpus < 1 else MAX_RANKS
        raise RequestError(
            "gpus", f"--gpus {gpus} is not 1 to {MAX_RANKS}; nearest: {near}", tries=[{"gpus": str(near)}]
        )
    recipe = compose(None, [], flags)
    asked = recipe.request.frames
    template = resolve(published_frames(recipe))
    template = with_heads(template, heads) if heads is not None else template
    plans = ranked(legal_plans(template, gpus))
    frames = asked or template.clip.frames
    if as_json:
        text.answer(json.dumps(as_data(template, frames, gpus, plans), indent=2))
    else:
        text.answer(*as_table(template, frames, gpus, plans, len(plans) if everything else SHOWN))


def as_data(template: Plan, frames: int, gpus: int, plans: Priced) -> dict[str, Any]:
    """The content of --json."""
    clip = template.clip
    return {
        "request": {
            "size": f"{clip.width}x{clip.height}",
            "frames": frames,
            "latent_frames": template.latent_shape[1],
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
                "degrees": asdict(p.degrees),
                "order": [axis for axis in p.order if p.degrees.size(axis) > 1],
                "exact": p.exact,
                "memory_gb": {
                    **{term.name: round(term.size / 1e9, 3) for term in terms(p)},
                    "peak": round(peak(p) / 1e9, 3),
                },
                "bytes_per_step": sent,
            }
            for p, sent in plans
        ],
    }


def as_table(template: Plan, frames: int, gpus: int, plans: Priced, shown: int) -> list[str]:
    """The first plans as a table, those that send least first."""
    clip, facts = template.clip, template.facts
    title = (
        f"{facts.name}  {clip.width}x{clip.height}, {frames} frames, {clip.steps} steps, "
        f"{facts.transformer.heads} heads, {template.dtype}     {text.ranks(gpus)}"
    )
    if not plans:
        return [title, f"no legal plan has {text.ranks(gpus)}"]
    rest, plans = len(plans) - shown, plans[:shown]
    columns = [axis for axis in AXES if any(axis in sent for _, sent in plans)]
    head = ["flags", *columns, "all", "GB, rank 0", ""]
    rows = [
        [
            p.degrees.flags(),
            *(text.size(sent[axis]) if axis in sent else "-" for axis in columns),
            text.size(sum(sent.values())),
            f"{peak(p) / 1e9:.3g}",
            "" if p.exact else "approximate",
        ]
        for p, sent in plans
    ]
    count = "legal plans, by what a rank sends in a step (by axis); which is fastest is not predicted yet"
    more = ["", f"{rest} more: --all shows them, --json has everything"] if rest > 0 else []
    return [title, f"{len(plans) + max(rest, 0)} {count}", "", *text.table(head, rows), *more]
