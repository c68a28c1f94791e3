"""The one way from a request to its clip, for the command line and for Python. No torch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from hybridgen.distributed.files import part_of, take_free_name
from hybridgen.distributed.lookout import Lookout, say
from hybridgen.engine import environment, record
from hybridgen.engine.inputs import Conditioning, open_inputs
from hybridgen.engine.job import Job
from hybridgen.engine.machine import Choice, choose, crowded, device_name, hardware_unused
from hybridgen.engine.options import DecodeOptions, Engine, Limits, RunOptions, limits_of
from hybridgen.engine.outputs import Outputs, default_name, endings, owned
from hybridgen.engine.prepare import has_prompt, look, make_job, with_seed
from hybridgen.engine.remarks import remarks
from hybridgen.engine.report import Report
from hybridgen.errors import RequestError, RunFailed
from hybridgen.models import catalogue
from hybridgen.plan.plan import Plan
from hybridgen.planner.choose.recommend import is_open
from hybridgen.recipe import library
from hybridgen.recipe.compose import compose
from hybridgen.recipe.fields import Recipe, keys_of
from hybridgen.recipe.resolve import faults, resolve, settings_of
from hybridgen.recipe.results import mismatch
from hybridgen.recipe.typed import dotted


class Screen:
    """What is shown of a run while it is prepared; the base class shows nothing."""

    def chosen(self, choice: Choice) -> None:
        """Show the degrees that the planner has chosen."""

    def planned(self, recipe: Recipe, plan: Plan, inputs: Conditioning, found: list[str]) -> None:
        """Show the plan of a request that is not run, with its warnings: a dry run, or one without a prompt."""

    def ready(self, recipe: Recipe, job: Job, found: list[str]) -> None:
        """Show the job that is about to start, with its warnings; the recipe has nothing left open."""


def run(
    options: RunOptions, fields: dict[str, Any], screen: Screen = Screen(), start_method: str | None = None
) -> Report | None:
    """From a request to its clip: flags or YAML -> Recipe -> Plan -> Job -> ranks -> Report.

    fields: fields of the recipe that win over its file, by name.
    start_method: how the ranks of this machine are started, as multiprocessing names it.

    The report is the same on every rank of a joined job; None after a dry run. Raises RequestError before anything is
    started, RunFailed when a rank failed.
    """
    limits = options.limits
    with Lookout(environment.joined_rank()) as early:  # a launcher's mistakes are told first
        recipe = composed(options, fields)
        inputs = _opened(recipe)
        recipe = filled(recipe, options, inputs, screen)
        with _origin_told(options, fields):
            plan = resolve(recipe, options.gpus, inputs.video_frames)
        if options.dry_run and options.engine is Engine.native:
            look(recipe, plan, options.outputs, inputs)
        engine = _engine(options)
        if options.dry_run or not has_prompt(recipe.request):
            device = "cpu" if recipe.runtime.device == "cpu" else None  # a GPU's name is asked for by torch
            screen.planned(recipe, plan, inputs, _warnings(recipe, plan, engine, device, inputs))
        if options.dry_run:
            return None
        recipe = with_seed(recipe)
        with _owned(options.outputs, recipe, plan) as outputs:
            job = engine.make_job(recipe, plan, outputs, inputs, options.quiet)
            screen.ready(recipe, job, _warnings(recipe, plan, engine, job.device, inputs))
            report = engine.launch(job, start_method, limits, early)
            _write_report(outputs, report)
    return report


@contextmanager
def _owned(outputs: Outputs, recipe: Recipe, plan: Plan) -> Iterator[Outputs]:
    """A block in which this run alone writes its files, with the name of the clip. Only rank 0 writes.

    Raises RequestError (output-busy).
    """
    if not environment.is_reporter():
        yield outputs
        return
    request = recipe.request
    video = outputs.video or default_name(request.prompt or "", request.seed or 0, endings(plan.clip.frames)[0])
    with owned(outputs, video):
        yield replace(outputs, video=video)


def decode(options: DecodeOptions, start_method: str | None = None) -> Report:
    """Make the clip of final latents that a run has kept. Raises RequestError and RunFailed as run() does.

    In a joined job only rank 0 needs the file.
    """
    from hybridgen.engine import launch
    from hybridgen.engine.kept import decode_job

    limits = limits_of(options)
    with Lookout(environment.joined_rank()) as early:
        if not environment.is_reporter():
            return launch.launch(decode_job(options) if options.file.exists() else None, start_method, limits, early)
        job = decode_job(options)
        outputs = Outputs(job.output, None, options.report, options.preview, options.overwrite)
        with owned(outputs, job.output):
            report = launch.launch(job, start_method, limits, early)
            _write_report(outputs, report)
    return report


def _write_report(outputs: Outputs, report: Report) -> None:
    """Write the report on rank 0, whole, if it is asked for; under the next name where its own is taken meanwhile.

    Raises RunFailed (report), which names the clip: it is complete.
    """
    path = outputs.report
    if path is None or not environment.is_reporter():
        return
    part = part_of(path, os.getpid())
    try:
        part.write_text(json.dumps(report.as_data(), indent=2) + "\n", encoding="utf-8")
        written = take_free_name(part, path, outputs.overwrite)
    except OSError as error:
        part.unlink(missing_ok=True)
        problem = f"--report {path}: cannot be written ({error.strerror})"
        raise RunFailed("report", problem, (f"the clip is complete: {report.output}",)) from error
    if written != path:
        say(f"warning: {path} was made by another run meanwhile: the report is {written}")


def composed(options: RunOptions, fields: dict[str, Any]) -> Recipe:
    """The recipe of a run. Raises RequestError, with all faults of the file where it has any that flags do not mend."""
    if options.like is not None and options.recipe is not None:
        problem = f"excludes --recipe {options.recipe}: the clip's record is the recipe"
        raise RequestError("clip-record", "like", options.like, problem, tries=[{"recipe": None}, {"like": None}])
    file = options.recipe and library.located(options.recipe)
    below = record.read(options.like, "like").recipe if options.like is not None else None
    try:
        recipe = compose(file, options.settings or [], fields, below)
    except RequestError as error:
        from hybridgen.recipe.check import with_others

        raise with_others(error, file) from error
    if file is not None and len(found := faults(recipe)[0]) > 1:
        changes = [one.tries[0] for one in found if one.tries]
        merged = {name: value for one in changes if not isinstance(one, str) for name, value in one.items()}
        found[0].others = tuple(one.changed(tries=()) for one in found[1:])
        raise found[0].changed(tries=[merged] if merged else [])
    settings_of(recipe).refuse_unable()
    return recipe


@contextmanager
def _origin_told(options: RunOptions, fields: dict[str, Any]) -> Iterator[None]:
    """A block whose RequestErrors say where a value is from that no flag gives."""
    try:
        yield
    except RequestError as error:
        keys, file = keys_of(error.flag), options.recipe or options.like
        settings = [setting.partition("=")[0] for setting in options.settings or []]
        named = keys and (fields.get(str(keys[-1])) is not None or dotted(keys) in settings)
        if file and keys and not named and error.value is not None:
            error.helps += (f"--{error.flag} {error.value} is from {file}",)
        raise


def _opened(recipe: Recipe) -> Conditioning:
    """The opened files of a recipe's clip. In a joined job only rank 0 needs them, and only it may have them."""
    if not environment.is_reporter():
        return Conditioning()
    facts = catalogue.find(recipe.model, recipe.checkpoint.revision)
    return open_inputs(recipe.request, facts)


def filled(recipe: Recipe, options: RunOptions, inputs: Conditioning, screen: Screen) -> Recipe:
    """The recipe with the degrees that the planner chooses, if it is asked to."""
    if options.auto or (options.gpus is not None and is_open(recipe)):
        choice = choose(recipe, options.gpus, options.hardware, inputs.video_frames, options.replicas)
        screen.chosen(choice)
        return choice.recipe
    if options.hardware is not None:
        raise hardware_unused(options.hardware)
    return recipe


class _Runner(NamedTuple):
    """The functions of an engine that make a clip from a plan."""

    make_job: Callable[[Recipe, Plan, Outputs, Conditioning, bool], Any]
    launch: Callable[[Any, str | None, Limits, Lookout], Report]
    warnings: Callable[[Recipe, Plan], Iterable[str]]
    """Warnings about the plan before it runs."""


def _engine(options: RunOptions) -> _Runner:
    """The runner of an engine: hybridgen itself, or another."""
    if options.engine is Engine.xfuser:
        from hybridgen.interop import xdit, xfuser

        return _Runner(xfuser.make_job, xfuser.launch, xdit.warnings)
    return _Runner(partial(make_job, hardware=options.hardware), _launch, lambda recipe, plan: ())


def _launch(job: Job, start_method: str | None, limits: Limits, early: Lookout) -> Report:
    """Run a job on ranks. What only they need is imported here, because a dry run has none."""
    from hybridgen.engine import launch

    return launch.launch(job, start_method, limits, early)


def _warnings(
    recipe: Recipe, plan: Plan, engine: _Runner, device: str | None, inputs: Conditioning = Conditioning()
) -> list[str]:
    """Warnings before a job starts: other hardware than the recipe's, crowded cores, files, the engine's own.

    device: None where it is not known, because nothing starts; what a machine must be asked for is left out.
    """
    world = plan.world_size
    found = [
        mismatch(recipe, device_name(device), world) if device is not None else None,
        crowded(world) if device == "cpu" else None,
        *remarks(recipe, plan),
        *inputs.doubts,
        *engine.warnings(recipe, plan),
    ]
    return [warning for warning in found if warning]
