"""The keys of a checkpoint's JSON files: what each may hold, checked whenever a file is read. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hybridgen.errors import RequestError

REQUIRED = object()
"""Default of a key that must be there."""
BARRED = object()
"""Default of a key that must not be there."""
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}


class Key(NamedTuple):
    """What one key may hold: a value of a type, in a range, or a list of such values."""

    kind: type
    low: float = -1e30
    high: float = 1e30
    default: Any = REQUIRED
    """What the class takes where the key is absent."""
    may_be_null: bool = False
    legal: tuple[Any, ...] = ()
    """The only values that are run; none: all in the range."""
    may_be_object: bool = False
    """Whether an object with such a value as its "content" may stand there, too; of a list, one of named values."""
    length: tuple[int, int] | None = None
    """Least and most values of a list; None: a single value."""
    pointed: bool = False
    """Whether a number must have a decimal point, because the class takes no whole number there."""
    named: bool = False
    """Whether the values must have names, as in an object, and not stand in a list."""

    def fits(self, value: Any) -> bool:
        """Whether a value from JSON may stand there."""
        if value is None:
            return self.may_be_null
        if self.length is None:
            return self._fits_one(value)
        least, most = self.length
        if (self.may_be_object or self.named) and isinstance(value, dict):
            value = list(value.values())
        elif self.named:
            return False
        return isinstance(value, list) and least <= len(value) <= most and all(map(self._fits_one, value))

    def _fits_one(self, value: Any) -> bool:
        if self.may_be_object and isinstance(value, dict):
            value = value.get("content")
        kinds = (int, float) if self.kind is float and not self.pointed else (self.kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and self.kind is not bool):
            return False
        if isinstance(value, int | float) and self.kind is not bool and not self.low <= value <= self.high:
            return False  # nor is it NaN
        return not self.legal or value in self.legal

    def __str__(self) -> str:
        """What may stand there, in words: "a whole number from 1 to 512"."""
        if self.default is BARRED:
            return "left out, as it must be"
        if self.legal:
            what = " or ".join(_shown(value) for value in self.legal)
        else:
            limits = f" from {self.low:.12g} to {self.high:.12g}" if self.kind in (int, float) else ""
            what = WORDS[self.kind] + limits + (", with a decimal point" if self.pointed else "")
        if self.length is not None:
            least, most = self.length
            kind = "an object" if self.named else "a list"
            what = f"{kind} of {least if least == most else f'{least} to {most}'} values, each {what}"
        return what + (" or null" if self.may_be_null and self.kind is not type(None) else "")


def whole(low: int, high: int, default: Any = REQUIRED, null: bool = False) -> Key:
    """A whole number from `low` to `high`."""
    return Key(int, low, high, default, null)


def number(low: float, high: float, default: Any = REQUIRED, null: bool = False) -> Key:
    """A number from `low` to `high`."""
    return Key(float, low, high, default, null)


def pointed(low: float, high: float, default: Any) -> Key:
    """A number from `low` to `high` that is written with a decimal point."""
    return Key(float, low, high, default, pointed=True)


def switch(default: Any = REQUIRED, null: bool = False) -> Key:
    """true or false."""
    return Key(bool, default=default, may_be_null=null)


def text(null: bool = True) -> Key:
    """Any text."""
    return Key(str, default=None, may_be_null=null)


def only(*legal: Any, default: Any = REQUIRED, null: bool = False) -> Key:
    """One of these values, which are of one type."""
    return Key(type(legal[0]), default=default, legal=legal, may_be_null=null)


def absent() -> Key:
    """A key that must be null or absent, because nothing here does what it asks for."""
    return Key(type(None), default=None, may_be_null=True)


def barred() -> Key:
    """A key that must be absent, because the class would take it in the place of a function of its own."""
    return Key(type(None), default=BARRED)


def listed(one: Key, least: int, most: int, default: Any = REQUIRED, null: bool = False) -> Key:
    """A list of values."""
    return one._replace(length=(least, most), default=default, may_be_null=null)


class Maybe(dict[str, Key]):
    """The keys of an object that may be absent, or null."""


Table = Mapping[str, "Key | Table"]
"""The keys of a file by name; a table stands for an object with keys of its own."""


def checked(content: Mapping[str, Any], table: Table, file: str, path: Path, place: str = "") -> dict[str, Any]:
    """The content with what is absent filled in. Keys that are not in the table stay as they are.

    file: name of the file within the checkpoint, for the message.
    path: the checkpoint.
    place: what leads to the content in the file, as in "text_config.".

    Raises RequestError (unreadable-model) for the first value that may not stand there.
    """
    found = dict(content)
    for name, key in table.items():
        value = found.get(name)
        if isinstance(key, Key):
            if name not in found and key.default is BARRED:
                continue
            if name not in found and key.default is not REQUIRED:
                found[name] = key.default
            elif name not in found or not key.fits(value):
                said = "is missing" if name not in found else f"is {_shown(value)}"
                raise RequestError("unreadable-model", "model", path, f"{file}: {place}{name} {said}, not {key}")
        elif value is None and isinstance(key, Maybe):
            continue
        elif isinstance(value, dict):
            found[name] = checked(value, key, file, path, f"{place}{name}.")
        else:
            said = f"is {_shown(value)}, not an object with keys" if name in found else "is missing"
            problem = f"{file}: {place}{name} {said}"
            raise RequestError("unreadable-model", "model", path, problem)
    return found


def _shown(value: Any) -> str:
    """A value from JSON for a message, cut short."""
    words = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else ascii(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
