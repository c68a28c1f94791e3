"""hybridgen calibrate: measure this machine for the planner."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from hybridgen.cli import text
from hybridgen.cli.verb import Verb
from hybridgen.distributed.files import may_write
from hybridgen.errors import RequestError
from hybridgen.models import catalogue
from hybridgen.recipe.fields import Runtime
from hybridgen.recipe.resolve import check_count, check_runtime

EXAMPLES = (
    "hybridgen calibrate --out my-machine.yaml\n\nhybridgen plan --gpus 2 --model demo --hardware my-machine.yaml"
)


app = typer.Typer()


@app.command("calibrate", cls=Verb, epilog=EXAMPLES)
def calibrate(
    out: Annotated[Path, typer.Option("--out", help="YAML file to write.", metavar="FILE")] = Path("machine.yaml"),
    model: Annotated[
        Optional[str],
        typer.Option("--model", help="Model whose sizes the timed Wan block has; demo on CPUs, wan2.2 on GPUs."),
    ] = None,
    gpus: Annotated[int, typer.Option("--gpus", help="Ranks that work and exchange at once.", metavar="N")] = 2,
    tokens: Annotated[
        Optional[int], typer.Option("--tokens", help="Tokens per rank (default: 2048 on CPUs, 32768 on GPUs).")
    ] = None,
    dtype: Annotated[Optional[str], typer.Option("--dtype", help="The model's own by default.", metavar="NAME")] = None,
    device: Annotated[
        Optional[str], typer.Option("--device", help="cuda or cpu; cuda when there is one.", metavar="NAME")
    ] = None,
    base: Annotated[
        Optional[str],
        typer.Option("--base", help="Machine that is most like this one, if it is not known by name.", metavar="NAME"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Measure rates and exchanges of this machine and write them as a file that plan --hardware reads."""
    runtime = Runtime(device=device, dtype=dtype)
    check_runtime(runtime)
    check_count("gpus", gpus)
    if tokens is not None and tokens < 1:
        raise RequestError("tokens", "tokens", tokens, "must be 1 or more", [2048])
    may_write("out", out, (".yaml", ".yml"), overwrite)
    from hybridgen.engine.machine import device_name, device_of
    from hybridgen.planner.hardware import calibration
    from hybridgen.planner.hardware.lookup import find
    from hybridgen.planner.hardware.names import machine_of

    chosen = device_of(device)
    on_cpu = chosen == "cpu"
    facts = catalogue.find(model or ("demo" if on_cpu else catalogue.DEFAULT_MODEL))
    try:
        like = find(base) if base else machine_of(device_name(chosen))
    except RequestError as error:
        if base:
            raise error.changed(flag="base") from error
        raise error.changed(nearest="--base NAME, a machine that is most like it and has no more memory") from error
    text.say(f"measuring {facts.name} on {text.ranks(gpus)}, {like.title} ...")
    from hybridgen.engine.calibrate import Settings, run

    tokens = tokens or (2048 if on_cpu else 32768)
    settings = Settings(facts, runtime.dtype or facts.defaults.dtype, chosen, gpus, tokens)
    found = run(settings)
    calibration.write(out, like.name, f"{like.title}, calibrated", found)
    text.say("", *text.table(("constant", "value", "how"), calibration.summary(found)), "")
    text.answer(str(out))
