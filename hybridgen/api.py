"""hybridgen from Python, and the one way from a request to its clip, also for the command line. No torch."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hybridgen.distributed.files import written_whole
from hybridgen.engine import environment, record
from hybridgen.engine.inputs import Conditioning, open_inputs
from hybridgen.engine.job import Job
from hybridgen.engine.machine import Choice, choose, crowded, device_name, hardware_unused
from hybridgen.engine.options import DecodeOptions, Engine, Limits, RunOptions
from hybridgen.engine.outputs import Outputs
from hybridgen.engine.prepare import has_prompt, look, make_job, with_seed
from hybridgen.engine.remarks import remarks
from hybridgen.engine.report import Report
from hybridgen.errors import RequestError, RunFailed, did_you_mean
from hybridgen.models import catalogue
from hybridgen.plan.plan import Plan
from hybridgen.planner.choose.ask import Recommendation
from hybridgen.planner.choose.options import PlanOptions
from hybridgen.planner.choose.recommend import is_open, plan_for
from hybridgen.recipe import library
from hybridgen.recipe.compose import compose
from hybridgen.recipe.fields import Recipe
from hybridgen.recipe.fields import options as recipe_options
from hybridgen.recipe.flags import of_keywords
from hybridgen.recipe.resolve import faults, resolve, settings_of
from hybridgen.recipe.results import mismatch


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
    environment.joined_rank()  # a launcher's mistakes are told first
    recipe = _composed(options, fields)
    settings_of(recipe).refuse_unable()
    inputs = _opened(recipe)
    recipe = _filled(recipe, options, inputs, screen)
    plan = resolve(recipe, options.gpus, inputs.video_frames)
    if options.dry_run and options.engine is Engine.native:
        look(recipe, plan, options.outputs, inputs)
    engine = _engine(options.engine)
    if options.dry_run or not has_prompt(recipe.request):
        device = "cpu" if recipe.runtime.device == "cpu" else None  # a GPU's name is asked for by torch
        screen.planned(recipe, plan, inputs, _warnings(recipe, plan, engine, device))
    if options.dry_run:
        return None
    recipe = with_seed(recipe)
    job = engine.make_job(recipe, plan, options.outputs, inputs, options.quiet)
    screen.ready(recipe, job, _warnings(recipe, plan, engine, job.device))
    report = engine.launch(job, start_method, limits)
    if options.report is not None and environment.is_reporter():
        _write_report(options.report, report)
    return report


def decode(options: DecodeOptions, start_method: str | None = None) -> Report:
    """Make the clip of final latents that a run has kept. Raises RequestError and RunFailed as run() does."""
    from hybridgen.engine import launch
    from hybridgen.engine.kept import decode_job

    return launch.launch(decode_job(options), start_method)


def _write_report(path: Path, report: Report) -> None:
    """Write the report, whole. Raises RunFailed (report), which names the clip: it is complete."""
    try:
        with written_whole(path) as part:
            part.write_text(json.dumps(report.as_data(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        problem = f"--report {path}: cannot be written ({error.strerror})"
        raise RunFailed("report", problem, (f"the clip is complete: {report.output}",)) from error


def _composed(options: RunOptions, fields: dict[str, Any]) -> Recipe:
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
    return recipe


def _opened(recipe: Recipe) -> Conditioning:
    """The opened files of a recipe's clip. In a joined job only rank 0 needs them, and only it may have them."""
    if not environment.is_reporter():
        return Conditioning()
    facts = catalogue.find(recipe.model, recipe.checkpoint.revision)
    return open_inputs(recipe.request, facts)


def _filled(recipe: Recipe, options: RunOptions, inputs: Conditioning, screen: Screen) -> Recipe:
    """The recipe with the degrees that the planner chooses, if it is asked to."""
    if options.auto or (options.gpus is not None and is_open(recipe)):
        choice = choose(recipe, options.gpus, options.hardware, inputs.video_frames)
        screen.chosen(choice)
        return choice.recipe
    if options.hardware is not None:
        raise hardware_unused(options.hardware)
    return recipe


class _Runner(NamedTuple):
    """The functions of an engine that make a clip from a plan."""

    make_job: Callable[[Recipe, Plan, Outputs, Conditioning, bool], Any]
    launch: Callable[[Any, str | None, Limits], Report]
    warnings: Callable[[Recipe, Plan], Iterable[str]]
    """Warnings about the plan before it runs."""


def _engine(name: Engine) -> _Runner:
    """The runner of an engine: hybridgen itself, or another."""
    if name is Engine.xfuser:
        from hybridgen.interop import xdit, xfuser

        return _Runner(xfuser.make_job, xfuser.launch, xdit.warnings)
    return _Runner(make_job, _launch, lambda recipe, plan: ())


def _launch(job: Job, start_method: str | None, limits: Limits) -> Report:
    """Run a job on ranks. What only they need is imported here, because a dry run has none."""
    from hybridgen.engine import launch

    return launch.launch(job, start_method, limits)


def _warnings(recipe: Recipe, plan: Plan, engine: _Runner, device: str | None) -> list[str]:
    """Warnings before a job starts: other hardware than the recipe's, crowded cores, the engine's own.

    device: None where it is not known, because nothing starts; what a machine must be asked for is left out.
    """
    world = plan.world_size
    found = [
        mismatch(recipe, device_name(device), world) if device is not None else None,
        crowded(world) if device == "cpu" else None,
        *remarks(recipe, plan),
        *engine.warnings(recipe, plan),
    ]
    return [warning for warning in found if warning]


class _Warnings(Screen):
    """Shows warnings through Python's warnings module."""

    def ready(self, recipe: Recipe, job: Job, found: list[str]) -> None:
        for warning in found:
            warnings.warn(warning, stacklevel=4)  # where generate() was called


def generate(
    prompt: str,
    out: str | Path | None = None,
    *,
    recipe: str | Path | None = None,
    settings: Iterable[str] = (),
    gpus: int | None = None,
    auto: bool = False,
    hardware: str | Path | None = None,
    like: str | Path | None = None,
    engine: Literal["native", "xfuser"] = "native",
    latents: str | Path | None = None,
    report: str | Path | None = None,
    preview: str | Path | None = None,
    overwrite: bool = False,
    hang_timeout: float | None = None,
    join_timeout: float = Limits().join,
    quiet: bool = True,
    **fields: Any,
) -> Report:
    """Make a clip as `hybridgen run` does, and return the report, whose `output` is the video's path.

    prompt: what the clip shows.
    out: the video file; without it the file is named after the prompt and the seed.
    recipe: recipe file, or the name of one that comes with the package.
    settings: changes of the recipe's keys, as in "request.steps=20".
    gpus: number of ranks; without any degree the planner chooses all.
    auto: whether the planner chooses every degree that is not given.
    hardware: name or file of the machine that the planner plans for, by default this machine.
    like: a clip that hybridgen wrote, whose own record is the recipe.
    engine: what runs the plan: hybridgen itself, or xDiT's runner.
    latents: file for the final latents (.safetensors).
    report: file for the report (.json).
    preview: file for a contact sheet (.png).
    overwrite: whether files that exist may be replaced.
    hang_timeout: seconds in which some rank must begin something new; by default a run is never ended for silence.
    join_timeout: seconds in which the ranks of torchrun or srun must meet.
    quiet: whether progress is not shown on stderr.
    fields: the fields of a recipe, named as the flags are: model="demo", cfg=2, attn2d="3x3", steps=20,
        image="first.png". Pairs may be tuples: size=(64, 64).

    Ranks are new processes, and every call starts its own. In a job of torchrun or srun every rank makes the same
    call and gets the same report.

    Raises RequestError when the request cannot be served, RunFailed when a rank failed, TypeError for an unknown
    field or a value of another type.
    """
    given = {name: value for name, value in locals().items() if name in RunOptions.__dataclass_fields__}
    options = of_keywords("generate", RunOptions, given)
    # The caller may have run torch already, and its threads do not survive a fork: start from a clean process.
    made = run(options, {**_as_flags("generate", fields), "prompt": prompt}, _Warnings(), "forkserver")
    assert made is not None
    for warning in made.warnings:
        warnings.warn(warning, stacklevel=2)
    return made


def plan(
    gpus: int | None = None,
    *,
    recipe: str | Path | None = None,
    settings: Iterable[str] = (),
    nodes: int | None = None,
    gpus_per_node: str | int | None = None,
    hardware: str | Path | None = None,
    heads: int | None = None,
    model_facts: str | Path | None = None,
    approximate: bool = False,
    fewer: bool = False,
    anchor: float | None = None,
    max_time: str | float | None = None,
    memory: str | float | None = None,
    objective: Literal["latency", "throughput", "cost"] = "latency",
    price: float | None = None,
    clips: int | None = None,
    **fields: Any,
) -> Recommendation:
    """Rank the ways to spread a clip over GPUs, as `hybridgen plan` does; `.best` is the recommended one.

    gpus: how many there are; without it hosts, or the degrees, say so.
    nodes: number of hosts.
    gpus_per_node: GPUs of a host; or of every host, as in "8,8,4", which ranks fill in order.
    recipe: recipe file, or name of one, as for generate().
    settings: changes of its keys, as for generate().
    hardware: a machine by name, or a YAML file of one; `hybridgen plan --help` names the default.
    heads: attention heads instead of the model's own.
    model_facts: YAML file of a model of your own.
    approximate: whether pipefusion, which changes the clip, competes.
    fewer: whether fewer GPUs are recommended where more are no faster.
    anchor: denoise seconds of this clip that were measured on one GPU.
    max_time: seconds that a clip may take, end to end; or text, as in "20m".
    memory: bytes of a GPU that may be used; or text, as in "40GB".
    objective: the time of one clip, the clips of an hour, or the GPU time of a clip; of the last two plans have copies.
    price: money that one GPU costs an hour.
    clips: how many clips are to be made.
    fields: the fields of a recipe, as for generate(); degrees that are given are kept.

    Nothing is started or opened. Raises RequestError when no plan can be, TypeError for an unknown field or value.
    """
    own = of_keywords("plan", PlanOptions, {k: v for k, v in locals().items() if k in PlanOptions.__dataclass_fields__})
    below = of_keywords("plan", RunOptions, {"recipe": recipe, "settings": settings})
    file = None if below.recipe is None else library.located(below.recipe)
    return plan_for(compose(file, below.settings or [], _as_flags("plan", fields)), own)


def _as_flags(function: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords in the form of the flags with their names. Raises TypeError for unknown names."""
    names = [name for _, name, _ in recipe_options()]
    for name in given:
        if name not in names:
            close = did_you_mean(name, names)
            hint = f"did you mean {close[0]}?" if close else f"options are: {', '.join(sorted(names))}"
            raise TypeError(f"{function}() has no option {name}; {hint}")
    return {name: _as_flag(name, value) for name, value in given.items()}


def _as_flag(name: str, value: Any) -> Any:
    """A tuple in the form of a flag: 64x64, or names in a list."""
    if not isinstance(value, tuple):
        return str(value) if isinstance(value, Path) else value
    return list(value) if name == "order" else "x".join(map(str, value))
