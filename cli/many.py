"""hybridgen run of many clips: what is shown of them."""

from __future__ import annotations

import warnings
from pathlib import Path
from textwrap import shorten
from typing import Any

import typer

from hybridgen.api.clips import ManyScreen, Summary, Wanted
from hybridgen.api.many import run_many
from hybridgen.api.session import Engine
from hybridgen.cli import draw, text
from hybridgen.distributed.progress import Event, clock
from hybridgen.engine import environment
from hybridgen.engine.job import Job
from hybridgen.engine.options import RunOptions
from hybridgen.engine.report import Report
from hybridgen.engine.tickets import Ticket
from hybridgen.errors import RequestError, RunFailed, counted


def run(options: RunOptions, fields: dict[str, Any]) -> None:
    """Make the clips of a job. The paths of the videos go to stdout, everything else to stderr.

    Ends with exit code 1 where a clip was not made.
    """
    reporter, screen = environment.is_reporter(), Lines(options.quiet, options.dry_run)
    with warnings.catch_warnings():
        warnings.simplefilter("once")  # many clips may be warned of alike
        warnings.showwarning = lambda message, *_: screen.warn(str(message)) if reporter else None
        found = run_many(options, fields, screen if reporter else ManyScreen())
    if reporter:
        screen.summary(found)
    if found.refused or found.failed:
        raise typer.Exit(1)


class Lines(ManyScreen):
    """Lines on stderr: which clip begins, and what became of those that are not made."""

    def __init__(self, quiet: bool, is_dry: bool) -> None:
        self.quiet, self.is_dry = quiet, is_dry
        self.numbers: dict[str, int] = {}
        """Numbers of clips, by their files."""
        self.has_replicas = False
        """Whether clips are made side by side, so that ranks show nothing themselves."""

    def warn(self, words: str) -> None:
        if not self.quiet:
            text.say(f"warning: {words}")

    def planned_many(self, engine: Engine, count: int, shard: tuple[int, int]) -> None:
        self.has_replicas = engine.replicas > 1
        if not self.quiet:
            part = f", shard {shard[0]}/{shard[1]}" if shard[1] > 1 else ""
            many = f" on {engine.replicas} replicas of these ranks" if engine.replicas > 1 else ""
            text.say(*draw.head(engine.plan), f"clips   {counted(count, 'clip')}{many}{part}", "")

    def asked(self, wanted: Wanted, job: Job) -> None:
        self.numbers[str(job.output)] = wanted.number
        if self.is_dry:
            text.answer(str(job.output))

    def event(self, ticket: Ticket, event: Event) -> None:
        job = ticket.job
        clip = f"clip {self.numbers[str(job.output)]}"
        if event.kind == "lost":
            text.say(f"warning: {event.text}; {clip} is made once more")
        elif event.kind == "begin" and not self.quiet:
            who = f" ({event.text})" if event.text else ""
            said = f"{clip}{who}: {shorten(job.prompt, 60, placeholder=' ...')}, seed {job.seed}"
            text.say(*([] if who else [""]), said)

    def made(self, wanted: Wanted, report: Report) -> None:
        if self.has_replicas and not self.quiet:  # otherwise rank 0 has shown them
            text.say(*(f"warning: clip {wanted.number}: {warning}" for warning in report.warnings))
        text.answer(str(report.output))

    def skipped(self, wanted: Wanted, path: Path) -> None:
        if not self.quiet:
            text.say(f"clip {wanted.number}: {path} is there")

    def refused(self, wanted: Wanted, error: RequestError) -> None:
        text.say(*error.lines())

    def failed(self, wanted: Wanted, failure: RunFailed) -> None:
        text.say(f"clip {wanted.number} failed:", *failure.lines())

    def summary(self, found: Summary) -> None:
        """Show what became of all clips."""
        if self.quiet:
            return
        made = f"{counted(found.made, 'clip')} made in {clock(found.seconds)} ({found.an_hour:.1f} an hour)"
        parts = [f"{counted(found.looked_at, 'clip')} to make" if self.is_dry else made]
        others = {"there already": found.skipped, "refused": found.refused, "failed": found.failed}
        parts += [f"{count} {word}" for word, count in others.items() if count]
        text.say("", ", ".join(parts))
