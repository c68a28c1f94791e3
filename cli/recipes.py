"""hybridgen recipes: list, show, check, schema, export, import."""

from __future__ import annotations

import json
import os
import shlex
from contextlib import suppress
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from hybridgen.cli import draw, text
from hybridgen.cli.options import offered
from hybridgen.cli.verb import Verb
from hybridgen.distributed.files import may_write, written_whole
from hybridgen.errors import RequestError, counted
from hybridgen.plan.plan import Plan
from hybridgen.planner.choose.report import input_flags
from hybridgen.recipe import library
from hybridgen.recipe.compose import compose
from hybridgen.recipe.fields import Measured, Recipe, keys_of
from hybridgen.recipe.resolve import resolve
from hybridgen.recipe.typed import dotted

app = typer.Typer(help="Recipes: list, show, check, and exchange with other engines.", no_args_is_help=True)

ONE = Annotated[
    Path,
    typer.Argument(
        help="Recipe file, or a name that `recipes list` shows.",
        metavar="RECIPE",
        autocompletion=offered(library.names),
    ),
]
MANY = Annotated[
    Optional[list[Path]],
    typer.Argument(help="Recipe files, and folders of them; by default those of the package.", metavar="[FILE]..."),
]
CHECKED = Annotated[
    Optional[list[Path]],
    typer.Argument(
        help="Recipe files, and folders of them; by default ./recipes, or those of the package.", metavar="[FILE]..."
    ),
]
SET = Annotated[Optional[list[str]], typer.Option("--set", help="Change one key first.", metavar="KEY=VALUE")]
OUT = Annotated[Optional[Path], typer.Option("--out", "-o", help="Write here, not to stdout.", metavar="FILE")]
OVERWRITE = Annotated[bool, typer.Option(help="Replace the file if it exists.")]
JSON = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
NO_RESULT = {"status": "-", "hardware": "", "denoise_s": None, "end_to_end_s": None}


class Target(str, Enum):
    """Engines that a recipe can be written for."""

    xdit = "xdit"
    trtllm = "trtllm"


FORMS = {Target.xdit: "xDiT's command line", Target.trtllm: "TensorRT-LLM's YAML"}
"""What is written for each target."""


def planned(recipe: Recipe) -> Plan:
    """The recipe's plan. Raises RequestError without what to try, which would be flags of `run`."""
    try:
        return resolve(recipe)
    except RequestError as error:
        raise error.changed(tries=()) from error


@app.command("list", cls=Verb)
def list_(files: MANY = None, as_json: JSON = False) -> None:
    """The recipes of the package, or the given ones: split and results."""
    paths = library.located_all(files) or library.files()
    rows = [_summary(path, compose(path, [], {})) for path in paths]
    if as_json:
        text.answer(json.dumps(rows, indent=2))
        return
    head = ("name", "model", "split", "status", "measured on", "GPUs", "denoise s", "end to end s")
    table = [
        (
            *((row["name"], row["model"], row["split"]) if number == 0 else ("", "", "")),
            one["status"] or "",
            one["hardware"] or "",
            str(row["gpus"]),
            *("-" if one[name] is None else f"{one[name]:g}" for name in ("denoise_s", "end_to_end_s")),
        )
        for row in rows
        for number, one in enumerate(row["measured"] or [NO_RESULT])
    ]
    text.answer(
        *text.fitting(
            head, table, ("model", "measured on", "GPUs", "end to end s"), ("GPUs", "denoise s", "end to end s")
        )
    )


def _summary(path: Path, recipe: Recipe) -> dict[str, Any]:
    plan = planned(recipe)
    clip = plan.clip
    return {
        "name": path.stem,
        "file": str(path),
        "model": plan.facts.name,
        "gpus": plan.world_size,
        "split": str(plan.degrees),
        "clip": f"{clip.width}x{clip.height}, {counted(clip.frames, 'frame')}, {counted(clip.steps, 'step')}",
        "hardware": recipe.hardware.name,
        "measured": [
            {
                "status": one.status,
                "hardware": one.hardware or recipe.hardware.name,
                "denoise_s": one.denoise_s,
                "end_to_end_s": one.end_to_end_s,
                "date": one.date,
            }
            for one in recipe.measured
        ],
    }


@app.command(cls=Verb)
def show(recipe: ONE, as_json: JSON = False) -> None:
    """One recipe: what it is for, its plan, its results and where they come from, and how to run it."""
    file = library.located(recipe)
    found = compose(file, [], {})
    plan = planned(found)
    if as_json:
        text.answer(json.dumps({**_summary(file, found), "recipe": asdict(found)}, indent=2))
        return
    hardware = found.hardware
    machine = [
        hardware.name,
        counted(hardware.gpus, "GPU") if hardware.gpus else "",
        hardware.link,
    ]
    lines = {
        "about": found.notes,
        "for": ", ".join(part for part in machine if part),
        "model": f"{plan.facts.source}, {found.checkpoint.license or plan.facts.licence or 'licence not given'}"
        + (f", revision {plan.facts.revision}" if plan.facts.revision else ""),
    }
    name = file.stem if file in library.files() else file
    text.answer(
        *(f"{label:11}{value}" for label, value in lines.items() if value),
        "",
        *draw.head(plan),
        "",
        *([line for one in found.measured for line in _result(one, found)] or ["measured   nothing yet"]),
        "",
        f"run        {shlex.join(['hybridgen', 'run', '--recipe', str(name), *input_flags(plan, found.request)])}",
    )


def _result(one: Measured, recipe: Recipe) -> list[str]:
    """One result in words, figures first."""
    figures = {
        "denoise": f"{one.denoise_s:g} s" if one.denoise_s else "",
        "end to end": f"{one.end_to_end_s:g} s" if one.end_to_end_s else "",
        "peak": f"{one.peak_gb:g} GB" if one.peak_gb else "",
    }
    where = " with ".join(filter(None, [one.hardware or recipe.hardware.name, one.engine or "hybridgen"]))
    request = ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in _given(one.request).items())
    about = {
        "request": request,
        "runs": str(one.n or ""),
        "date": one.date,
        "software": ", ".join(f"{k} {v}" for k, v in (one.software or {}).items()),
        "kernel": one.kernel,
        "source": one.source,
        "notes": one.notes,
    }
    found = ", ".join(f"{name} {value}" for name, value in figures.items() if value)
    return [f"{one.status or '-':11}{found}; on {where}", *(f"  {k:9}{v}" for k, v in about.items() if v)]


def _given(section: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(section).items() if value is not None}


@app.command(cls=Verb)
def check(
    files: CHECKED = None,
    fix: Annotated[bool, typer.Option("--fix", help="Rewrite files in canonical form first.")] = False,
    as_json: JSON = False,
) -> None:
    """Whether recipe files parse strictly, plan, are complete and canonical. Exit code 1 if one does not."""
    from hybridgen.recipe.check import check as faults_of

    paths = library.located_all(files or [library.HERE] * library.HERE.is_dir())
    whose = "" if files else f" of {library.HERE}/" if paths else " of the package"
    paths = paths or library.files()
    for path in paths if fix else []:
        _rewrite(path)
    found = [fault for path in paths for fault in faults_of(path)]
    if as_json:
        text.answer(json.dumps([_as_data(fault) for fault in found], indent=2))
    elif os.environ.get("GITHUB_ACTIONS") == "true":
        for one in found:
            assert one.place is not None
            text.annotate(*one.place, one.rule, one.remark)
    else:
        text.answer(*(f"{one.place}: {one.rule}: {one.remark}" for one in found))
    verdict = counted(len(found), "fault") if found else "all good"
    text.say(f"{counted(len(paths), 'file')}{whose}, {verdict}")
    if found:
        raise typer.Exit(1)


def _rewrite(path: Path) -> None:
    """Rewrite a file in canonical form; a file that cannot be rewritten is left to the check."""
    from hybridgen.recipe.check import fixed

    with suppress(RequestError, OSError):
        if (after := fixed(path)) != path.read_text(encoding="utf-8"):
            with written_whole(path) as part:
                part.write_text(after, encoding="utf-8")
            text.say(f"rewrote  {path}")


def _as_data(fault: RequestError) -> dict[str, Any]:
    """A fault as data: file, line and column in addition to the parts of every error."""
    data = fault.as_data()
    return {**data.pop("place"), **data, "message": fault.remark}


@app.command(cls=Verb)
def schema() -> None:
    """JSON schema (draft-07) of recipe files, for editors."""
    from hybridgen.recipe.text import json_schema

    text.answer(json.dumps(json_schema(), indent=2))


@app.command(cls=Verb)
def export(
    recipe: ONE,
    to: Annotated[Target, typer.Option("--to", help=f"Target: {' or '.join(FORMS[one] for one in Target)}.")],
    settings: SET = None,
    out: OUT = None,
    overwrite: OVERWRITE = False,
) -> None:
    """Write a recipe for another engine. What it cannot do is refused; what it does differently is a warning."""
    from hybridgen.interop import trtllm, xdit

    found = compose(library.located(recipe), settings or [], {})
    plan = planned(found)
    try:
        made = {Target.xdit: xdit.export, Target.trtllm: trtllm.export}[to](found, plan)
    except RequestError as error:
        raise error.changed(tries=_exports(error, recipe, to, settings or [])) from error
    text.say(*(f"warning: {warning}" for warning in made.warnings))
    _write(made.text, out, overwrite)


def _exports(error: RequestError, recipe: Path, to: Target, settings: list[str]) -> list[str]:
    """The export command with changes of flags as changes of keys."""
    changes = [change for change in error.tries if not isinstance(change, str)]
    keys = [[f"{dotted(keys_of(flag))}={value or 'null'}" for flag, value in change.items()] for change in changes]
    start = ["hybridgen", "recipes", "export", str(recipe), "--to", to.value]
    return [shlex.join([*start, *(word for key in [*settings, *found] for word in ("--set", key))]) for found in keys]


@app.command("import", cls=Verb)
def import_(
    file: Annotated[Path, typer.Argument(help="Configuration of TensorRT-LLM VisualGen.", metavar="FILE")],
    model: Annotated[Optional[str], typer.Option(help="Model, if the file names none.", metavar="NAME")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse keys that are not known here.")] = False,
    out: OUT = None,
    overwrite: OVERWRITE = False,
) -> None:
    """Write a recipe from a TensorRT-LLM VisualGen configuration, with current or older keys."""
    from hybridgen.interop.trtllm_import import load
    from hybridgen.recipe.text import dumps

    recipe, left_out = load(file, model, strict)
    planned(recipe)
    text.say(*(f"warning: left out or changed: {one}" for one in left_out))
    _write(dumps(recipe), out, overwrite)


def _write(content: str, out: Path | None, overwrite: bool) -> None:
    """Write text to a file, whose path is then the answer, or to stdout."""
    if out is None:
        text.answer(content.rstrip("\n"))
        return
    may_write("out", out, overwrite=overwrite)
    with written_whole(out) as part:
        part.write_text(content, encoding="utf-8")
    text.answer(str(out))
