"""Flags of hybridgen plan that are not fields of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hybridgen.planner.choose.options import PlanOptions
from hybridgen.recipe.flags import flag

OUTPUT = "Output"
"""Panel of the help."""
ONCE = ("gpus", "explain", "rejected", "scaling", "plot", "save", "json", "quiet")
"""Flags that are not part of the command that shows a page again."""


@dataclass
class PlanFlags(PlanOptions):
    """Flags of hybridgen plan; each field is a flag with its help, and part of the commands that a page prints."""

    top: int | None = flag("How many kinds of plan to show, the best of each (6).", panel=OUTPUT, metavar="N")
    everything: bool = flag("Show every plan, not the best of each kind.", "--all", panel=OUTPUT, default=False)
    explain: int | None = flag("Show where the time and memory of plan N go.", panel=OUTPUT, metavar="N")
    rejected: bool = flag("Show plans near the request that are not possible, and why.", panel=OUTPUT, default=False)
    scaling: bool = flag("Show the best plan at every width up to --gpus.", panel=OUTPUT, default=False)
    plot: Path | None = flag("Draw scaling and times (needs matplotlib).", panel=OUTPUT, metavar="FILE.png")
    save: Path | None = flag(
        "Write the recipe of the first plan, or of the one that --explain takes.",
        panel=OUTPUT,
        metavar="FILE.yaml",
    )
    json: bool = flag("Print everything as JSON.", panel=OUTPUT, default=False)
    quiet: bool = flag("Print the recommended plan and nothing else.", "--quiet", "-q", panel=OUTPUT, default=False)
