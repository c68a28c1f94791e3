"""hybridgen calibrate: measure this machine for the planner."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from hybridgen.cli import text
from hybridgen.errors import RequestError

EXAMPLES = (
    "hybridgen calibrate --out my-machine.yaml\n\nhybridgen plan --gpus 2 --model demo --hardware my-machine.yaml"
)


def calibrate(
    out: Annotated[Path, typer.Option("--out", help="YAML file to write.", metavar="FILE")] = Path("machine.yaml"),
    model: Annotated[
        Optional[str], typer.Option("--model", help="Whose block is timed; demo on CPUs, wan2.2 on GPUs.")
    ] = None,
    gpus: Annotated[int, typer.Option("--gpus", help="Ranks that work and exchange at once.", metavar="N")] = 2,
    tokens: Annotated[
        Optional[int], typer.Option("--tokens", help="Tokens of a rank (default: 2048 on CPUs, 32768 on GPUs).")
    ] = None,
    dtype: Annotated[Optional[str], typer.Option("--dtype", help="The model's own by default.", metavar="NAME")] = None,
    device: Annotated[
        Optional[str], typer.Option("--device", help="cuda or cpu; cuda when there is one.", metavar="NAME")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Measure rates and exchanges of this machine and write them as a file that plan --hardware reads."""
    if out.exists() and not overwrite:
        raise RequestError("output-exists", f"--out {out} exists; give --overwrite to replace it, or another name")
    if out.suffix not in (".yaml", ".yml"):
        near = str(out.with_suffix(".yaml"))
        raise RequestError("output-format", f"--out {out} must end in .yaml; nearest: {near}", tries=[{"out": near}])
    if not 1 <= gpus <= 64:
        raise RequestError("gpus", f"--gpus {gpus} is not 1 to 64; nearest: {min(max(gpus, 1), 64)}")
    from hybridgen.machine import device_of
    from hybridgen.models import catalogue
    from hybridgen.planner import calibration
    from hybridgen.runtime.calibrate import Settings, run

    chosen = device_of(device)
    on_cpu = chosen == "cpu"
    facts = catalogue.find(model or ("demo" if on_cpu else catalogue.DEFAULT_MODEL))
    settings = Settings(facts, dtype or facts.defaults.dtype, chosen, gpus, tokens or (2048 if on_cpu else 32768))
    text.say(f"measuring {facts.name} in {settings.dtype} on {text.ranks(gpus)}, {chosen} ...")
    found = run(settings)
    calibration.write(out, "cpu" if on_cpu else "h200", f"{chosen}, calibrated", found)
    text.say("", *text.table(("constant", "value", "how"), calibration.summary(found), left=3), "")
    text.answer(str(out))
