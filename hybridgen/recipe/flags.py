"""Flags declared once, as the fields of a dataclass: those of recipes, and those of one command. No torch.

Signature, help and the words that repeat a command are made from the declaration, and of a recipe's fields the keys
and the JSON schema as well, by pydantic, which reads `description` from a field's metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, fields
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from hybridgen.errors import RequestError, did_you_mean
from hybridgen.recipe.typed import hints, plain

T = TypeVar("T")
WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text", Path: "a path"}
"""What a keyword takes, by the type of its field."""


def flag(
    help: str,
    *names: str,
    default: Any = None,
    metavar: str | None = None,
    panel: str | None = None,
    values: Callable[[], Iterable[str]] | None = None,
) -> Any:
    """A field that is a flag. The flag is --FIELD-NAME unless `names` are given; `panel` groups it in the help.

    `values` gives the values that a shell offers. A flag that may be given several times has the type
    Optional[list[str]].
    """
    about = {"description": help, "flags": names, "metavar": metavar, "panel": panel, "values": values}
    return field(default=default, metadata=about)


def argument(help: str, metavar: str) -> Any:
    """A field that is the argument of a command, which has no flag."""
    return field(metadata={"description": help, "flags": (), "metavar": metavar, "panel": None, "argument": True})


def name_of(item: Any) -> str:
    """The long flag of a field: "--max-time"."""
    names = item.metadata["flags"]
    return str(names[0]).partition("/")[0] if names else f"--{item.name.replace('_', '-')}"


def words_of(given: Any, leave_out: Collection[str] = ()) -> list[str]:
    """Words of a command that repeat these flags: those that differ from the default, without the fields in
    `leave_out`.
    """
    words: list[str] = []
    for item in fields(given):
        value = getattr(given, item.name)
        if item.name in leave_out or value == item.default:
            continue
        values = value if isinstance(value, list) else [value]
        for one in values:
            shown = [] if one is True else [f"{one:g}" if isinstance(one, float) else str(one)]
            words += [name_of(item), *shown]
    return words


def of_keywords(function: str, declared: type[T], given: Mapping[str, Any]) -> T:
    """An instance of a dataclass of flags from keywords of a function of that name.

    Raises TypeError for a value of another type, RequestError (usage) for a word that is not one of a few.
    """
    types: dict[str, Any] = {name: plain(hint) for name, hint in hints(declared).items()}
    values = {name: _taken(function, name, types[name], value) for name, value in given.items() if value is not None}
    return declared(**values)


def _taken(function: str, name: str, kind: Any, value: Any) -> Any:
    """The value of one keyword in the type of its field; paths and numbers may be given as text and whole numbers."""
    if get_origin(kind) is list:
        if isinstance(value, str) or not all(isinstance(one, str) for one in value):
            raise TypeError(f"{function}() takes a list of texts as {name}, not {value!r}")
        return list(value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        names = [one.value for one in kind]
        if value not in names:
            near = did_you_mean(str(value), names) or names
            raise RequestError("usage", name, value, f"is not one of {', '.join(names)}", near)
        return kind(value)
    others: dict[Any, tuple[type, ...]] = {Path: (str,), str: (Path,), float: (int,)}
    also = others.get(kind, (int,) if float in get_args(kind) else ())
    if not isinstance(value, (kind, *also)) or (isinstance(value, bool) and kind is not bool):
        words = WORDS.get(kind, "a number, or text with a unit,")
        raise TypeError(f"{function}() takes {words} as {name}, not {value!r}")
    return kind(value) if kind in (Path, str) else value
