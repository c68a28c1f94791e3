"""hybridgen show: how a clip was made, from the record that it carries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hybridgen.cli import text
from hybridgen.cli.verb import Verb
from hybridgen.engine import record
from hybridgen.errors import quoted

EXAMPLES = "hybridgen show clip.mp4\n\nhybridgen run --like clip.mp4 --seed 2"

app = typer.Typer()


@app.command("show", cls=Verb, epilog=EXAMPLES)
def show(
    clip: Annotated[Path, typer.Argument(help="A video or image that hybridgen wrote.", metavar="CLIP")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show how a clip was made: model, prompt, plan, seed and versions, and the command that makes it again."""
    found = record.read(clip)
    if as_json:
        data = {"recipe": found.recipe, "versions": found.versions, "latents_sha256": found.latents_sha256}
        text.answer(json.dumps(data, indent=2))
        return
    text.answer(
        *text.paragraph("model", found.recipe["model"], 10),
        *(line for name in ("request", "parallel", "runtime") for line in _section(found.recipe.get(name, {}))),
        *text.paragraph("versions", ", ".join(f"{name} {one}" for name, one in found.versions.items()), 10),
        *text.paragraph("latents", f"sha256 {found.latents_sha256}", 10),
        "",
        *text.command("again", quoted(["hybridgen", "run", "--like", str(clip)]), 10),
    )


def _section(held: dict[str, Any]) -> list[str]:
    """The lines of a section of the recipe: one for each text, and one for what is short."""
    long = {name: value for name, value in held.items() if "prompt" in name}
    lines = [line for name, value in long.items() for line in text.paragraph(name.replace("_prompt", ""), value, 10)]
    short = ", ".join(
        f"{name} {' '.join(value) if isinstance(value, list) else value}"
        for name, value in held.items()
        if name not in long
    )
    return [*lines, *text.paragraph("", short, 10)] if short else lines
