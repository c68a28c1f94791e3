"""Values from YAML as instances of declared dataclasses, by pydantic; faults as data. No torch.

pydantic is imported when a file or a setting is read, and not for flags, which come typed.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache
from math import isfinite
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from hybridgen.errors import did_you_mean

T = TypeVar("T")
MOST = 100
"""Most misfits that are told of one content."""
Keys = tuple[str | int, ...]
"""Path to a value: keys of mappings and numbers of list entries, as in ("measured", 0, "status")."""


class Declared:
    """Base of dataclasses that files are read into; unknown keys are refused."""

    __pydantic_config__ = {"extra": "forbid"}


class Misfit(NamedTuple):
    """A value that does not fit its declaration, or a key that is not known."""

    keys: Keys
    value: str | None
    problem: str
    nearest: tuple[str, ...] = ()
    is_key: bool = False


def convert(declared: type[T], content: Any) -> tuple[T | None, list[Misfit]]:
    """The content as an instance of a dataclass, or None and all misfits.

    Nothing is converted except whole numbers to fields for any number.
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
        found = [_misfit(kind, content, one) for one in error.errors(include_url=False)[:MOST]]
        return None, list({one.keys: one for one in reversed(found)}.values())[::-1]  # of a union, its first type


def trusted(kind: Any, content: Any) -> Any:
    """An instance of a dataclass from content that is known to fit, without the cost of importing pydantic."""
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


def _declared_at(kind: Any, keys: Keys) -> Any:
    """The dataclass to which keys lead from another one."""
    for key in keys:
        inner = plain(kind)
        kind = hints(inner)[str(key)] if is_dataclass(inner) else get_args(inner)[-1]
    return plain(kind)


def _held(content: Any, keys: Keys) -> Keys:
    """The keys as far as the content has them; pydantic may add members of a union or a missing part."""
    for number, key in enumerate(keys):
        try:
            content = content[key]
        except (TypeError, KeyError, IndexError):
            return keys[:number]
    return keys


WORDS = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text; what looks like a number needs quotes",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "too_long": "must be a list of {max_length} values",
    "dict_type": "must hold names and text",
    "dataclass_type": "must hold keys of its own",
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be {ge:.12g} or more",
    "less_than_equal": "must be {le:.12g} or less",
}
"""What is wrong, by pydantic's type of the error."""


def _misfit(kind: Any, content: Any, error: Any) -> Misfit:
    """A misfit from pydantic's description of one fault."""
    keys, value, limits = error["loc"], error["input"], error.get("ctx", {})
    if error["type"] == "unexpected_keyword_argument":
        known = list(hints(_declared_at(kind, keys[:-1])))
        near = tuple(did_you_mean(str(keys[-1]), known))
        return Misfit(keys, None, "is not known" + ("" if near else f"; keys here: {', '.join(known)}"), near, True)
    if error["type"] == "missing":
        return Misfit(keys, None, "is missing")
    near = tuple(f"{limits[name]:.12g}" for name in ("ge", "le") if name in limits)
    if error["type"] == "int_type" and isinstance(value, float) and isfinite(value):
        near = (f"{value:.0f}",)
    problem = WORDS.get(error["type"], error["msg"]).format(**limits)
    return Misfit(_held(content, keys), shown(value), problem, near)


LARGEST = 2**64
"""Largest number that is used, seeds included; larger ones in YAML are read as text."""


class Numbers(NamedTuple):
    """Annotation of a number's range from `low` to `high`, both included: whole numbers, or all."""

    low: float
    high: float = 1e30  # above any figure in SI units; sums and products of a few such stay finite
    whole: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        limits: dict[str, Any] = {"ge": self.low, "le": self.high, "strict": True}
        number = core_schema.int_schema(**limits) if self.whole else core_schema.float_schema(**limits)
        return core_schema.no_info_before_validator_function(as_number, number)


def as_number(value: Any) -> Any:
    """A number from text such as 80e9, which YAML reads as text; whole numbers become int, other values stay."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return value
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


class Before(NamedTuple):
    """Mark of a type whose values may be written in a shorter way, from which `whole` makes the usual one."""

    whole: Callable[[Any], Any]
    types: tuple[str, ...] = ()
    """Types of JSON that it may be written in, where those are not the usual one's."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self.whole, handler(source))

    def __get_pydantic_json_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), **({"type": list(self.types)} if self.types else {})}


def dotted(keys: Keys) -> str:
    """Keys joined with dots: ("measured", 0, "status") is "measured.0.status"."""
    return ".".join(text if (text := str(key)).isprintable() else repr(text) for key in keys)


def shown(value: Any) -> str:
    """A value for a message, cut short."""
    text = "empty" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
