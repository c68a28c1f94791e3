"""Constants by where their figures come from: datasheets, publications, fits, assumptions. No torch."""

from __future__ import annotations

from hybridgen.planner.hardware.constants import Constant

GB, TERA, MICRO = 1e9, 1e12, 1e-6
FIT = "to all published rows (docs/planner-accuracy.md)"


def datasheet(value: float, whose: str = "") -> Constant:
    return Constant(value, "datasheet" + (f": {whose}" if whose else ""))


def published(value: float, where: str) -> Constant:
    return Constant(value, f"published: {where}")


def assumed(value: float, why: str) -> Constant:
    return Constant(value, f"assumed: {why}")


def fitted(value: float, what: str = "") -> Constant:
    return Constant(value, f"fitted {FIT}" + (f": {what}" if what else ""))


def share(of: float, part: float, unit: str) -> Constant:
    """A fitted share of what the datasheet says."""
    return fitted(of * part, f"{part:.0%} of the datasheet's {unit}")
