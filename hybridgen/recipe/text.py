"""A recipe as a file: its one canonical text, and the JSON schema that editors complete keys from. No torch."""

from __future__ import annotations

import re
import sys
import textwrap
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from hybridgen.distributed.files import may_write, written_whole
from hybridgen.recipe.fields import SCHEMA, Recipe, held_by

WIDTH = 100
"""Columns beyond which text is folded."""
JSON_TYPES = {"int": "integer", "float": "number", "str": "string", "list": "array"}


def plain(value: Any) -> Any:
    """A recipe, or a part of it, as mappings, lists and scalars, in the order of the fields; open fields left out."""
    if is_dataclass(value):
        named = {item.name: _number(item, plain(getattr(value, item.name))) for item in fields(value)}
        return {name: held for name, held in named.items() if held not in (None, {}, [])}
    return [plain(part) for part in value] if isinstance(value, list) else value


def _number(item: Any, value: Any) -> Any:
    """A number where a field takes numbers and text, and holds the text of one."""
    return int(value) if "int | str" in str(item.type) and str(value).isdigit() else value


def dumps(recipe: Recipe) -> str:
    """The recipe's canonical YAML: equal recipes are equal bytes, and reading it gives the recipe back."""
    lines: list[str] = []
    for name, value in plain(recipe).items():
        if name != "measured":
            lines += _line(name, value, "")
            continue
        lines.append(f"{name}:")
        for part in value:
            found = [line for key, held in part.items() for line in _line(key, held, "    ")] or ["    {}"]
            lines += [f"  - {found[0].lstrip()}", *found[1:]]
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any, indent: str) -> list[str]:
    """`name: value` in one line; long text is folded."""
    import yaml

    folded = textwrap.wrap(value, WIDTH, break_on_hyphens=False, break_long_words=False) if _is_text(value) else []
    if len(folded) > 1 and " ".join(folded) == value:
        return [f"{indent}{name}: >-", *(f"{indent}  {line}" for line in folded)]
    style = None if isinstance(value, dict | list) else False  # None: what holds scalars only is in one line
    text = yaml.safe_dump(
        {name: value}, default_flow_style=style, sort_keys=False, allow_unicode=True, width=sys.maxsize
    )
    return [f"{indent}{line}" for line in text.rstrip().splitlines()]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


def header(text: str) -> str:
    """The comment lines at the top of a file, which stay when it is rewritten."""
    found = re.match(r"(?:[ \t]*(?:#.*)?\n)*", text)
    return found[0] if found and "#" in found[0] else ""


def json_schema() -> dict[str, Any]:
    """JSON schema (draft-07) of a recipe file, made from the typed object; descriptions are the flags' help."""
    body = _object(Recipe)
    body["properties"]["schema"]["const"] = SCHEMA
    title = f"hybridgen recipe, schema {SCHEMA}"
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": title, **body, "required": ["schema"]}


def _object(kind: Any) -> dict[str, Any]:
    properties = {item.name: {"description": item.metadata["help"], **_type(item)} for item in fields(kind)}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _type(item: Any) -> dict[str, Any]:
    words = re.findall(r"\w+", str(item.type))
    if (inner := held_by(item)) is not None:
        return {"type": "array", "items": _object(inner)} if "list" in words else _object(inner)
    if "dict" in words:
        return {"type": "object", "additionalProperties": {"type": "string"}}
    types = [JSON_TYPES[word] for word in words if word in JSON_TYPES]
    found: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
    if "list" in words:
        found["items"] = {"type": "string"}
    if item.metadata.get("choices"):
        found["enum"] = list(item.metadata["choices"])
    return found


def save(recipe: Recipe, path: Path, flag: str) -> None:
    """Write a recipe to the file that a flag names. Raises RequestError (output-exists, output-folder)."""
    may_write(flag, path, can_overwrite=False)
    with written_whole(path, overwrite=False) as part:
        part.write_text(dumps(recipe), encoding="utf-8")
