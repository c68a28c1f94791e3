"""A machine by name, or from a YAML file (format: docs/planner-reference.md). No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, fields, make_dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

from hybridgen.errors import RequestError
from hybridgen.planner.hardware.cards import maker
from hybridgen.planner.hardware.constants import Constant, Hardware, Link, Near
from hybridgen.planner.hardware.known import MACHINES
from hybridgen.planner.hardware.mixed import mixed
from hybridgen.planner.hardware.names import by_name, close
from hybridgen.planner.hardware.rates import GENERATIONS
from hybridgen.recipe import quantity, source
from hybridgen.recipe.typed import Before, Declared, Numbers, hints, plain, shown

RULES = {
    "hardware-file": "A hardware file names a known machine as base: and replaces its constants, in SI units. Unknown "
    "keys and keys given twice are refused, since a typing error would silently keep the old value. Rates are 1 or "
    "more, bytes and seconds 0 or more; error and anchored lie between 0 and 1, since they are a range around a "
    "time.",
    "hardware-mixed": "Several kinds of cards are named with their numbers, in the order in which ranks fill them. "
    "Every rank has an equal share of the work, so the slowest card sets the pace and the smallest memory the limit.",
}

FILE = source.Kind("hardware", "base: NAME", "hardware-file", "hardware-file", "hardware-file")
SHARE = Numbers(0.001, 0.999)
LIMITS = {
    **dict.fromkeys(("attention", "matmul", "bandwidth", "decoder", "writing"), Numbers(1)),
    **dict.fromkeys(("gather", "reduce", "neighbour"), Numbers(0.001)),
    "error": SHARE,
    "anchored": SHARE,
    "float32": Numbers(0.001, 1),
    "decoder32": Numbers(0.001, 1),
}
"""Legal values of constants in SI units, by the last part of the name; all others must be 0 or more."""
OTHERS = Numbers(0)
UNITS = {
    **dict.fromkeys(("memory", "reserve"), quantity.BYTES),
    **dict.fromkeys(("attention", "matmul", "decoder"), quantity.FLOPS),
    "bandwidth": quantity.BYTES_PER_SECOND,
    **dict.fromkeys(("launch", "step", "ring", "pixels", "fixed", "latency", "hop"), quantity.SHORT),
}
"""Units in which a constant may be given, by the last part of its name; a number alone is in SI units."""
COUNT = Numbers(1, 10**9, whole=True)


def find(name: str) -> Hardware:
    """A machine by name, from a YAML file, or of several kinds of cards, as in h100:8,a100:8.

    Raises RequestError (unknown-hardware, hardware-file, hardware-mixed).
    """
    if "," in name or re.search(r":\s*-?\d+$", name):
        parts = [_part(name, one) for one in name.split(",")]
        if len({maker(machine.generation) for machine, _ in parts}) > 1:
            alike = f"{parts[0][0].name}:{sum(count for _, count in parts)}"
            problem = "cards of several makers, or CPU cores and GPUs, do not share a run"
            raise RequestError("hardware-mixed", "hardware", name, problem, [alike])
        return mixed(name, parts)
    if name.endswith((".yaml", ".yml")):
        return read(Path(name))
    if (known := by_name(name)) is not None:
        return known
    problem, near = "is not a known machine or a YAML file", close(name)
    if not near:
        problem += f" (known: {', '.join(MACHINES)})"
    raise RequestError("unknown-hardware", "hardware", name, problem, near, None if near else ["hybridgen hardware"])


def _part(name: str, part: str) -> tuple[Hardware, int]:
    """The machine and the number of cards of one part of a mixed machine: "h100:8". Raises RequestError."""
    kind, _, count = part.rpartition(":")
    if not kind.strip() or not re.fullmatch(r"\s*\d{1,6}\s*", count) or int(count) < 1:
        problem = f"{part.strip() or 'nothing'} is not NAME:GPUS"
        raise RequestError("hardware-mixed", "hardware", name, problem, ["h100:8,a100:8"])
    try:
        machine = find(kind.strip())
    except RequestError as error:
        if error.rule != "unknown-hardware" or isinstance(error.nearest, str):
            raise
        near = [name.replace(kind.strip(), str(one), 1) for one in error.nearest]
        raise error.changed(value=name, problem=f"{kind.strip()} {error.problem}", nearest=near, tries=()) from error
    return machine, int(count)


def read(path: Path) -> Hardware:
    """A machine from a YAML file: `base:` names a known one, the other keys replace what differs.

    A constant is a number or {value: X, origin: TEXT}. Raises RequestError (hardware-file).
    """
    file = source.read(path, FILE)
    if "base" not in file.content:
        raise file.fault(("base",), "is missing; it names the known machine from which other constants are taken")
    name = file.content["base"]
    base = by_name(name) if isinstance(name, str) else None
    if base is None:
        raise file.fault(("base",), "is not a known machine", shown(name), close(str(name)) or list(MACHINES))
    given = file.as_(_declared(Hardware))
    if given.near is not None and base.near is None:
        if missing := [key for key in ("size", "bandwidth") if getattr(given.near, key) is None]:
            raise file.fault(("near",), f"needs {' and '.join(missing)}; the rest is as of inside")
        same = {item.name: getattr(base.inside, item.name) for item in fields(Link)}
        base = replace(base, near=Near(**{**same, "name": "near group"}))
    machine: Hardware = _changed(base, given, f"given in {path.name}")
    machine = machine.joined(machine.hosts)
    return replace(machine, name=given.name or path.stem, title=given.title or path.stem)


@cache
def _declared(kind: Any) -> Any:
    """A dataclass of what a file may hold of a Hardware or Link: the same fields, within limits, any of them absent."""
    kinds = {name: _kind(name, hint) for name, hint in hints(kind).items()}
    if kind is Hardware:
        kinds["base"] = str
        del kinds["cards"]  # which --hardware names
    parts = [(name, Optional[inner], field(default=None)) for name, inner in kinds.items()]
    return make_dataclass(kind.__name__, parts, bases=(Declared,))


def _kind(name: str, kind: Any) -> Any:
    """How a file gives a field of this type."""
    if kind is Constant:
        number = Annotated[float, LIMITS.get(name, OTHERS), Before(partial(_in_si, UNITS.get(name, {})))]
        parts: list[Any] = [("value", number), ("origin", Optional[str], field(default=None))]
        return Annotated[make_dataclass("Given", parts, bases=(Declared,)), Before(_given)]
    if name == "generation":
        return Literal[tuple(GENERATIONS)]
    if name == "hosts":
        return tuple[Annotated[int, COUNT], ...]
    inner = plain(kind)
    return _declared(inner) if inner in (Link, Near) else Annotated[int, COUNT] if kind is int else kind


def _in_si(units: Mapping[str, float], value: Any) -> Any:
    """The number in SI units of a text with a unit; another value as it is."""
    found = quantity.amount(value, units) if isinstance(value, str) else None
    return value if found is None else found


def _given(value: Any) -> Any:
    """A constant as {value: X} where it is written as a number alone."""
    return value if isinstance(value, dict) else {"value": value}


def _changed(base: Any, given: Any, origin: str) -> Any:
    """A copy of a machine or link with the values of a file."""
    changes = {}
    for item in fields(base):
        old, new = getattr(base, item.name), getattr(given, item.name, None)
        if new is not None and isinstance(old, Constant):
            changes[item.name] = Constant(float(new.value), new.origin or origin)
        elif new is not None:
            changes[item.name] = _changed(old, new, origin) if isinstance(old, Link) else new
    return replace(base, **changes)
