"""hybridgen run: make a clip."""

from __future__ import annotations

import json
import time
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from hybridgen.cli import draw, text
from hybridgen.cli.options import with_recipe_flags
from hybridgen.engine import environment
from hybridgen.engine.inputs import look
from hybridgen.engine.machine import choose, crowded, device_name, hardware_unused
from hybridgen.engine.outputs import Outputs
from hybridgen.engine.prepare import prepare, repeat_command
from hybridgen.errors import RequestError
from hybridgen.plan.plan import Plan
from hybridgen.planner.choose.fill import is_open
from hybridgen.planner.choose.ranking import Candidate
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.recipe import library
from hybridgen.recipe.fields import Recipe, compose
from hybridgen.recipe.resolve import resolve
from hybridgen.recipe.results import mismatch

EXAMPLES = (
    'hybridgen run --model demo -p "a red circle moves right" --cfg 2 --ulysses 2\n\n'
    "hybridgen run --model wan2.2 --cfg 2 --ulysses 4 --attn2d 3x3 --vae 8 --dry-run\n\n"
    'hybridgen run --model wan2.2 --gpus 8 -p "..."\n\n'
    'hybridgen run --recipe my.yaml --set request.steps=20 -p "..."'
)
OUTPUT = "Output"


class Engine(str, Enum):
    """What can run a plan."""

    native = "native"
    xfuser = "xfuser"


@with_recipe_flags()
def run(
    out: Annotated[
        Optional[Path],
        typer.Option(
            "--out", "-o", help="Video file; of one frame a .png, too.", metavar="FILE.mp4", rich_help_panel=OUTPUT
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace files that exist.", rich_help_panel=OUTPUT)] = False,
    latents: Annotated[
        Optional[Path], typer.Option(help="Keep the final latents.", metavar="FILE.safetensors", rich_help_panel=OUTPUT)
    ] = None,
    report: Annotated[
        Optional[Path],
        typer.Option(help="Timings, traffic and memory as JSON.", metavar="FILE.json", rich_help_panel=OUTPUT),
    ] = None,
    preview: Annotated[
        Optional[Path], typer.Option(help="Contact sheet of the clip.", metavar="FILE.png", rich_help_panel=OUTPUT)
    ] = None,
    gpus: Annotated[
        Optional[int],
        typer.Option(help="Number of ranks: the product of the degrees; without any the planner chooses.", metavar="N"),
    ] = None,
    auto: Annotated[
        bool, typer.Option("--auto", help="Let the planner choose every degree that is not given.")
    ] = False,
    machine: Annotated[
        Optional[str],
        typer.Option(
            "--hardware", help="What the planner plans for: a name or FILE.yaml; this machine.", metavar="NAME"
        ),
    ] = None,
    recipe: Annotated[
        Optional[Path],
        typer.Option(help="Recipe file, or a name that `recipes list` shows; flags win over it.", metavar="FILE"),
    ] = None,
    settings: Annotated[
        Optional[list[str]], typer.Option("--set", help="Change one key of the recipe.", metavar="KEY=VALUE")
    ] = None,
    engine: Annotated[
        Engine, typer.Option("--engine", help="What runs the plan: hybridgen itself, or xDiT's runner.")
    ] = Engine.native,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show plan, mesh and traffic; start nothing.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print the path and nothing else.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show mesh and traffic before the run.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a failed rank.")] = False,
    **flags: Any,
) -> None:
    """Make a clip from a prompt, spread over ranks as the degrees say.

    The path of the video goes to stdout, everything else to stderr.
    """
    started = time.monotonic()
    chosen = compose(recipe and library.located(recipe), settings or [], flags)
    quiet = quiet or not environment.is_reporter()
    if auto or (gpus is not None and is_open(chosen)):
        chosen, candidate, hardware = choose(chosen, gpus, machine)
        if not quiet:
            text.say(*_chosen(candidate, hardware))
    elif machine is not None:
        raise hardware_unused(machine)
    plan = resolve(chosen, gpus)
    outputs = Outputs(out, latents, report, preview, overwrite)
    if engine is Engine.xfuser:
        _with_xfuser(chosen, plan, outputs, dry_run, quiet)
        return
    if dry_run:
        text.answer(*draw.whole(plan), *look(chosen.request, plan))
        return
    show = draw.whole if verbose else draw.head
    if not chosen.request.prompt:
        text.say(*show(plan))
        raise _prompt_missing(plan)
    job = prepare(chosen, plan, outputs, quiet)
    if not quiet:
        _warn(
            mismatch(chosen, device_name(job.device), plan.world_size) if recipe else None,
            crowded(plan.world_size) if job.device == "cpu" else None,
        )
        text.say(*show(plan), *look(chosen.request, plan))
        text.say(f"seed    {job.seed}     attention kernel {job.kernel.name}, device {job.device}", "")
        text.say("start    torch, diffusers and the ranks ...")
    from hybridgen.engine.launch import launch

    try:
        result = launch(job)
    except KeyboardInterrupt as interrupt:  # typer makes an exit code of it, without a word
        text.say("stopped", *(f"  {note}" for note in getattr(interrupt, "__notes__", [])))
        raise typer.Exit(130) from None
    if result is None:  # a rank of a job that another launcher started, and not the first
        return
    if not quiet:
        waited = time.monotonic() - started
        text.say(*summary(result, waited, repeat_command(chosen, job)))
    text.answer(str(job.output))
    if report is not None:
        report.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _chosen(candidate: Candidate, hardware: Hardware) -> list[str]:
    """What the planner chose, for what, and why."""
    seconds = text.span(*candidate.cost.range)
    machine = f"{candidate.plan.world_size} x {hardware.title}"
    lines = text.paragraph("planner", f"{candidate.config} on {machine}: {seconds} s of denoising predicted", 8)
    if hardware.name == "cpu":
        lines += text.paragraph("", "no GPU here: --hardware NAME plans for another machine", 8)
    return [*lines, *(line for why in candidate.why for line in text.paragraph("", why, 8)), ""]


def _warn(*warnings: str | None) -> None:
    text.say(*(f"warning: {warning}" for warning in warnings if warning))


def _with_xfuser(chosen: Recipe, plan: Plan, outputs: Outputs, dry_run: bool, quiet: bool) -> None:
    """The same request with xDiT's runner."""
    from hybridgen.interop import xdit, xfuser

    if dry_run:
        made = xdit.export(chosen, plan)
        text.answer(*draw.head(plan), "", made.text.rstrip())
        _warn(*made.warnings)
        return
    if not chosen.request.prompt:
        raise _prompt_missing(plan)
    chosen, video = xfuser.ready(chosen, plan, outputs)
    if not quiet:
        text.say(*draw.head(plan), f"seed    {chosen.request.seed}     with xDiT's runner", "")
        _warn(mismatch(chosen, device_name("cuda"), plan.world_size), *xdit.warnings(chosen, plan))
    xfuser.run(chosen, plan, video)
    text.answer(str(video))


def _prompt_missing(plan: Plan) -> RequestError:
    return RequestError.told(
        "prompt-missing",
        f"--prompt is missing; the plan is legal ({text.ranks(plan.world_size)}), say what the clip shows",
        tries=[{"p": plan.facts.defaults.example}],
    )


def summary(report: dict[str, Any], waited: float, command: str) -> list[str]:
    """Times that add up to what the user waited, bytes, memory and the command that repeats the clip."""
    times, memory = report["timings_s"], report["peak_memory_bytes"]
    stages = {stage: times[stage] for stage in ("load", "encode", "denoise", "decode", "write")}
    shown = {"start": max(waited - sum(stages.values()), 0.0), **stages, "total": waited}
    most = max(memory)
    lines = ["", "  ".join(f"{stage} {seconds:.1f} s" for stage, seconds in shown.items())]
    sent = _most(report["traffic_bytes"])
    if sent:
        lines.append("sent    " + ", ".join(f"{name} {text.size(n)}" for name, n in sent.items()) + "  (busiest rank)")
    lines.append(
        f"memory  {text.size(most)} at the peak on rank {memory.index(most)}, {text.size(min(memory))} on the least"
    )
    if not report["plan"]["exact"]:
        lines.append("note    approximate: after the warm-up pipefusion attends to K/V of the step before")
    return [*lines, f"repeat  {command}"]


def _most(ranks: list[dict[str, int]]) -> dict[str, int]:
    """Per strategy, what the rank sent that sent most of it."""
    names = sorted({name for rank in ranks for name in rank})
    most = {name: max(rank.get(name, 0) for rank in ranks) for name in names}
    return {name: n for name, n in most.items() if n}
