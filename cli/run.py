"""hybridgen run: make a clip."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer

from hybridgen.api import many, spine
from hybridgen.cli import draw, text
from hybridgen.cli import many as many_screen
from hybridgen.cli.options import PANELS, given_words, with_flags
from hybridgen.cli.verb import Verb
from hybridgen.engine import environment, record
from hybridgen.engine.inputs import Conditioning, check_inputs, describe_inputs
from hybridgen.engine.job import Job
from hybridgen.engine.machine import Choice
from hybridgen.engine.options import Engine, RunOptions
from hybridgen.engine.report import Report
from hybridgen.errors import RequestError, quoted
from hybridgen.plan.plan import Plan
from hybridgen.recipe.fields import Recipe
from hybridgen.recipe.flags import flag

EXAMPLES = (
    'hybridgen run --model demo -p "a red circle moves right" --cfg 2 --ulysses 2\n\n'
    "hybridgen run --model wan2.2 --cfg 2 --ulysses 4 --attn2d 3x3 --vae 8 --dry-run\n\n"
    "hybridgen run --model wan2.2 --gpus 8 --prompts prompts.txt --out 'clips/{index:03d}-{slug}.mp4'\n\n"
    'hybridgen run --model wan2.2 --gpus 8 -p "..."\n\n'
    'hybridgen run --recipe my.yaml --set request.steps=20 -p "..."'
)


LONG = 3600
"""Seconds on CPUs after which another model is proposed."""


@dataclass(frozen=True)
class RunFlags(RunOptions):
    """Flags of hybridgen run that are not fields of a recipe."""

    verbose: bool = flag("Show mesh and traffic before the run.", "--verbose", "-v", default=False)
    debug: bool = flag("Show the traceback of a failed rank.", default=False)


app = typer.Typer()


@app.command("run", cls=Verb, epilog=EXAMPLES)
@with_flags(RunFlags)
def run(options: RunFlags, fields: dict[str, Any]) -> None:
    """Make a clip from a prompt, spread over ranks as the degrees say.

    The path of the video goes to stdout, everything else to stderr.
    """
    if many.is_many(options):
        return many_screen.run(options, fields)
    reporter, screen = environment.is_reporter(), RunScreen(options)
    report = spine.run(options, fields, screen if reporter else spine.Screen())
    if report is not None and reporter:
        screen.finished(report)


class RunScreen(spine.Screen):
    """The screen of a run on stderr; the plan of a dry run is the answer and goes to stdout."""

    def __init__(self, options: RunFlags) -> None:
        self.options, self.started = options, time.monotonic()
        self.repeat = ""

    def chosen(self, choice: Choice) -> None:
        """The line that says what the planner chose, for which machine, and why."""
        if self.options.quiet:
            return
        candidate, hardware = choice.candidate, choice.hardware
        low, high = candidate.cost.range
        machine = f"{candidate.plan.world_size} x {hardware.title}"
        predicted = f"{candidate.config} on {machine}: {text.lasting(low, high)} of denoising predicted"
        lines = text.paragraph("planner", predicted, 8)
        if hardware.name == "cpu":
            words = "no GPU here: hybridgen plan --hardware NAME plans for another machine"
            words += "; --model demo makes a clip on CPUs in seconds" if low > LONG else ""
            lines += text.paragraph("", words, 8)
        text.say(*lines, *(line for why in candidate.why for line in text.paragraph("", why, 8)), "")

    def planned(self, recipe: Recipe, plan: Plan, inputs: Conditioning, found: list[str]) -> None:
        """Show the plan of a dry run, or of a request without a prompt before it is refused."""
        if not self.options.quiet:
            _warn(found)
        if not self.options.dry_run:
            text.say(*self._drawn(plan))
        elif self.options.engine is Engine.xfuser:
            from hybridgen.interop import xdit

            made = xdit.export(recipe, plan)
            text.answer(*draw.head(plan), "", made.text.rstrip())
        else:
            text.answer(*draw.whole(plan), *describe_inputs(inputs, plan.clip.encoded_frames), *_missing(recipe, plan))

    def ready(self, recipe: Recipe, job: Job, found: list[str]) -> None:
        """Show warnings, the plan, and what was drawn and chosen."""
        self.repeat = quoted(["hybridgen", "run", *given_words(recipe, tuple(PANELS))])
        if self.options.quiet:
            return
        _warn(found)
        text.say(*self._drawn(job.plan), *describe_inputs(job.inputs, job.plan.clip.encoded_frames))
        if self.options.engine is Engine.xfuser:
            text.say(f"seed    {job.seed}     with xDiT's runner", "")
            return
        text.say(f"seed    {job.seed}     attention kernel {job.kernel.name}, device {job.device}", "")
        text.say("start    torch, diffusers and the ranks ...")

    def finished(self, report: Report) -> None:
        """Print the path of the clip, after a summary."""
        if not self.options.quiet and report.peak_memory_bytes:
            text.say(*summary(report, time.monotonic() - self.started, self.repeat))
        if self.options.like is not None and report.latents_sha256:
            self._compare(self.options.like, report)
        text.answer(str(report.output))

    def _compare(self, like: Path, report: Report) -> None:
        """Say whether the clip is the one that it was to be like."""
        made, request = record.read(like), asdict(report.request)
        if any(request[name] != value for name, value in made.recipe["request"].items() if name not in record.PICTURES):
            return  # another clip was asked for
        if made.latents_sha256 == report.latents_sha256:
            text.say(f"like    {like}: the same latents, bit for bit")
            return
        other = [f"{name} {one}" for name, one in made.versions.items() if report.versions.get(name) != one]
        why = f"; it was made with {', '.join(other)}" if other else ""
        text.say(f"warning: the latents are not those of {like}{why}")

    def _drawn(self, plan: Plan) -> list[str]:
        return draw.whole(plan) if self.options.verbose else draw.head(plan)


def _missing(recipe: Recipe, plan: Plan) -> list[str]:
    """A line that says which image is still needed to run the plan."""
    try:
        check_inputs(recipe.request, plan.facts, plan.clip)
    except RequestError as error:
        return [f"to run  --{error.flag} {error.problem}"]
    return []


def _warn(found: Sequence[str]) -> None:
    text.say(*(f"warning: {warning}" for warning in found))


def summary(report: Report, waited: float, command: str) -> list[str]:
    """The summary of a run: the report's times, the user's wait, bytes, memory, and the command that repeats it."""
    times, memory = report.timings_s, report.peak_memory_bytes
    stages = {stage: getattr(times, stage) for stage in ("load", "encode", "denoise", "decode", "write")}
    shown = {**stages, "total": times.total}
    most = max(memory)
    figures = "  ".join(f"{stage} {seconds:.1f} s" for stage, seconds in shown.items())
    lines = ["", *text.paragraph("time", f"{figures}  ({waited:.1f} s with start and end)", 8)]
    lines += _steps(report)
    sent = _most(report.traffic_bytes)
    if sent:
        lines.append("sent    " + ", ".join(f"{name} {text.size(n)}" for name, n in sent.items()) + "  (busiest rank)")
    others = f", the other ranks {text.size(min(memory))} or more" if len(memory) > 1 else ""
    lines.append(f"memory  peak {text.size(most)} (rank {memory.index(most)}){others}")
    if not report.plan.exact:
        lines.append("note    approximate: after the warm-up pipefusion attends to K/V of the step before")
    return [*lines, f"repeat  {command}"]


def _steps(report: Report) -> list[str]:
    """What a step took beside what was predicted, and the rank that the others wait for."""
    held, slow = report.prediction, report.slowest
    if not held.measured:
        return []
    words = f"{text.short(held.measured)} s each; "
    if held.missing:
        words += f"not predicted: {held.missing}"
    else:
        low, high = held.step * (1 - held.error), held.step * (1 + held.error)
        words += f"predicted for {held.machine}: {text.span(low, high)} s"
    lines = text.paragraph("steps", words, 8)
    if slow is not None:
        own = f"computing {text.short(slow.computing)} s a step, waiting {text.short(slow.waiting)} s"
        others = f"the others compute {text.short(slow.others_computing)} s, wait {text.short(slow.others_waiting)} s"
        lines += text.paragraph("", f"slowest rank {slow.rank} ({slow.host}): {own}; {others}", 8)
    return lines


def _most(ranks: Sequence[dict[str, int]]) -> dict[str, int]:
    """Bytes by strategy, of the rank that sent most."""
    names = sorted({name for rank in ranks for name in rank})
    most = {name: max(rank.get(name, 0) for rank in ranks) for name in names}
    return {name: n for name, n in most.items() if n}
