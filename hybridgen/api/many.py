"""Jobs of many clips on one engine: their names, the manifest, and going on where a job has ended. No torch."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, cast

from hybridgen.api.clips import ManyScreen, Summary, Wanted, shard_of, tell_more
from hybridgen.api.session import Engine
from hybridgen.distributed.lookout import Lookout
from hybridgen.distributed.progress import Event
from hybridgen.distributed.signals import warned
from hybridgen.engine import environment
from hybridgen.engine.job import Job
from hybridgen.engine.kept import latents_of
from hybridgen.engine.manifest import BEGUN, DONE, FAILED, REFUSED, Manifest
from hybridgen.engine.options import Engine as Runner
from hybridgen.engine.options import RunOptions
from hybridgen.engine.outputs import endings, remove_stale, slug
from hybridgen.engine.prepare import has_prompt
from hybridgen.engine.tickets import ENDS, Ticket
from hybridgen.errors import PREEMPTED, Place, RequestError, RunFailed
from hybridgen.recipe import prompts
from hybridgen.recipe.fields import Recipe
from hybridgen.recipe.text import plain

RULES = {
    "many": "One load of the model makes all clips of a job. What names one file cannot name those of many clips, "
    "unless it holds {index}, {slug} or {seed}.",
    "shard": "A shard i/n makes clip i and every n-th after it, so that n jobs make all clips, each of them once.",
}
AHEAD = 1
"""Clips that are checked and wait while others are made."""
TEMPLATE = "{index:04d}-{slug}-s{seed}"


class _Under(NamedTuple):
    """A clip that is under way."""

    wanted: Wanted
    noted: dict[str, Any]
    """What was asked, and the file, as the manifest has them."""
    left: Path | None
    """Final latents of the clip that an earlier job has left."""


def is_many(options: RunOptions) -> bool:
    """Whether flags ask for a job of many clips."""
    return any(
        value is not None
        for value in (options.prompts, options.count, options.manifest, options.shard, options.replicas)
    )


def run_many(
    options: RunOptions, fields: dict[str, Any], screen: ManyScreen = ManyScreen(), start_method: str | None = None
) -> Summary:
    """Make the clips of a job on ranks that load the model once; on replicas several at a time.

    What cannot be made is told and noted, and does not end the job, unless options.fail_fast says so. A dry run looks
    at every clip and makes none.
    In a joined job every rank calls this, and rank 0 alone reads the list and returns what became of it.

    Raises RequestError for a job that cannot start, RunFailed for one that ends at its first failure.
    """
    _check(options)
    with Lookout(environment.joined_rank()) as early:
        return _run(options, fields, screen, start_method, early)


def _run(
    options: RunOptions, fields: dict[str, Any], screen: ManyScreen, start_method: str | None, early: Lookout
) -> Summary:
    """The same, once it is known that flags go together. early: a lookout for ranks of a joined job."""
    is_reporter, warning = environment.is_reporter(), options.outputs.warning
    lines, shard = _lines(options, fields) if is_reporter else [], shard_of(options.shard)
    shared = {name: value for name, value in fields.items() if name != "prompt"}
    ended: SimpleQueue[Ticket] = SimpleQueue()

    def heard(ticket: Ticket, event: Event) -> None:
        screen.event(ticket, event)
        if event.kind in ENDS:
            ended.put(ticket)

    engine = Engine.of(options, shared, screen, heard, start_method)
    if not is_reporter:
        if not options.dry_run and engine.joined is not None:
            engine.joined.serve(lambda: None, early, warning=warning)
        return Summary(0)
    job = None
    try:
        job = _Many(options, engine, screen, ended)
        wanted = [one for one in job.wanted(lines) if (one.number - shard[0]) % shard[1] == 0]
        screen.planned_many(engine, len(wanted), shard)
        if engine.joined is not None and not options.dry_run:
            return cast(Summary, engine.joined.serve(lambda: job.run(wanted), early, job.notes, warning))
        with warned(warning, lambda: Thread(target=engine.ranks.preempt).start()):  # a handler must not wait
            found = job.run(wanted)
    except BaseException as error:
        if engine.joined is None:  # its ranks have ended together
            engine.close(at_once=True)
        if job is not None:
            tell_more(error, job.notes())
        raise
    engine.close()
    return found


def _check(options: RunOptions) -> None:
    """Raise RequestError (many) for flags that go with one clip only."""
    if options.engine is Runner.xfuser:
        raise RequestError("many", "engine", "xfuser", "makes one clip a start", "--engine native")
    for name in ("latents", "report", "preview"):
        if (value := getattr(options, name)) is not None:
            raise RequestError("many", name, value, "is for one clip", "--manifest, which says what became of each", [])
    if options.count is not None and options.count < 1:
        raise RequestError("quantity", "count", options.count, "must be 1 or more", [1])


def _lines(options: RunOptions, fields: dict[str, Any]) -> list[prompts.Line]:
    """The clips of the file, or the one prompt of the flags."""
    if options.prompts is None:
        return [prompts.Line(Place("", 0, 0), {"prompt": fields.get("prompt")})]
    if fields.get("prompt") is not None:
        problem = f"takes the place of -p {fields['prompt']!r}"
        raise RequestError("many", "prompts", options.prompts, problem, "one of them", [{"prompt": None}])
    return prompts.read(options.prompts)


class _Many:
    """A job of many clips at work."""

    def __init__(self, options: RunOptions, engine: Engine, screen: ManyScreen, ended: SimpleQueue[Ticket]) -> None:
        """ended: gives the tickets of clips that have ended, in that order."""
        self.options, self.engine, self.screen, self.ended = options, engine, screen, ended
        index, count = shard_of(options.shard)
        part = f".{index}of{count}" if count > 1 else ""
        stem = Path(options.prompts).stem if options.prompts not in (None, "-") else "clips"
        self.manifest = Manifest.at(options.manifest or Path(f"{stem}.manifest{part}.jsonl"))
        self.under: dict[Ticket, _Under] = {}
        self.preempted, self.kept = False, list[str]()
        """Whether the cluster's warning ends the job, and notes on the states that clips have kept."""
        self.found = Summary(0)

    def notes(self) -> list[str]:
        """What the user is told where the job ends early."""
        found = self.found
        there = found.made + found.skipped
        return [f"{there} of {found.total} clips are made; the same command makes the others"] if found.made else []

    def wanted(self, lines: list[prompts.Line]) -> Iterator[Wanted]:
        """Every clip: each line as often as --count says."""
        number, count = 0, self.options.count or 1
        for line in lines:
            for again in range(count):
                number += 1
                given = dict(line.given)
                out = given.pop(prompts.OUT, None)
                place = line.place if line.place.line else None
                if line.fault is None:
                    given["seed"] = self._seed(given, number - again) + again
                yield Wanted(number, given, out, place, line.fault)

    def _seed(self, given: dict[str, Any], number: int) -> int:
        """The seed of a clip's first repetition: as given, or one of its prompt, so that a job draws it again."""
        seed = given.get("seed", self.engine.recipe.request.seed)
        if seed is not None:
            return int(seed)
        text = f"{number} {given.get('prompt')}".encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:4], "big")

    def run(self, wanted: list[Wanted]) -> Summary:
        """Make every clip that is not there."""
        if not self.options.dry_run:
            self.manifest.begin()
        self.found, began = Summary(len(wanted)), time.monotonic()
        for one in wanted:
            if self.preempted:
                break
            self._start(one)
            while len(self.under) >= self.engine.replicas + AHEAD:
                self._finish()
        while self.under:
            self._finish()
        if self.preempted:
            raise RunFailed(PREEMPTED, "the job was ended by the signal that it was to wait for", tuple(self.kept))
        self.found.seconds = time.monotonic() - began
        return self.found

    def _start(self, one: Wanted) -> None:
        """Ask for a clip, unless it is there or cannot be made."""
        asked: dict[str, Any] = {}
        try:
            if one.fault is not None:
                raise one.fault
            recipe = self.engine.clip(one.fields)
            if not has_prompt(recipe.request):
                raise RequestError("prompt-missing", "prompt", None, "is missing; say what the clip shows")
            asked = {"model": self.engine.plan.facts.name, **plain(recipe.request)}
            there = self.manifest.made(one.number, asked)
            if there is not None:
                self.found.skipped += 1
                self.found.outputs.append(there)
                self.screen.skipped(one, there)
                return
            video = self._name(one, recipe)
            is_own = self.manifest.is_own(one.number, video)
            outputs = replace(self.options.outputs, video=video, overwrite=self.options.overwrite or is_own)
            job = self.engine.job_of(recipe, outputs)
            self.screen.asked(one, job)
            if self.options.dry_run:
                self.found.looked_at += 1
                return
            self._submit(one, job, asked, is_own)
        except RunFailed as failure:  # the signal came between two clips
            if failure.rule != PREEMPTED:
                raise
            self.preempted = True
        except RequestError as error:
            if error.rule == "manifest":
                raise
            fault = error if one.place is None or error.place else error.changed(place=one.place, tries=())
            self.found.refused += 1
            if not self.options.dry_run:
                self.manifest.note(one.number, status=REFUSED, asked=asked, error=fault.message)
            if self.options.fail_fast:
                raise fault from None
            self.screen.refused(one, fault)

    def _submit(self, one: Wanted, job: Job, asked: dict[str, Any], is_own: bool) -> None:
        """Ask for a clip. is_own: whether an earlier job began it, and may have been killed."""
        left = None
        if is_own:
            left = latents_of(job)
            remove_stale(job.files)
        noted = {"asked": asked, "output": self.manifest.relative(job.output)}
        self.manifest.note(one.number, status=BEGUN, **noted)
        self.under[self.engine.ranks.submit(job)] = _Under(one, noted, left)

    def _name(self, one: Wanted, recipe: Recipe) -> Path:
        """The file of a clip: as its line says, or by the template."""
        ending = endings(self.engine.plan.clip.frames if recipe.request.frames is None else recipe.request.frames)[0]
        template = one.out or str(self.options.out or f"{TEMPLATE}{ending}")
        named = {"index": one.number, "seed": recipe.request.seed, "slug": slug(recipe.request.prompt or "")}
        try:
            name = template.format(**named)
        except (KeyError, ValueError, IndexError, AttributeError) as error:
            problem = "is no name: in braces it takes index, seed and slug"
            raise RequestError("many", "out", template, problem, [f"{TEMPLATE}{ending}"]) from error
        if one.out is None and name == template and self.found.total > 1:
            raise RequestError(
                "many", "out", template, f"names one file for {self.found.total} clips", [f"{TEMPLATE}{ending}"]
            )
        return Path(name)

    def _finish(self) -> None:
        """Wait for a clip to end, and note what became of it."""
        ticket = self.ended.get()
        one, noted, left = self.under.pop(ticket)
        try:
            report = ticket.result()
        except RunFailed as failure:
            if failure.rule == PREEMPTED:
                self.kept += [note for note in failure.notes if note not in self.kept]
                self.preempted = True
                return
            self.found.failed += 1
            self.manifest.note(one.number, status=FAILED, **noted, error=failure.message)
            if self.options.fail_fast:
                raise replace(failure, message=f"clip {one.number}: {failure.message}") from failure
            self.screen.failed(one, failure)
            return
        if left is not None:
            left.unlink(missing_ok=True)
        self.found.made += 1
        self.found.outputs.append(report.output)
        self.manifest.note(
            one.number,
            status=DONE,
            asked=noted["asked"],
            output=self.manifest.relative(report.output),
            bytes=ticket.size or report.output.stat().st_size,
            latents_sha256=report.latents_sha256,
            seconds=report.timings_s.total,
        )
        self.screen.made(one, report)
