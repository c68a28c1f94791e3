"""hybridgen models: the models known by name, what they make and what they need."""

from __future__ import annotations

import json
from typing import Annotated, Any, Optional

import typer

from hybridgen.cli import text
from hybridgen.cli.options import offered
from hybridgen.cli.verb import Verb
from hybridgen.models import catalogue
from hybridgen.models.registry import MODELS
from hybridgen.plan.facts import ModelFacts
from hybridgen.planner.price.memory import peak
from hybridgen.recipe.fields import Recipe
from hybridgen.recipe.resolve import template

EXAMPLES = "hybridgen models\n\nhybridgen models wan2.2 --json"

app = typer.Typer()


@app.command("models", cls=Verb, epilog=EXAMPLES)
def models(
    names: Annotated[
        Optional[list[str]],
        typer.Argument(
            help="Names or folders; by default all known.",
            metavar="[MODEL]...",
            autocompletion=offered(catalogue.names),
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """List the models that are known by name: what they make, from what, and the memory that one GPU needs for it."""
    wanted = names or ["demo", *(model.name for model in MODELS)]
    rows = [about(name, catalogue.find(name)) for name in wanted]
    if as_json:
        text.answer(json.dumps(rows, indent=2))
        return
    head = ("name", "makes", "takes", "clip", "steps", "parameters", "one GPU needs", "licence", "also")
    numbers, drop = ("steps", "parameters", "one GPU needs"), ("licence", "also", "parameters", "steps")
    text.answer(*text.fitting(head, [_row(row) for row in rows], drop, numbers))
    text.say("", *text.paragraph("", "--model also takes any folder of these families in the layout of diffusers", 0))


def about(name: str, facts: ModelFacts) -> dict[str, Any]:
    """A model as data: its defaults, inputs and sizes."""
    asked, defaults = template(Recipe(model=name), facts), facts.defaults
    inputs = {"image": facts.image, "last_image": facts.last_image, "video": "may" if facts.video else ""}
    return {
        "name": facts.name,
        "aliases": list(facts.aliases),
        "source": facts.source,
        "revision": facts.revision,
        "licence": facts.licence,
        "default": facts.name == catalogue.DEFAULT_MODEL,
        "makes": "image" if facts.one_frame else "video",
        "takes": ["prompt", *(kind for kind, use in inputs.items() if use)],
        "needs": ["prompt", *(kind for kind, use in inputs.items() if use == "must")],
        "size": f"{defaults.width}x{defaults.height}",
        "frames": asked.clip.frames,
        "fps": asked.clip.fps,
        "steps": asked.clip.steps,
        "guidance": list(asked.clip.guidances[: facts.experts]),
        "dtype": asked.dtype,
        "experts": facts.experts,
        "heads": facts.transformer.heads,
        "layers": facts.transformer.layers,
        "parameters": facts.transformer.params * facts.experts,
        "one_gpu_gb": round(peak(asked) / 1e9, 3),
        "guardrail": facts.guarded,
    }


def _row(row: dict[str, Any]) -> list[str]:
    takes = [("" if kind in row["needs"] else "or ") + kind.replace("_", " ") for kind in row["takes"]]
    size = row["size"] if row["frames"] == 1 else f"{row['size']}, {row['frames']} frames, {row['fps']} fps"
    return [
        row["name"] + " (default)" * row["default"],
        row["makes"],
        ", ".join(takes),
        size,
        str(row["steps"]),
        f"{row['parameters'] / 1e9:.3g}B",
        text.size(row["one_gpu_gb"] * 1e9),
        row["licence"] or "not given",
        ", ".join(row["aliases"]),
    ]
