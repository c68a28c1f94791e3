"""hybridgen from Python: a clip, and a plan. No torch."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from hybridgen.api.spine import Screen, run
from hybridgen.engine.job import Job
from hybridgen.engine.options import Limits, RunOptions
from hybridgen.engine.report import Report
from hybridgen.planner.choose.ask import Recommendation
from hybridgen.planner.choose.options import PlanOptions
from hybridgen.planner.choose.recommend import plan_for
from hybridgen.recipe import library
from hybridgen.recipe.compose import compose
from hybridgen.recipe.fields import Recipe, as_flags
from hybridgen.recipe.flags import of_keywords
from hybridgen.recipe.resolve import in_given_words


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
    preview_every: int | None = None,
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
    preview_every: number of steps after which a frame is shown beside the clip, again and again, as NAME.preview.png.
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
    made = run(options, {**as_flags("generate", fields), "prompt": prompt}, _Warnings(), "forkserver")
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
    anchor: str | float | None = None,
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
    anchor: denoise seconds of this clip, measured on one GPU; or on several, as in "8:54.3:cfg2 ulysses4".
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
    composed = compose(file, below.settings or [], as_flags("plan", fields))
    with in_given_words(composed.parallel):
        return plan_for(composed, own)
