"""A YAML file of keys that a flag names: where its faults stand, and which values are legal. No torch."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridgen.errors import RequestError
from hybridgen.recipe import yaml_file

MOST = 1e30
"""Above any figure in SI units; sums and products of a few such stay finite."""


@dataclass(frozen=True)
class KeyFile:
    """Its keys, each given once, and how a fault is told."""

    flag: str
    rule: str
    path: Path
    content: dict[Any, Any]
    places: Mapping[str, yaml_file.Place]

    def fault(self, key: str, problem: str) -> RequestError:
        """An error at a dotted key, or at what holds it; "" is the whole file."""
        while key and key not in self.places:
            key = key.rpartition(".")[0]
        at = ":{}:{}".format(*self.places[key]) if key else ""
        return RequestError.told(self.rule, f"{self.flag} {self.path}{at}: {problem}")

    def unknown(self, key: str, known: Iterable[str]) -> RequestError:
        """The error of a key that there is not, with the nearest."""
        names = sorted(known)
        close = difflib.get_close_matches(key.rpartition(".")[2], names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}"
        return self.fault(key, f"unknown key {key}; {hint}")

    def text(self, key: str, value: Any) -> str:
        """A value that must be text. Raises RequestError."""
        if isinstance(value, str) and value.strip():
            return value
        raise self.fault(key, f"{key} is {shown(value)} and must be text; what looks like a number needs quotes")

    def switch(self, key: str, value: Any) -> bool:
        """A value that must be true or false. Raises RequestError."""
        if isinstance(value, bool):
            return value
        raise self.fault(key, f"{key} is {shown(value)} and must be true or false")

    def one_of(self, key: str, value: Any, legal: Iterable[str]) -> str:
        """A value that must be one of some words. Raises RequestError."""
        words = list(legal)
        if isinstance(value, str) and value in words:
            return value
        close = difflib.get_close_matches(str(value), words, n=1)
        names = ", ".join(close or (word or '""' for word in words))
        raise self.fault(key, f"{key} is {shown(value)}, which is not known; nearest: {names}")

    def number(self, key: str, value: Any, legal: Numbers, example: float | None = None) -> float:
        """A value that must be one of some numbers; `example` is a usual one. Raises RequestError."""
        found = as_number(value)
        if found is not None and legal.holds(found):
            return int(found) if legal.whole else float(found)
        must = f"at most {legal.high:g}" if found is not None and found > legal.high > 1 else str(legal)
        near = example if found is None else legal.nearest(found)
        hint = "" if near is None else f"; nearest: {near:.12g}"
        hint += f" (usual: {example:.12g})" if example not in (near, None) else ""
        raise self.fault(key, f"{key} is {shown(value)} and must be {must}{hint}")


@dataclass(frozen=True)
class Numbers:
    """The numbers from `low` to `high`, both included; whole ones, or all."""

    low: float
    high: float = MOST
    whole: bool = False

    def holds(self, number: float) -> bool:
        return self.low <= number <= self.high and not (self.whole and number != int(number))

    def nearest(self, number: float) -> float:
        inside = min(max(number, self.low), self.high)
        return round(inside) if self.whole else inside

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        if self.high <= 1:
            return f"{kind} from {self.low:g} to {self.high:g}"
        return f"{kind} above 0" if self.whole and self.low == 1 else f"{kind}, {self.low:g} or more"


def as_number(value: Any) -> float | None:
    """A finite number, also one that YAML reads as text (80e9); None for all else, true and false among it."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number):
        return None
    return value if isinstance(value, int) else number


def shown(value: Any) -> str:
    """A value in a message: short, whatever it is."""
    text = "empty" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def read(flag: str, rule: str, path: Path, start: str) -> KeyFile:
    """The file that a flag names; `start` says how such a file starts. Raises RequestError (`rule`)."""
    try:
        document = yaml_file.read(path)
    except yaml_file.Unreadable as error:
        raise RequestError.told(rule, f"{flag} {path}{error.at} {error.problem}") from error
    if not isinstance(document.content, dict):
        raise RequestError.told(rule, f"{flag} {path} holds no keys; it starts with {start}")
    found = KeyFile(flag, rule, path, document.content, dict(yaml_file.places(document.node)))
    for key, _ in yaml_file.doubled(document.node):
        raise found.fault(key, f"{key} is given twice")
    return found
