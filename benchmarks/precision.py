"""Published rows in 8 or 4 bits, predicted by the settings of a plan. No constant is fitted to them.

python -m benchmarks.precision        (in the root of the repository)
"""

from __future__ import annotations

import re
from dataclasses import replace

from benchmarks.planner_accuracy import Line, summary, table
from benchmarks.published import Row, rows
from hybridgen.plan.plan import Plan
from hybridgen.plan.settings import Settings
from hybridgen.planner.price.cost import cost


def low(found: list[Row]) -> list[Row]:
    """Rows of models, cards and splits that the planner knows, with products or attention in few bits."""
    return [row for row in found if row.priced and row.quantised]


def settings(row: Row) -> Settings:
    """The settings of a row: how matrices are held and the attention kernel, as its text says; engines compile."""
    said = f"{row.config} {row.notes}"
    weights = "nvfp4" if "NVFP4" in said else "fp8" if re.search("fp8 linear", said) else None
    attention = "fp8" if "fp8 attention" in said else "flash-attn-4" if "FA4" in said else "auto"
    return Settings(attention, weights, compile=True)


def plan(row: Row) -> Plan:
    """The plan of a row, with its settings; MLPerf's guidance differs by expert."""
    guided = re.search(r"guidance ([\d.]+)/([\d.]+)", row.notes)
    own = row.plan()
    clip = replace(own.clip, guidance=float(guided[1]), guidance_2=float(guided[2])) if guided else own.clip
    return replace(own, clip=clip, settings=settings(row))


def lines(found: list[Row]) -> list[Line]:
    """These rows beside what is predicted, without an anchor."""
    return [Line(row, _predicted(row)) for row in low(found)]


def _predicted(row: Row) -> float:
    found = cost(plan(row), row.machine, streamed=False)
    return found.denoise if row.metric == "denoise" else found.clip


if __name__ == "__main__":
    own = lines(rows())
    print("\n".join([*table(own), "", summary(own)]))
