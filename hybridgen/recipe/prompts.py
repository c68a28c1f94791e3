"""Files of many clips: one clip a line, as text, CSV or JSON lines. No torch.

a lighthouse in a storm                                   .txt: the line is the prompt; # starts a comment
prompt,seed,out                                           .csv: the first row names keys of the request, or out
{"prompt": "a lighthouse", "seed": 3, "steps": 20}        .jsonl: an object with such keys
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hybridgen.distributed.files import read_bytes
from hybridgen.errors import Place, RequestError, did_you_mean
from hybridgen.recipe import typed
from hybridgen.recipe.fields import Request

RULE = "prompts-file"
RULES = {
    RULE: "Every line of the file is one clip. A .csv or .jsonl may set any key of the request for it, and out, the "
    "name of its file; what a line does not set is as the flags and the recipe say.",
}
OUT = "out"
KEYS = (*(item.name for item in fields(Request)), OUT)
"""Keys that a line may have."""
MOST_BYTES = 64 * 2**20
"""Bytes of the largest file that is read."""
MOST_CLIPS = 10**6


@dataclass(frozen=True)
class Line:
    """One clip of a file."""

    place: Place
    given: dict[str, Any]
    """Fields of the request by name, and OUT."""
    fault: RequestError | None = None
    """Why the line is no clip."""


def read(name: str) -> list[Line]:
    """The clips of a file, or of stdin for "-", which is text or JSON lines.

    A line with a fault comes with it, so that it alone is refused. Raises RequestError (prompts-file) for a file that
    cannot be read or has no clip.
    """
    text = read_text(name, MOST_BYTES, RULE, "prompts", name)
    ending = Path(name).suffix.lower() if name != "-" else ".jsonl" if text.lstrip()[:1] == "{" else ".txt"
    readers = {".txt": _plain, ".csv": _table, ".jsonl": _objects}
    if ending not in readers:
        raise _refused(name, "is no .txt, .csv or .jsonl", "a file with one of these endings")
    found = [line for line, _ in zip(readers[ending](name, text), range(MOST_CLIPS + 1), strict=False)]
    if not found:
        raise _refused(name, "holds no clip", "one prompt a line")
    if len(found) > MOST_CLIPS:
        raise _refused(name, f"holds more than {MOST_CLIPS:,} clips", "several files")
    return found


def _refused(name: str, problem: str, nearest: str = "") -> RequestError:
    return RequestError(RULE, "prompts", name, problem, nearest)


def read_text(name: str, most: int, rule: str, flag: str, value: str, near: str = "") -> str:
    """The text of a file, or of stdin for "-", of at most so many bytes.

    rule, flag, value: those of the error, which proposes `near`. Raises RequestError.
    """
    try:
        if name == "-":
            found = sys.stdin.buffer.read(most + 1) if sys.stdin is not None else b""
        else:
            found = read_bytes(Path(name), most + 1)
        if len(found) > most:
            raise RequestError(rule, flag, value, f"has more than {most:,} bytes", near)
        return found.decode("utf-8-sig")
    except OSError as error:
        raise RequestError(rule, flag, value, f"cannot be read: {error.strerror}", near) from error
    except UnicodeDecodeError as error:
        raise RequestError(rule, flag, value, "is not text in UTF-8", near) from error


def _plain(name: str, text: str) -> Iterator[Line]:
    for number, line in enumerate(text.splitlines(), start=1):
        if (prompt := line.strip()) and not prompt.startswith("#"):
            yield Line(Place(name, number, 1), {"prompt": prompt})


def _table(name: str, text: str) -> Iterator[Line]:
    rows = csv.reader(io.StringIO(text), strict=True)
    try:
        head = [cell.strip() for cell in next(rows, [])]
        for key in head:
            _known(key, Place(name, 1, 1))
        for row in rows:
            place = Place(name, rows.line_num, 1)
            if len(row) > len(head):
                problem = f"the row has {len(row)} cells, and the first row names {len(head)} keys"
                yield Line(
                    place, {}, RequestError(RULE, "", None, problem, "quotes around text with commas", (), place)
                )
            elif any(cell.strip() for cell in row):
                given = {key: cell.strip() for key, cell in zip(head, row, strict=False) if cell.strip()}
                yield _line(place, {key: _number(key, cell) for key, cell in given.items()})
    except csv.Error as error:
        place = Place(name, rows.line_num, 1)
        raise RequestError(RULE, "", None, f"is not CSV: {error}", place=place) from error


def _number(key: str, cell: str) -> Any:
    """The number of a cell whose key takes one; other text as it is."""
    hint = typed.plain(typed.hints(Request).get(key.replace("-", "_")))
    return typed.as_number(cell) if hint in (int, float) else cell


def _objects(name: str, text: str) -> Iterator[Line]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        place = Place(name, number, 1)
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            yield _line(place, found)
        else:
            yield Line(place, {}, RequestError(RULE, "", None, "is not a JSON object", "one object a line", (), place))


def _line(place: Place, given: dict[str, Any]) -> Line:
    """A clip of these keys, or a line with the fault of the first that is not one or has a wrong value."""
    named = {str(key).replace("-", "_"): value for key, value in given.items() if value is not None}
    try:
        for key in named:
            _known(key, place)
        asked = {key: value for key, value in named.items() if key != OUT}
        if not isinstance(named.get(OUT, ""), str):
            raise RequestError(RULE, OUT, named[OUT], "must be text", (), (), place)
        for one in typed.convert(Request, asked)[1]:
            key = str(one.keys[0]) if one.keys else ""
            raise RequestError(RULE, key, one.value, one.problem, one.nearest, (), place)
    except RequestError as fault:
        return Line(place, {}, fault)
    return Line(place, named)


def _known(key: str, place: Place) -> None:
    """Raise RequestError for a key that a line cannot have."""
    if key.replace("-", "_") not in KEYS:
        near = did_you_mean(key, KEYS, 2) or KEYS
        raise RequestError(RULE, key, None, "is no key of a request, or out", near, (), place)
