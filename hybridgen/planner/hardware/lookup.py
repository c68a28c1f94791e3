"""A machine by name, or from a YAML file (format: docs/planner.md). No torch."""

from __future__ import annotations

from dataclasses import field, fields, make_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Optional

from hybridgen.errors import RequestError, did_you_mean
from hybridgen.planner.hardware.constants import Constant, Hardware, Link
from hybridgen.planner.hardware.known import ALIASES, MACHINES
from hybridgen.recipe import source
from hybridgen.recipe.typed import Declared, Numbers, Short, shown

FILE = source.Kind("hardware", "base: NAME", "hardware-file", "hardware-file", "hardware-file")
SHARE = Numbers(0.001, 0.999)
LIMITS = {
    **dict.fromkeys(("attention", "matmul", "bandwidth", "decoder", "writing"), Numbers(1)),
    **{"error": SHARE, "anchored": SHARE, "float32": Numbers(0.001, 1)},
}
"""What a constant may be, by the last part of its name, in SI units; others are bytes, seconds or a loss: 0 or more."""
OTHERS = Numbers(0)
COUNT = Numbers(1, 10**9, whole=True)


def find(name: str) -> Hardware:
    """A machine by name, or from a YAML file. Raises RequestError (unknown-hardware, hardware-file)."""
    if name.endswith((".yaml", ".yml")):
        return read(Path(name))
    if (known := _known(name)) is not None:
        return known
    raise RequestError("unknown-hardware", "hardware", name, "is no known machine or YAML file", _close(name))


def _known(name: str) -> Hardware | None:
    return MACHINES.get(ALIASES.get(name.lower(), name.lower()))


def _close(name: str) -> list[str]:
    return did_you_mean(name, [*MACHINES, *ALIASES], 2) or list(MACHINES)


def read(path: Path) -> Hardware:
    """A machine from a YAML file: `base:` names a known one, the other keys replace what differs.

    A constant is a number or {value: X, origin: TEXT}. Raises RequestError (hardware-file).
    """
    file = source.read(path, FILE)
    if "base" not in file.content:
        raise file.fault(("base",), "is missing; it names the known machine from which other constants are taken")
    name = file.content["base"]
    base = _known(name) if isinstance(name, str) else None
    if base is None:
        raise file.fault(("base",), "is no known machine", shown(name), _close(str(name)))
    given = file.as_(_declared(base))
    machine: Hardware = _changed(base, given, f"given in {path.name}")
    return replace(machine, name=given.name or path.stem, title=given.title or path.stem)


@cache
def _declared(base: Hardware | Link) -> Any:
    """A dataclass of what a file may hold: the fields of a machine or link, within limits, each of which may be absent."""
    kinds = {item.name: _kind(item.name, getattr(base, item.name)) for item in fields(base)}
    if isinstance(base, Hardware):
        kinds["base"] = str
    parts = [(name, Optional[kind], field(default=None)) for name, kind in kinds.items()]
    return make_dataclass(type(base).__name__, parts, bases=(Declared,))


def _kind(name: str, usual: Any) -> Any:
    """The type of a key whose usual value this is."""
    if isinstance(usual, Link):
        return _declared(usual)
    if isinstance(usual, Constant):
        number = Annotated[float, replace(LIMITS.get(name, OTHERS), usual=usual.value)]
        parts: list[Any] = [("value", number), ("origin", Optional[str], field(default=None))]
        return Annotated[make_dataclass("Given", parts, bases=(Declared,)), Short("value")]
    if isinstance(usual, bool | str):
        return type(usual)
    return Annotated[int, replace(COUNT, usual=usual)]


def _changed(base: Any, given: Any, origin: str) -> Any:
    """A copy of a machine or link with what a file gives in place."""
    changes = {}
    for item in fields(base):
        old, new = getattr(base, item.name), getattr(given, item.name)
        if new is not None and isinstance(old, Constant):
            changes[item.name] = Constant(float(new.value), new.origin or origin)
        elif new is not None:
            changes[item.name] = _changed(old, new, origin) if isinstance(old, Link) else new
    return replace(base, **changes)
