"""Options of a plan besides its recipe: flags of `hybridgen plan`, keywords of `hybridgen.plan`. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hybridgen.planner.choose.objective import Aim, Objective
from hybridgen.planner.hardware.known import DEFAULT, MACHINES
from hybridgen.recipe import quantity
from hybridgen.recipe.flags import flag

MACHINE, MODEL, CHOICE = "Machine", "Model", "Choice"
"""Panels of the help."""
KNOWN = ", ".join(name + " (default)" * (name == DEFAULT) for name in MACHINES)


@dataclass
class PlanOptions:
    """Options of a plan; each field is a flag with its help."""

    gpus: int | None = flag("Number of GPUs.", panel=MACHINE, metavar="N")
    nodes: int | None = flag("Number of hosts.", panel=MACHINE, metavar="N")
    gpus_per_node: str | int | None = flag(
        "GPUs of a host; or of every host, as in 8,8,4, which ranks fill in order.", panel=MACHINE, metavar="N"
    )
    hardware: str | None = flag(
        f"{KNOWN} or FILE.yaml; or several kinds of cards, as in h100:8,a100:8.",
        panel=MACHINE,
        metavar="NAME",
        values=lambda: MACHINES,
    )
    heads: int | None = flag(
        "Attention heads instead of the model's own; the width of attention is unchanged.", panel=MODEL, metavar="N"
    )
    model_facts: Path | None = flag("A model of your own, described in YAML.", panel=MODEL, metavar="FILE.yaml")
    approximate: bool = flag("Let pipefusion compete, which changes the clip.", panel=CHOICE, default=False)
    fewer: bool = flag("Recommend fewer GPUs where more are no faster.", panel=CHOICE, default=False)
    anchor: str | float | None = flag(
        "Denoise seconds of this clip, measured on one GPU; or on several, as in '8:54.3:cfg2 ulysses4'.",
        panel=CHOICE,
        metavar="[GPUS:]SECONDS[:SPLIT]",
    )
    max_time: str | float | None = flag(
        "Refuse plans whose clip takes longer, as in 90s or 20m.", panel=CHOICE, metavar="TIME"
    )
    memory: str | float | None = flag("Memory of a GPU that may be used, as in 40GB.", panel=CHOICE, metavar="SIZE")

    objective: Objective = flag(
        "What a plan is chosen for: the time of a clip, the clips of an hour, or the GPU time of a clip.",
        panel=CHOICE,
        default=Objective.latency,
    )
    price: float | None = flag("Money that one GPU costs an hour, as in 2.5.", panel=CHOICE, metavar="MONEY")
    clips: int | None = flag("How many clips are to be made.", panel=CHOICE, metavar="N")

    @property
    def aim(self) -> Aim:
        """What a plan is chosen for. Raises RequestError (objective)."""
        return Aim(self.objective, self.price, self.clips)

    @property
    def seconds(self) -> float | None:
        """The limit of time. Raises RequestError (quantity)."""
        return quantity.read("max-time", self.max_time, quantity.SECONDS, "90s")

    @property
    def size(self) -> float | None:
        """The limit of memory in bytes. Raises RequestError (quantity)."""
        return quantity.read("memory", self.memory, quantity.BYTES, "40GB")
