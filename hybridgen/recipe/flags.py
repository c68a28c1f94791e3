"""Flags declared once, as the fields of a dataclass: those of recipes, and those of one command. No torch.

Signature, help and the words that repeat a command are made from the declaration, and of a recipe's fields the keys
and the JSON schema as well, by pydantic, which reads `description` from a field's metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import field, fields
from typing import Any


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
