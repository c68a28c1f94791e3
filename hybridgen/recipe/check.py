"""Whether a recipe file can be trusted: strictly parsed, legal, complete, canonical, nothing private. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from hybridgen.errors import Place, RequestError, counted
from hybridgen.plan.numbers import parse_pair
from hybridgen.recipe import resolve, source
from hybridgen.recipe.compose import read, wrong_schema
from hybridgen.recipe.fields import FILE, SCHEMA, STATUSES, Measured, Recipe, Request, keys_of
from hybridgen.recipe.source import Source
from hybridgen.recipe.text import dumps, header
from hybridgen.recipe.typed import Keys, dotted, shown

RULES = {
    "recipe-comment": "Rewriting a recipe in canonical form would lose its comments; `notes` keeps them.",
}

PRIVATE = {
    "an absolute path": r"(?:^|[\s='\"(])(?:/|~/|[A-Za-z]:\\|file://)[\w.~-]+(?:[/\\][^\s'\")]*|$)",
    "a host name": r"\blocalhost\b|\b[\w-]+\.(?:local|lan|internal|intranet|corp)\b",
    "an address": r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b[\w.+-]+@[\w-]+\.[\w.]+",
    "a token": r"\b(?:hf_|ghp_|sk-)[A-Za-z0-9]{16,}",
}
"""Private content that a shared file must not carry: name and pattern."""

FIGURES = ("denoise_s", "end_to_end_s", "peak_gb")
NEEDS = {
    "verified": ("date", "n", "software"),
    "published": ("source",),
    "planned": (),
}
"""Fields that an entry of this status must have."""
NEVER = {"verified": ("engine",), "published": (), "planned": ("n", "source", "engine")}
"""Fields that would contradict its status."""


def check(file: Path) -> list[RequestError]:
    """Every fault of a recipe file with its place, in the order of its lines."""
    try:
        found = source.read(file, FILE)
    except RequestError as error:
        place = error.place or Place(str(file), 1, 1)
        return [error.changed(flag="", value=None, place=place)]
    return sorted(_faults(found), key=lambda one: one.place or ())


def _faults(found: Source) -> Iterator[RequestError]:
    """Faults of a file that is valid YAML with keys."""
    if found.content.get("schema") != SCHEMA:
        yield wrong_schema(found)
        return
    recipe, misfits = found.read_as(Recipe)
    yield from misfits
    yield from (found.fault(keys, problem, rule="recipe-private") for keys, problem in _private(found.content))
    if recipe is None:
        return
    told = [one.place for one in misfits]
    others = [*_of_plan(found, recipe, bool(misfits)), *_of_evidence(found, recipe)]
    yield from (one for one in others if one.place not in told)
    if not misfits:
        yield from _form(found, recipe)


SHARED = ("recipe-comment", "recipe-form", "recipe-hardware", "recipe-license", "recipe-measured", "recipe-private")
"""Faults of a file that is to be shared; it can be run all the same."""


def with_others(error: RequestError, file: Path | None) -> RequestError:
    """The error of a run, with all other faults of its recipe that keep it from running."""
    if file is None or error.place is None or error.place.file != str(file):
        return error
    found = [one for one in check(file) if one.rule not in SHARED]
    error.others = tuple(one for one in found if one.message != error.message)
    return error


def fixed(file: Path) -> str:
    """The file's canonical text. Raises RequestError where it cannot be read, or has comments that would be lost."""
    found = read(file)
    if (line := _late_comment(found.text)) is not None:
        place = Place(str(file), line, 1)
        raise RequestError("recipe-comment", "", None, "a comment here would be lost", place=place)
    return header(found.text) + dumps(found.as_(Recipe))


def _private(value: Any, keys: Keys = ()) -> Iterator[tuple[Keys, str]]:
    """Keys and problem of every text that names something private to one machine or person."""
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _private(part, (*keys, name))
    elif isinstance(value, str):
        for what, pattern in PRIVATE.items():
            if match := re.search(pattern, value):
                yield keys, f"carries {what}: {match[0].strip()}"
                break


def _of_plan(found: Source, recipe: Recipe, is_part: bool) -> Iterator[RequestError]:
    """Faults of the plan: rules that it breaks, and hardware that does not match it, unless keys are left out."""
    faults, plan = resolve.faults(recipe)
    yield from (_at_key(found, one) for one in faults)
    if plan is None or is_part:
        return
    gpus, per_node, world = recipe.hardware.gpus, recipe.hardware.per_node, plan.world_size
    if gpus is not None and gpus != world:
        yield found.fault(("hardware", "gpus"), f"the degrees make {world}", gpus, [world], "recipe-hardware")
    if per_node is not None and (per_node < 1 or (gpus or world) % per_node):
        yield found.fault(
            ("hardware", "per_node"), f"does not divide {counted(world, 'GPU')}", per_node, (), "recipe-hardware"
        )


def _at_key(found: Source, error: RequestError) -> RequestError:
    """The error of a flag, moved to the key with the same meaning."""
    keys = keys_of(error.flag)
    return error.changed(flag=dotted(keys) or error.flag, place=found.place(keys), tries=())


def _of_evidence(found: Source, recipe: Recipe) -> Iterator[RequestError]:
    """Faults of licence, revision and results."""
    revision = recipe.checkpoint.revision
    if not recipe.license:
        yield found.fault(("license",), "is missing; an SPDX name such as Apache-2.0 is needed", rule="recipe-license")
    if revision and not re.fullmatch(r"[0-9a-f]{40}", revision):
        problem = "is not a commit of 40 hex digits"
        yield found.fault(("checkpoint", "revision"), problem, revision, rule="recipe-revision")
    for number, one in enumerate(recipe.measured):
        for fault in _measured(one):
            keys = ("measured", number, *fault.keys)
            yield found.fault(keys, fault.problem, fault.value, fault.nearest, "recipe-measured")


class Wrong(NamedTuple):
    """A fault of one part of a result."""

    keys: Keys
    problem: str
    value: object = None
    nearest: tuple[str, ...] = ()


def _measured(one: Measured) -> Iterator[Wrong]:
    """Faults of a result."""
    status = ("status",)
    if one.status not in STATUSES:
        yield Wrong(status, "is not known" if one.status else "is missing", one.status, STATUSES)
        return
    if missing := [name for name in NEEDS[one.status] if not getattr(one, name)]:
        yield Wrong(status, f"an entry that is {one.status} needs {' and '.join(missing)}")
    for name in NEVER[one.status]:
        if getattr(one, name):
            yield Wrong((name,), f"an entry that is {one.status} does not have it")
    if all(getattr(one, name) is None for name in FIGURES):
        yield Wrong(status, f"the entry has no figure; it needs one of {', '.join(FIGURES)}")
    for name in (*FIGURES, "n"):
        if (value := getattr(one, name)) is not None and not 0 < value < float("inf"):
            yield Wrong((name,), "must be above 0", f"{value:g}")
    yield from _measured_request(one.request)
    if one.date is not None and not _is_day(one.date):
        yield Wrong(("date",), "must be a day, YYYY-MM-DD", one.date)


def _measured_request(request: Request) -> Iterator[Wrong]:
    """Faults of the request that was measured; another engine may have counted its frames differently (80)."""
    for name in ("frames", "steps", "fps"):
        if (value := getattr(request, name)) is not None and value < 1:
            yield Wrong(("request", name), "must be above 0", value, ("1",))
    for name in ("guidance", "guidance_2"):
        if (value := getattr(request, name)) is not None and not isfinite(value):
            yield Wrong(("request", name), "must be a number", value)
    try:
        if request.size is not None:
            parse_pair("size", request.size, "width x height")
    except RequestError:
        yield Wrong(("request", "size"), "must be width x height, as in 1280x720", shown(request.size))


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _form(found: Source, recipe: Recipe) -> Iterator[RequestError]:
    """The fault of a file whose bytes are not the canonical ones."""

    def fault(line: int, rule: str, problem: str) -> RequestError:
        return RequestError(rule, "", None, problem, place=Place(str(found.file), line, 1))

    if (late := _late_comment(found.text)) is not None:
        yield fault(late, "recipe-comment", "a comment here is lost; put it at the top or into notes")
        return
    wanted = header(found.text) + dumps(recipe)
    if found.text != wanted:
        lines = wanted.splitlines()
        pairs = zip_longest(found.text.splitlines(), lines)
        line = next((n for n, (is_, should) in enumerate(pairs, 1) if is_ != should), len(lines))
        should = f": {lines[line - 1]}" if line <= len(lines) else " nothing here"
        yield fault(line, "recipe-form", f"not canonical; recipes check --fix writes{should}")


def _late_comment(text: str) -> int | None:
    """Line of the first comment below the top of the file; None if there is none."""
    import yaml

    top = header(text)
    body, end = text[len(top) :], 0
    for token in yaml.scan(body, source.loader()):
        if "#" in (gap := body[end : token.start_mark.index]):
            return top.count("\n") + body.count("\n", 0, end + gap.index("#")) + 1
        end = max(end, token.end_mark.index)
    return None
