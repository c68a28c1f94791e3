"""A machine by name, or from a YAML file (format: docs/planner-reference.md). No torch."""

from __future__ import annotations

import difflib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from hybridgen.errors import RequestError
from hybridgen.planner.hardware.constants import Constant, Hardware, Link
from hybridgen.planner.hardware.known import ALIASES, MACHINES
from hybridgen.recipe import key_file
from hybridgen.recipe.key_file import KeyFile, Numbers

SHARE = Numbers(0.001, 0.999)
LEGAL = {
    **dict.fromkeys(("attention", "matmul", "bandwidth", "decoder", "writing"), Numbers(1)),
    **{"error": SHARE, "anchored": SHARE, "float32": Numbers(0.001, 1)},
}
"""What a constant may be, by the last part of its name, in SI units; others are bytes, seconds or a loss: 0 or more."""
COUNT = Numbers(1, 10**9, whole=True)


def find(name: str) -> Hardware:
    """A machine by name, or from a YAML file. Raises RequestError (unknown-hardware, hardware-file)."""
    if name.endswith((".yaml", ".yml")):
        return read(Path(name))
    if (known := _known(name)) is not None:
        return known
    close = _close(name)
    raise RequestError.told(
        "unknown-hardware",
        f"--hardware {name} is no known machine or YAML file; nearest: {', '.join(close)}",
        tries=[{"hardware": close[0]}],
    )


def _known(name: str) -> Hardware | None:
    return MACHINES.get(ALIASES.get(name.lower(), name.lower()))


def _close(name: str) -> list[str]:
    return difflib.get_close_matches(name, [*MACHINES, *ALIASES], n=2) or list(MACHINES)


def read(path: Path) -> Hardware:
    """A machine from a YAML file: `base:` names a known one, the other keys replace what differs.

    A constant is a number or {value: X, origin: TEXT}. Raises RequestError (hardware-file).
    """
    file = key_file.read("--hardware", "hardware-file", path, "base: NAME")
    if "base" not in file.content:
        raise file.fault("", "needs base: NAME, a known machine from which the other constants are taken")
    name = file.text("base", file.content["base"])
    if (base := _known(name)) is None:
        raise file.fault(
            "base", f"base is {key_file.shown(name)}, no known machine; nearest: {', '.join(_close(name))}"
        )
    changes = {key: value for key, value in file.content.items() if key != "base"}
    machine: Hardware = _changed(file, base, {"name": path.stem, "title": path.stem, **changes})
    return machine


def _changed(file: KeyFile, base: Any, values: dict[Any, Any], prefix: str = "") -> Any:
    """A copy of a Hardware or Link with some fields replaced, each checked."""
    known = [f.name for f in fields(base)]
    changes: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if name not in known:
            raise file.unknown(key, known)
        old = getattr(base, name)
        if isinstance(old, Link):
            if not isinstance(value, dict):
                problem = f"{key} is {key_file.shown(value)} and must hold keys, as in {key}: {{bandwidth: "
                raise file.fault(key, f"{problem}{old.bandwidth.value:g}}}")
            changes[name] = _changed(file, old, value, f"{key}.")
        elif isinstance(old, Constant):
            changes[name] = _constant(file, key, value, LEGAL.get(name, Numbers(0)), old)
        elif isinstance(old, bool):
            changes[name] = file.switch(key, value)
        elif isinstance(old, int):
            changes[name] = file.number(key, value, COUNT, old)
        else:
            changes[name] = file.text(key, value)
    return replace(base, **changes)


def _constant(file: KeyFile, key: str, value: Any, legal: Numbers, old: Constant) -> Constant:
    origin = f"given in {file.path.name}"
    if isinstance(value, dict):
        if unknown := [str(name) for name in value if name not in ("value", "origin")]:
            raise file.unknown(f"{key}.{unknown[0]}", ("value", "origin"))
        if "value" not in value:
            raise file.fault(key, f"{key} holds no value; it is written as in {key}: {{value: {old.value:g}}}")
        if "origin" in value:
            origin = file.text(f"{key}.origin", value["origin"])
        key, value = f"{key}.value", value["value"]
    return Constant(float(file.number(key, value, legal, old.value)), origin)
