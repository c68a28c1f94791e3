"""A recipe as a file: its one canonical text, and the JSON schema that editors complete keys from. No torch."""

from __future__ import annotations

import re
import sys
import textwrap
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args

from hybridgen.distributed.files import may_write, written_whole
from hybridgen.recipe import typed
from hybridgen.recipe.fields import SCHEMA, Recipe

WIDTH = 100
"""Columns after which text is folded."""
KEYWORDS = ("description", "type", "enum", "additionalProperties", "properties", "items")
"""Keywords of JSON schema that recipes need."""


def plain(value: Any) -> Any:
    """A recipe, or a part of it, as mappings, lists and scalars, in the order of the fields; open fields left out."""
    if is_dataclass(value):
        hints = typed.hints(type(value))
        named = {item.name: _number(hints[item.name], plain(getattr(value, item.name))) for item in fields(value)}
        return {name: held for name, held in named.items() if held not in (None, {}, [])}
    return [plain(part) for part in value] if isinstance(value, list) else value


def _number(hint: Any, value: Any) -> Any:
    """A number for a field that takes numbers and text and holds the text of a number."""
    takes_both = {int, str} <= set(get_args(hint))
    return int(value) if takes_both and isinstance(value, str) and value.isdecimal() else value


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
    """A line `name: value`; long text is folded."""
    import yaml

    folded = textwrap.wrap(value, WIDTH, break_on_hyphens=False, break_long_words=False) if _is_text(value) else []
    if len(folded) > 1 and " ".join(folded) == value:
        return [f"{indent}{name}: >-", *(f"{indent}  {line}" for line in folded)]
    style = None if isinstance(value, dict | list) else False  # None: what holds scalars only is in one line
    text = yaml.safe_dump(
        {name: value}, default_flow_style=style, sort_keys=False, allow_unicode=True, width=sys.maxsize
    )
    return [f"{indent}{line}" for line in text.rstrip("\n").split("\n")]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


def header(text: str) -> str:
    """The comment lines at the top of a file, which stay when it is rewritten."""
    found = re.match(r"(?:[ \t]*(?:#.*)?\n)*", text)
    return found[0] if found and "#" in found[0] else ""


def json_schema() -> dict[str, Any]:
    """JSON schema (draft-07) of a recipe file, made from the typed object; descriptions are the flags' help."""
    found = typed.schema(Recipe)
    body = _inlined(found, found.pop("$defs"))
    body["properties"]["schema"]["const"] = SCHEMA
    title = f"hybridgen recipe, schema {SCHEMA}"
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": title, **body, "required": ["schema"]}


def _inlined(part: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """A schema in the words of draft-07, short enough for editors to show: definitions in place, null left out."""
    if "$ref" in part:
        part = {**definitions[part["$ref"].rpartition("/")[2]], **part}
    kinds = [one for one in part.get("anyOf", ()) if one != {"type": "null"}]
    if kinds:
        part = {**(kinds[0] if len(kinds) == 1 else {"type": [one["type"] for one in kinds]}), **part}
    found = {name: part[name] for name in KEYWORDS if name in part}
    if "properties" in found:
        found["properties"] = {name: _inlined(one, definitions) for name, one in found["properties"].items()}
    if "items" in found:
        found["items"] = _inlined(found["items"], definitions)
    return found


def portable(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with absolute paths of what is in a folder written from there, as a run in it takes them."""
    names = ("image", "last_image", "video")
    given: dict[str, Any] = {
        name: _from(folder, value) for name in names if (value := getattr(recipe.request, name)) is not None
    }
    model = recipe.model and _from(folder, recipe.model)
    return replace(recipe, model=model, request=replace(recipe.request, **given))


def _from(folder: Path, name: str) -> str:
    path = Path(name)
    return f"./{path.relative_to(folder)}" if path.is_absolute() and path.is_relative_to(folder) else name


def save(recipe: Recipe, path: Path, flag: str) -> None:
    """Write a recipe to the file that a flag names. Raises RequestError (output-exists, output-folder)."""
    may_write(flag, path, can_overwrite=False)
    with written_whole(path, overwrite=False) as part:
        part.write_text(dumps(recipe), encoding="utf-8")
