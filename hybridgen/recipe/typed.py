"""Values from YAML as instances of declared dataclasses, by pydantic; faults as data. No torch.

pydantic is imported when a file or a setting is read, and not for flags, which come typed.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from hybridgen.errors import did_you_mean

T = TypeVar("T")
Keys = tuple[str | int, ...]
"""The way to a value: keys of mappings and numbers of list entries, as in ("measured", 0, "status")."""


class Declared:
    """Base of dataclasses that files are read as: keys that are no fields are refused."""

    __pydantic_config__ = {"extra": "forbid"}


class Misfit(NamedTuple):
    """A value that does not fit its declaration."""

    keys: Keys
    value: str | None
    problem: str
    nearest: tuple[str, ...]
    of: Literal["key", "value", "nothing"] = "value"
    """What is at fault: a key that is not known, a value, or that a key is missing."""


def convert(declared: type[T], content: Any) -> tuple[T | None, list[Misfit]]:
    """The content as an instance of a dataclass, or None and all misfits.

    Nothing is converted but whole numbers, where any number is wanted.
    """
    from pydantic import ValidationError

    kind: Any = declared
    try:
        text = json.dumps(content, default=str)
    except ValueError:  # Python prints whole numbers of at most 4,300 digits
        return None, [Misfit((), None, "holds a number that is too large", (str(LARGEST),))]
    try:
        return _adapter(kind).validate_json(text, strict=True), []
    except ValidationError as error:
        found = [_misfit(kind, content, one) for one in error.errors(include_url=False)]
        return None, list({one.keys: one for one in reversed(found)}.values())[::-1]


def trusted(kind: Any, content: Any) -> Any:
    """An instance of a dataclass from content that is known to fit, without pydantic, whose import takes longer."""
    inner = plain(kind)
    if is_dataclass(inner):
        types = hints(inner)
        return inner(**{name: trusted(types[name], value) for name, value in content.items()})  # type: ignore[operator]
    if get_origin(inner) is list:
        return [trusted(get_args(inner)[0], one) for one in content]
    return content


def schema(kind: type) -> dict[str, Any]:
    """JSON schema of a dataclass, with definitions ($defs), as pydantic makes it."""
    found: dict[str, Any] = _adapter(kind).json_schema()
    return found


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def hints(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields."""
    return _hints(kind)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def plain(hint: Any) -> Any:
    """A type without Optional and marks: int of Optional[Annotated[int, Numbers(1)]]."""
    if get_origin(hint) is Annotated:
        return plain(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        inner = [one for one in get_args(hint) if one is not types.NoneType]
        return plain(inner[0]) if len(inner) == 1 else hint
    return hint


def marks(hint: Any) -> Iterator[Any]:
    """What a type is annotated with, in Optional or not."""
    if get_origin(hint) is Annotated:
        yield from get_args(hint)[1:]
    for one in get_args(hint):
        if get_origin(one) is Annotated or get_origin(hint) is Annotated:
            yield from marks(one)


def _hint_at(kind: Any, keys: Keys) -> Any:
    """The type to which keys lead, or the last on the way to it."""
    for key in keys:
        inner = plain(kind)
        if is_dataclass(inner) and key in hints(inner):
            kind = hints(inner)[str(key)]
        elif get_origin(inner) is tuple and isinstance(key, int) and key < len(get_args(inner)):
            kind = get_args(inner)[key]
        elif get_origin(inner) in (list, dict):
            kind = get_args(inner)[-1]
    return kind


def _held(content: Any, keys: Keys) -> Keys:
    """The keys as far as the content has them: what follows names a member of a union, or a part left out."""
    for number, key in enumerate(keys):
        try:
            content = content[key]
        except (TypeError, KeyError, IndexError):
            return keys[:number]
    return keys


def _misfit(kind: Any, content: Any, error: Any) -> Misfit:
    """pydantic's description of one fault, in our words."""
    keys: Keys = error["loc"]
    if error["type"] == "unexpected_keyword_argument":
        name, known = str(keys[-1]), list(hints(plain(_hint_at(kind, keys[:-1]))))
        near = tuple(did_you_mean(name, known))
        problem = "is not known" if near else f"is not known; keys here: {', '.join(known)}"
        return Misfit(keys, None, problem, near, "key")
    if error["type"] == "missing" and isinstance(keys[-1], int):  # a list that is too short
        keys = keys[:-1]
    elif error["type"] == "missing":
        return Misfit(keys, None, "is missing", (), "nothing")
    return Misfit(_held(content, keys), shown(error["input"]), *_must(_hint_at(kind, keys), error["input"]))


LARGEST = 2**64
"""Above any number that is used, seeds included. YAML's larger ones are read as text."""
WORDS = {
    int: "must be a whole number",
    float: "must be a number",
    str: "must be text; what looks like a number needs quotes",
    bool: "must be true or false",
    list: "must be a list",
    dict: "must hold names and text",
}


def _must(hint: Any, value: Any) -> tuple[str, tuple[str, ...]]:
    """What a value of this type must be, and what is nearest."""
    inner = plain(hint)
    for mark in marks(hint):
        if isinstance(mark, Numbers):
            return f"must be {mark.limits(value)}", mark.nearest(value)
    if get_origin(inner) is Literal:
        words = [str(word) for word in get_args(inner)]
        return "is not known", tuple(did_you_mean(str(value), words) or (word or '""' for word in words))
    if is_dataclass(inner):
        return "must hold keys of its own", ()
    if get_origin(inner) is tuple:
        usual = [mark.usual for part in get_args(inner) for mark in marks(part)]
        return f"must be a list, as in {usual}", ()
    if inner in (int, float) and isinstance(value, str) and len(value) > 19 and value.lstrip("+-").isdecimal():
        return "is too large", (str(LARGEST),)
    return WORDS.get(get_origin(inner) or inner, "must be a whole number or text"), ()


@dataclass(frozen=True)
class Numbers:
    """Mark of a number's type: from `low` to `high`, both included; whole ones, or all; also where YAML reads text."""

    low: float
    high: float = 1e30  # above any figure in SI units; sums and products of a few such stay finite
    whole: bool = False
    usual: float | None = None
    """A usual one, for messages."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        limits: dict[str, Any] = {"ge": self.low, "le": self.high, "strict": True}
        number = core_schema.int_schema(**limits) if self.whole else core_schema.float_schema(**limits)
        return core_schema.no_info_before_validator_function(as_number, number)

    def holds(self, number: float) -> bool:
        return self.low <= number <= self.high and not (self.whole and number != int(number))

    def nearest(self, value: Any) -> tuple[str, ...]:
        number = as_number(value)
        if not _is_number(number):
            return () if self.usual is None else (f"{self.usual:.12g}",)
        inside = min(max(number, self.low), self.high)
        return (f"{round(inside) if self.whole else inside:.12g}",)

    def limits(self, value: Any) -> str:
        """What a number must be, in words, with the limit that this value breaks."""
        kind, number = "a whole number" if self.whole else "a number", as_number(value)
        usual = "" if self.usual is None else f" (usual: {self.usual:.12g})"
        if usual and f"{self.usual:.12g}" in self.nearest(value):
            usual = ""
        if _is_number(number) and number > self.high > 1:
            return f"at most {self.high:g}{usual}"
        if self.high <= 1:
            return f"{kind} from {self.low:g} to {self.high:g}{usual}"
        return f"{kind} above 0{usual}" if self.whole and self.low == 1 else f"{kind}, {self.low:g} or more{usual}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def as_number(value: Any) -> Any:
    """The number that text spells, as in 80e9, which YAML reads as text; whole numbers as int; other values as is."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return value
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


class Short:
    """Mark of a dataclass that may be written as the value of its one necessary field."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(
            lambda value: value if isinstance(value, dict) else {self.name: value}, handler(source)
        )


class Commas:
    """Mark of a list that may be written as one text, with commas."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(
            lambda value: value.split(",") if isinstance(value, str) else value, handler(source)
        )

    def __get_pydantic_json_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), "type": ["array", "string"]}


def dotted(keys: Keys) -> str:
    """("measured", 0, "status") as "measured.0.status"."""
    return ".".join(text if (text := str(key)).isprintable() else repr(text) for key in keys)


def shown(value: Any) -> str:
    """A value in a message: short, whatever it is."""
    text = "empty" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
