"""A measured machine as a file that `plan --hardware` reads. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridgen.distributed.files import written_whole
from hybridgen.planner.hardware.lookup import find

ERROR = 0.15
"""How far off a prediction with measured constants may be (benchmarks/planner_cpu.py holds it against runs)."""
UNITS = {
    "attention": ("GFLOP/s", 1e-9),
    "matmul": ("GFLOP/s", 1e-9),
    "bandwidth": ("GB/s", 1e-9),
    "launch": ("us a kernel", 1e6),
    "step": ("ms a step", 1e3),
    "slowdown": ("% with all ranks at work", 1e2),
    "inside.latency": ("us", 1e6),
    "inside.bandwidth": ("GB/s", 1e-9),
    "inside.hop": ("us", 1e6),
}
"""Units in which constants are shown: name, and units per SI unit."""


def write(path: Path, base: str, title: str, found: Mapping[str, tuple[float, str]]) -> None:
    """Constants by name, (value in SI units, how it was found), over those of a known machine; read back once."""
    import yaml

    content: dict[str, Any] = {"base": base, "title": title}
    for name, (value, origin) in found.items():
        place = content
        *links, last = name.split(".")
        for link in links:
            place = place.setdefault(link, {})
        place[last] = {"value": float(f"{value:.4g}"), "origin": origin}
    for name in ("error", "anchored"):
        content[name] = {"value": ERROR, "origin": "assumed: measured constants"}
    with written_whole(path) as part:
        part.write_text(yaml.safe_dump(content, sort_keys=False, width=120), encoding="utf-8")
    find(str(path))


def summary(found: Mapping[str, tuple[float, str]]) -> list[list[str]]:
    """Rows of what was found: constant, value with unit, how."""
    rows = []
    for name, (value, origin) in found.items():
        if name in UNITS:
            unit, factor = UNITS[name]
            rows.append([name, f"{value * factor:.3g} {unit}", origin])
    return rows
