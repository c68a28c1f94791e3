"""Plain data of the values that ranks send each other: JSON, which cannot carry code. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

KIND = "()"
"""Key of an object that stands for a value which JSON has no form for."""


def packed(value: Any) -> bytes:
    """A value as JSON: plain values, lists, tuples, mappings, paths, and dataclasses and named tuples of these."""
    return json.dumps(_plain(value)).encode()


def unpacked(data: bytes, like: Any) -> Any:
    """The value. Classes are those of which `like` is made, or that stand in it. Raises ValueError for all else."""
    return _value(json.loads(data), _classes(like))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        given = {item.name: _plain(getattr(value, item.name)) for item in fields(value) if item.init}
        return {KIND: type(value).__name__, **given}
    if _is_named(value):
        return {KIND: type(value).__name__, **{name: _plain(one) for name, one in value._asdict().items()}}
    if isinstance(value, tuple):
        return {KIND: "tuple", "items": [_plain(one) for one in value]}
    if isinstance(value, Path):
        return {KIND: "path", "path": str(value)}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        assert all(isinstance(key, str) and key != KIND for key in value), value
        return {key: _plain(one) for key, one in value.items()}
    assert value is None or isinstance(value, (bool, int, float, str)), value
    return value


def _is_named(value: Any) -> bool:
    """Whether a value is a named tuple."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _classes(value: Any) -> dict[str, type]:
    """The dataclasses and named tuples of which a value is made, by name; a class stands for itself."""
    if isinstance(value, type):
        return {value.__name__: value}
    if is_dataclass(value) or _is_named(value):
        held = list(value) if _is_named(value) else [getattr(value, item.name) for item in fields(value)]
        return {type(value).__name__: type(value), **_classes(held)}
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return {name: kind for one in inside for name, kind in _classes(one).items()}


def _value(data: Any, classes: Mapping[str, type]) -> Any:
    if isinstance(data, list):
        return [_value(one, classes) for one in data]
    if not isinstance(data, dict):
        return data
    kind = data.get(KIND)
    given = {name: _value(one, classes) for name, one in data.items() if name != KIND}
    if kind is None:
        return given
    if kind == "tuple":
        return tuple(given["items"])
    if kind == "path":
        return Path(given["path"])
    if kind not in classes:
        raise ValueError(f"{kind!r} is not a part of what is expected")
    return classes[kind](**given)
