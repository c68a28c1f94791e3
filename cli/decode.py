"""hybridgen decode: the clip of final latents that a run has kept."""

from __future__ import annotations

from typing import Any

import typer

from hybridgen.api import spine
from hybridgen.cli import text
from hybridgen.cli.options import with_flags
from hybridgen.cli.verb import Verb
from hybridgen.engine import environment
from hybridgen.engine.options import DecodeOptions

EXAMPLES = "hybridgen decode clip.latents.safetensors --vae 4 --out clip.mp4"

app = typer.Typer()


@app.command("decode", cls=Verb, epilog=EXAMPLES)
@with_flags(DecodeOptions, ())
def decode(options: DecodeOptions, fields: dict[str, Any]) -> None:
    """Make the clip of final latents that a run has kept.

    The path of the video goes to stdout, everything else to stderr. With --vae N it runs on N ranks.
    """
    report = spine.decode(options)
    if environment.is_reporter():
        text.answer(str(report.output))
