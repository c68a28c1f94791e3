"""A machine by name, or from a YAML file (format: docs/planner.md). No torch."""

from __future__ import annotations

import difflib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from hybridgen import yaml_file
from hybridgen.errors import RequestError
from hybridgen.planner.hardware import Constant, Hardware, Link
from hybridgen.planner.machines import ALIASES, MACHINES


def find(name: str) -> Hardware:
    """A machine by name, or from a YAML file. Raises RequestError (unknown-hardware, hardware-file)."""
    if name.endswith((".yaml", ".yml")):
        return read(Path(name))
    wanted = ALIASES.get(name.lower(), name.lower())
    if wanted in MACHINES:
        return MACHINES[wanted]
    close = difflib.get_close_matches(name, [*MACHINES, *ALIASES], n=2) or list(MACHINES)
    raise RequestError(
        "unknown-hardware",
        f"--hardware {name} is no known machine or YAML file; nearest: {', '.join(close)}",
        tries=[{"hardware": close[0]}],
    )


def read(path: Path) -> Hardware:
    """A machine from a YAML file: `base:` names a known one, the other keys replace what differs.

    A constant is a number or {value: X, origin: TEXT}. Raises RequestError (hardware-file).
    """

    def refuse(problem: str) -> RequestError:
        return RequestError("hardware-file", f"--hardware {path}: {problem}")

    try:
        content = yaml_file.read(path).content
    except yaml_file.Unreadable as error:
        raise RequestError("hardware-file", f"--hardware {path}{error.at} {error.problem}") from error
    if not isinstance(content, dict) or not isinstance(content.get("base"), str):
        raise refuse("needs base: NAME, a known machine from which the other constants are taken")
    base = find(content.pop("base"))
    machine: Hardware = _changed(base, {"name": path.stem, "title": path.stem, **content}, path.name, "", refuse)
    return machine


def _changed(base: Any, values: dict[str, Any], file: str, prefix: str, refuse: Any) -> Any:
    """A copy of a Hardware or Link with some fields replaced, each checked."""
    known = {f.name for f in fields(base)}
    changes = {}
    for key, value in values.items():
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known))}"
            raise refuse(f"unknown key {prefix}{key}; {hint}")
        old = getattr(base, key)
        if isinstance(old, Link):
            if not isinstance(value, dict):
                raise refuse(f"{key} must hold bandwidth, latency or hop")
            changes[key] = _changed(old, value, file, f"{key}.", refuse)
        elif isinstance(old, Constant):
            changes[key] = _constant(value, file, prefix + key, refuse)
        else:
            changes[key] = _plain(value, type(old), prefix + key, refuse)
    return replace(base, **changes)


def _constant(value: Any, file: str, key: str, refuse: Any) -> Constant:
    origin = f"given in {file}"
    if isinstance(value, dict):
        if unknown := sorted(map(str, value.keys() - {"value", "origin"})):
            raise refuse(f"unknown key {key}.{unknown[0]}; known: value, origin")
        value, origin = value.get("value"), str(value.get("origin", origin))
    try:
        number = float(value)  # YAML reads 80e9 as text
    except (TypeError, ValueError):
        raise refuse(f"{key} is {value!r} and must be a number in SI units") from None
    least = 0.0 if key.split(".")[-1] in _MAY_BE_ZERO else None
    if not (number > 0 if least is None else number >= least) or number == float("inf"):
        raise refuse(f"{key} is {value!r} and must be above 0")
    return Constant(number, origin)


_MAY_BE_ZERO = (
    *("memory", "reserve", "first", "packed", "freed", "scattered", "unfolded", "channel_block", "slowdown"),
    *("latency", "hop", "launch", "step", "ring", "pixels", "fixed", "error", "anchored"),
)


_KINDS = {int: "a whole number above 0", str: "text", bool: "true or false"}


def _plain(value: Any, kind: type, key: str, refuse: Any) -> Any:
    fits = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
    if not fits or (kind is int and value < 1):
        raise refuse(f"{key} is {value!r} and must be {_KINDS[kind]}")
    return value
