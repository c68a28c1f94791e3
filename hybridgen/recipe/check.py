"""Whether a recipe file can be trusted: strictly parsed, legal, complete, canonical, nothing private. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from typing import Any

from hybridgen.errors import RequestError
from hybridgen.plan.degrees import parse_pair
from hybridgen.recipe import yaml_file
from hybridgen.recipe.fields import (
    SCHEMA,
    STATUSES,
    Measured,
    Recipe,
    Request,
    compose,
    fill,
    flag_of,
    options,
    wrong_keys,
)
from hybridgen.recipe.resolve import broken, unchecked
from hybridgen.recipe.text import dumps, header
from hybridgen.recipe.yaml_file import Document, places

PRIVATE = {
    "an absolute path": r"(?:^|[\s='\"(])(?:/|~/|[A-Za-z]:\\|file://)[\w.~-]+(?:[/\\][^\s'\")]*|$)",
    "a host name": r"\blocalhost\b|\b[\w-]+\.(?:local|lan|internal|intranet|corp)\b",
    "an address": r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b[\w.+-]+@[\w-]+\.[\w.]+",
    "a token": r"\b(?:hf_|ghp_|sk-)[A-Za-z0-9]{16,}",
}
"""What a file that others read must not carry: name, pattern."""

FIGURES = ("denoise_s", "end_to_end_s", "peak_gb")
NEEDS = {
    "verified": ("date", "n", "software"),
    "published": ("source",),
    "planned": (),
}
"""Fields that an entry of this status must have."""
NEVER = {"verified": ("engine",), "published": (), "planned": ("n", "source", "engine")}
"""Fields that would contradict its status."""


@dataclass(frozen=True)
class Finding:
    """One fault of a recipe file."""

    file: str
    line: int
    column: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.rule}: {self.message}"


def check(file: Path) -> list[Finding]:
    """Every fault of a recipe file, in the order of its lines; none: it is as it should be."""
    try:
        document = yaml_file.read(file)
    except yaml_file.Unreadable as error:
        return [Finding(str(file), *(error.place or (1, 1)), "recipe-unreadable", error.problem)]
    if not isinstance(document.content, dict):
        return [Finding(str(file), 1, 1, "recipe-unreadable", "holds no keys; it starts with schema: 1")]
    return sorted(_faults(file, document), key=lambda one: (one.line, one.column))


def _faults(file: Path, document: Document) -> Iterator[Finding]:
    """Faults of a file that is YAML and holds keys."""
    where, loaded = dict(places(document.node)), document.content

    def finding(path: str, rule: str, message: str) -> Finding:
        while path and path not in where:
            path = path.rpartition(".")[0]
        return Finding(str(file), *where.get(path, (1, 1)), rule, message)

    if loaded.get("schema") != SCHEMA:
        said = f"has schema {loaded['schema']}" if "schema" in loaded else "has no key schema"
        yield finding("schema", "recipe-schema", f"{said}; this version reads {SCHEMA}")
        return
    unknown = [
        Finding(str(file), line, column, "recipe-key", fault)
        for line, column, fault in wrong_keys(document.node, Recipe)
    ]
    yield from unknown
    yield from (finding(path, "recipe-private", fault) for path, fault in _private(loaded))
    recipe = Recipe()
    try:
        fill(recipe, loaded, str(file))
    except RequestError as error:
        if error.rule == "recipe-value":
            message = error.message.removeprefix(f"{file}: ")
            yield finding(message.split()[0], error.rule, message)
        return
    yield from (finding(path, rule, message) for path, rule, message in _content(recipe))
    if not unknown:
        yield from _form(file, document.text, recipe)


def fixed(file: Path) -> str:
    """The file's canonical text. Raises RequestError where it cannot be read, or has comments that would be lost."""
    text = file.read_text(encoding="utf-8")
    recipe = compose(file, [], {})
    if (line := _late_comment(text)) is not None:
        raise RequestError.told("recipe-comment", f"{file}:{line}: this comment would be lost")
    return header(text) + dumps(recipe)


def _private(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, fault) of every text that names something of one machine or person."""
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _private(part, f"{path}.{name}" if path else str(name))
    elif isinstance(value, str):
        for what, pattern in PRIVATE.items():
            if match := re.search(pattern, value):
                yield path, f"{path} carries {what}: {match[0].strip()}"
                break


def _content(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """(path, rule, message) of what the recipe says."""
    try:
        plan = unchecked(recipe)
    except RequestError as error:
        yield _path_of_flag(error), error.rule, error.message
    else:
        yield from ((_path_of_flag(one), one.rule, one.message) for one in broken(plan))
        hardware, world = recipe.hardware, plan.world_size
        if hardware.gpus is not None and hardware.gpus != world:
            yield "hardware.gpus", "recipe-hardware", f"hardware.gpus is {hardware.gpus}, and the degrees make {world}"
        if hardware.per_node is not None and (hardware.per_node < 1 or (hardware.gpus or world) % hardware.per_node):
            yield "hardware.per_node", "recipe-hardware", f"{hardware.per_node} GPUs a node do not divide {world}"
    if not recipe.license:
        yield "license", "recipe-license", "the file has no license; an SPDX name such as Apache-2.0 is needed"
    if recipe.checkpoint.revision and not re.fullmatch(r"[0-9a-f]{40}", recipe.checkpoint.revision):
        yield "checkpoint.revision", "recipe-revision", f"{recipe.checkpoint.revision} is no commit of 40 hex digits"
    for number, one in enumerate(recipe.measured):
        for name, message in _measured(one):
            yield f"measured.{number}.{name}", "recipe-measured", message


def _measured(one: Measured) -> Iterator[tuple[str, str]]:
    """(field, message) of what is wrong with a result."""
    if one.status not in STATUSES:
        said = f"status {one.status} is unknown" if one.status else "the entry has no status"
        yield "status", f"{said}; nearest: {', '.join(STATUSES)}"
        return
    if missing := [name for name in NEEDS[one.status] if not getattr(one, name)]:
        yield "status", f"an entry that is {one.status} needs {' and '.join(missing)}"
    for name in NEVER[one.status]:
        if getattr(one, name):
            yield name, f"an entry that is {one.status} has no {name}"
    if all(getattr(one, name) is None for name in FIGURES):
        yield "status", f"the entry has no figure; it needs one of {', '.join(FIGURES)}"
    for name in (*FIGURES, "n"):
        if (value := getattr(one, name)) is not None and not 0 < value < float("inf"):
            yield name, f"{name} is {value:g} and must be above 0"
    yield from _measured_request(one.request)
    if one.date is not None and not _is_day(one.date):
        yield "date", f"date is {one.date} and must be YYYY-MM-DD"


def _measured_request(request: Request) -> Iterator[tuple[str, str]]:
    """The same of the request that was measured, which another engine may have counted in its own way (80 frames)."""
    for name in ("frames", "steps", "fps"):
        if (value := getattr(request, name)) is not None and value < 1:
            yield f"request.{name}", f"request.{name} is {value} and must be above 0"
    for name in ("guidance", "guidance_2"):
        if (value := getattr(request, name)) is not None and not isfinite(value):
            yield f"request.{name}", f"request.{name} is {value} and must be a number"
    try:
        if request.size is not None:
            parse_pair("size", request.size, "width x height", "1280x720")
    except RequestError as error:
        yield "request.size", f"request.size is {error.value} and {error.problem}"


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _path_of_flag(error: RequestError) -> str:
    """The key of the flag that an error is about; "" where there is none."""
    paths = {flag_of(item): f"{section}.{name}" if section else name for section, name, item in options()}
    return paths.get(f"--{error.flag}", "")


def _form(file: Path, text: str, recipe: Recipe) -> Iterator[Finding]:
    """Whether the bytes are the canonical ones."""
    if (late := _late_comment(text)) is not None:
        yield Finding(str(file), late, 1, "recipe-comment", "a comment here is lost; put it at the top or into notes")
        return
    wanted = header(text) + dumps(recipe)
    if text != wanted:
        lines = wanted.splitlines()
        pairs = zip_longest(text.splitlines(), lines)
        line = next((n for n, (found, should) in enumerate(pairs, 1) if found != should), len(lines))
        should = f": {lines[line - 1]}" if line <= len(lines) else " nothing here"
        yield Finding(str(file), line, 1, "recipe-form", f"not canonical; recipes check --fix writes{should}")


def _late_comment(text: str) -> int | None:
    """Line of the first comment after the top of the file, None if there is none."""
    import yaml

    top = header(text)
    body, end = text[len(top) :], 0
    for token in yaml.scan(body):
        if "#" in (gap := body[end : token.start_mark.index]):
            return top.count("\n") + body.count("\n", 0, end + gap.index("#")) + 1
        end = max(end, token.end_mark.index)
    return None
