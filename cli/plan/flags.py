"""Flags of hybridgen plan that are not fields of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hybridgen.plan.plan import SHORT_DTYPES
from hybridgen.planner.hardware.known import DEFAULT, MACHINES
from hybridgen.recipe.flags import flag

MACHINE, MODEL, CHOICE, OUTPUT = "Machine", "Model", "Choice", "Output"
"""Panels of the help."""
KNOWN = ", ".join(name + " (default)" * (name == DEFAULT) for name in MACHINES)

ONCE = ("gpus", "explain", "rejected", "scaling", "plot", "save", "json", "quiet")
"""Flags that are not part of the command that shows a page again."""


@dataclass
class PlanFlags:
    """Flags of hybridgen plan; each field is a flag with its help, and part of the commands that a page prints."""

    gpus: int | None = flag("Number of GPUs.", panel=MACHINE, metavar="N")
    nodes: int | None = flag("Number of hosts.", panel=MACHINE, metavar="N")
    gpus_per_node: int | None = flag("GPUs of a host.", panel=MACHINE, metavar="N")
    hardware: str | None = flag(f"{KNOWN} or FILE.yaml.", panel=MACHINE, metavar="NAME", values=lambda: MACHINES)
    heads: int | None = flag(
        "Attention heads instead of the model's own; the width of attention is unchanged.", panel=MODEL, metavar="N"
    )
    model_facts: Path | None = flag("A model of your own, described in YAML.", panel=MODEL, metavar="FILE.yaml")
    dtype: str | None = flag(
        "float32, bfloat16 or float16; the model's own by default.",
        panel=MODEL,
        metavar="NAME",
        values=lambda: SHORT_DTYPES,
    )
    approximate: bool = flag("Let pipefusion compete, which changes the clip.", panel=CHOICE, default=False)
    fewer: bool = flag("Recommend fewer GPUs where more are no faster.", panel=CHOICE, default=False)
    anchor: float | None = flag("Denoise seconds of this clip, measured on one GPU.", panel=CHOICE, metavar="SECONDS")
    max_time: str | None = flag("Refuse plans whose clip takes longer, as in 90s or 20m.", panel=CHOICE, metavar="TIME")
    memory: str | None = flag("Memory of a GPU that may be used, as in 40GB.", panel=CHOICE, metavar="SIZE")
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
