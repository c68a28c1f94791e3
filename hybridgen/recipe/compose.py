"""A recipe from its file, settings and flags; precedence as fields.py says. No torch."""

from __future__ import annotations

import math
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin

from hybridgen.errors import RequestError
from hybridgen.recipe import source, typed
from hybridgen.recipe.fields import FILE, PARTS, SCHEMA, SECTIONS, Recipe, options
from hybridgen.recipe.flags import name_of
from hybridgen.recipe.source import Source
from hybridgen.recipe.typed import LARGEST, dotted, hints, shown
from hybridgen.strategies.registry import SHORTHANDS


def compose(
    file: Path | None, settings: list[str], flags: dict[str, Any], below: dict[str, Any] | None = None
) -> Recipe:
    """The recipe from a file, --set entries and flags ({field name: value or None}).

    `below` is checked content of a recipe that takes the place of a file.
    Raises RequestError: recipe-unreadable, recipe-schema, recipe-key, recipe-value.
    """
    content = (below or {}) if file is None else read(file).content
    over: dict[str, Any] = {}
    for setting in settings:
        over = merged(over, _setting(setting))
    given = {"model": flags["model"]} if flags.get("model") is not None else {}
    if {"model": content.get("model"), **over, **given}["model"] != content.get("model"):
        content = {name: value for name, value in content.items() if name != "checkpoint"}
    degrees = {name: value for name, value in flags.items() if name in PARTS and value is not None}
    both = _without_parts(merged(_without_parts(content, over.get("parallel")), over), degrees)
    recipe, _ = typed.convert(Recipe, both) if both else (Recipe(), [])
    assert recipe is not None, "each part was checked"
    for section, name, item in options():
        target = getattr(recipe, section) if section else recipe
        if flags.get(name) is not None:
            setattr(target, name, _of_flag(section, item, flags[name]))
        _check_size(item, getattr(target, name))
    return replace(recipe, runtime=replace(recipe.runtime))


def _without_parts(below: dict[str, Any], above: Any) -> dict[str, Any]:
    """A file's content without what degrees given above it say otherwise: --usp 4x1 replaces ulysses and ring of the
    file, --ring 2 the ring of its usp.
    """
    held = below.get("parallel")
    if not isinstance(held, dict) or not isinstance(above, dict):
        return below
    held = dict(held)
    for shorthand in SHORTHANDS:
        parts = [name for name in shorthand.sets if name in above]
        if above.get(shorthand.name) is not None:
            held = {name: value for name, value in held.items() if name not in shorthand.sets}
        elif parts and isinstance(text := held.get(shorthand.name), str):
            del held[shorthand.name]
            held |= shorthand.parse(text)
    return {**below, "parallel": held}


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two mappings merged, with those that they hold; values of `above` win."""
    found = dict(below)
    for name, value in above.items():
        old = found.get(name)
        found[name] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return found


def read(file: Path) -> Source:
    """Read a recipe file with every key and value checked. Raises RequestError."""
    found = source.read(file, FILE)
    if found.content.get("schema", SCHEMA) != SCHEMA:
        raise wrong_schema(found)
    found.as_(Recipe)
    return found


def wrong_schema(found: Source) -> RequestError:
    """The error of a file with another schema version, or without one."""
    value = shown(found.content["schema"]) if "schema" in found.content else None
    problem = "is missing" if value is None else "is another version"
    return found.fault(("schema",), f"{problem}; this version reads schema {SCHEMA}", value, rule="recipe-schema")


def _setting(text: str) -> dict[str, Any]:
    """Read "request.steps=20" as {"request": {"steps": 20}}; text fields take the value as written, except null.

    Raises RequestError: recipe-key, recipe-value.
    """
    path, equals, value = text.partition("=")
    if not equals:
        raise RequestError("recipe-key", "set", text, "is not KEY=VALUE", ["request.steps=20"], [])
    keys = path.split(".")
    nested: Any = value if _takes_text(keys) and value != "null" else _parsed(text)
    for key in reversed(keys):
        nested = {key: nested}
    _, misfits = typed.convert(Recipe, nested)
    for one in misfits:
        key = "" if one.keys == tuple(keys) else f"{dotted(one.keys)} "
        near = [dotted((*one.keys[:-1], name)) for name in one.nearest] if one.is_key else one.nearest
        rule = "recipe-key" if one.is_key else "recipe-value"
        raise RequestError(rule, "set", text, f"{key}{one.problem}", near, [])
    assert isinstance(nested, dict)
    return nested


def _takes_text(keys: list[str]) -> bool:
    """Whether keys lead to a field for text, or for numbers and text."""
    kind: Any = Recipe
    for key in keys:
        kind = typed.plain(hints(kind).get(key)) if is_dataclass(kind) else None
    return kind is str or (str in get_args(kind) and get_origin(kind) is not list)


def _parsed(text: str) -> Any:
    """The value of a KEY=VALUE setting, read as YAML."""
    from omegaconf import OmegaConf

    try:
        return OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text.partition('=')[2]}"]))["value"]
    except Exception as error:  # whatever the parser makes of a user's text
        raise RequestError("recipe-value", "set", text, "the value is not YAML") from error


def _of_flag(section: str, item: Any, value: Any) -> Any:
    """The value of a flag: unchanged if it has the field's type, as on the command line, or else converted."""
    hint = typed.plain(hints(SECTIONS.get(section, Recipe))[item.name])
    if type(value) in (hint, *get_args(hint)) and get_origin(hint) is not list:
        return value
    nested = {item.name: value}
    found, misfits = typed.convert(Recipe, {section: nested} if section else nested)
    for one in misfits:
        raise RequestError("recipe-value", name_of(item).removeprefix("--"), one.value, one.problem, one.nearest)
    return getattr(getattr(found, section) if section else found, item.name)


def _check_size(item: Any, value: Any) -> None:
    """Raise RequestError (recipe-value) for a whole number that is too large for a float."""
    if isinstance(value, int) and abs(value) > LARGEST:
        digits, most = int(math.log10(abs(value))) + 1, 2**63 - 1 if item.name == "seed" else LARGEST
        raise RequestError(
            "recipe-value", name_of(item).removeprefix("--"), f"of {digits} digits", "is too large", [most]
        )
