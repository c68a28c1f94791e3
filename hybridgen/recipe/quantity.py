"""Amounts with units, as flags and files give them: 40GB, 20m, 1.5TB/s. No torch."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from hybridgen.errors import RequestError

BYTES = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
SHORT = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
BYTES_PER_SECOND = {f"{unit}/s": size for unit, size in BYTES.items()}
FLOPS = {f"{unit}flop{ending}": size for unit, size in (("g", 1e9), ("t", 1e12), ("p", 1e15)) for ending in ("s", "/s")}


def amount(given: str, units: Mapping[str, float]) -> float | None:
    """The number that a text such as "40GB" or "1.5 TB/s" stands for; None if it has none of the units."""
    match = re.fullmatch(r"\s*(\d{1,30}(?:\.\d*)?)\s*([a-zA-Z/]*)\s*", given)
    size = units.get(match[2].lower()) if match else None
    return None if match is None or size is None else float(match[1]) * size


def _near(given: str | float, units: Mapping[str, float], example: str) -> str:
    """A number without a unit in the unit of the example; else the example."""
    unit = example.lstrip("0123456789.")
    number = amount(f"{given}{unit}", units)
    return f"{given.strip()}{unit}" if isinstance(given, str) and number else example


def read(flag: str, given: str | float | None, units: Mapping[str, float], example: str) -> float | None:
    """Read "40GB" or "20m", or a number of bytes or seconds; None where nothing is given.

    Raises RequestError (quantity).
    """
    if given is None:
        return None
    found = amount(given, units) if isinstance(given, str) else given
    if found is None or not 0 < found < math.inf:
        raise RequestError(
            "quantity", flag, given, "is not an amount above 0 with its unit", [_near(given, units, example)]
        )
    return found
