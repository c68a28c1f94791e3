"""Options of a run besides its recipe: flags of `hybridgen run`, keywords of `hybridgen.generate`. No torch."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Optional

from hybridgen.engine.outputs import AUTO, Outputs
from hybridgen.errors import RequestError
from hybridgen.planner.hardware.known import MACHINES
from hybridgen.recipe import library
from hybridgen.recipe.flags import argument, flag

OUTPUT, MANY = "Output", "Many clips"
"""Panels of the help."""


class Engine(str, Enum):
    """Engines that can run a plan."""

    native = "native"
    xfuser = "xfuser"


class PreemptSignal(str, Enum):
    """Signals by which a cluster warns that it will end a run."""

    USR1 = "USR1"
    USR2 = "USR2"
    TERM = "TERM"


class Limits(NamedTuple):
    """Seconds that a run waits for ranks."""

    hang: float | None = None
    """Silence of all ranks that ends the run; None waits for ever."""
    join: float = 600.0
    """Time for the ranks of another launcher to meet."""


def hang_timeout() -> Any:
    """The flag that ends a run for silence."""
    return flag(
        "End a run in which no rank has begun anything new for so long; a warning comes after 60 s.", metavar="SECONDS"
    )


def join_timeout() -> Any:
    """The flag that ends the wait of joined ranks."""
    return flag("Seconds in which the ranks of torchrun or srun must meet.", default=Limits().join, metavar="SECONDS")


def limits_of(given: RunOptions | DecodeOptions) -> Limits:
    """The limits of a run. Raises RequestError (quantity)."""
    for name, value in {"hang-timeout": given.hang_timeout, "join-timeout": given.join_timeout}.items():
        if value is not None and not 0 < value < float("inf"):
            raise RequestError("quantity", name, value, "must be a number of seconds above 0", [600])
    return Limits(given.hang_timeout, given.join_timeout)


@dataclass(frozen=True)
class RunOptions:
    """Options of a run; each field is a flag with its help."""

    out: Optional[Path] = flag(
        "Video file; a clip of one frame may be a .png.", "--out", "-o", metavar="FILE.mp4", panel=OUTPUT
    )
    overwrite: bool = flag("Replace files that exist.", "--overwrite/--no-overwrite", default=False, panel=OUTPUT)
    latents: Optional[Path] = flag("Keep the final latents.", metavar="FILE.safetensors", panel=OUTPUT)
    report: Optional[Path] = flag("Write timings, traffic and memory as JSON.", metavar="FILE.json", panel=OUTPUT)
    preview: Optional[Path] = flag("Write a contact sheet of the clip.", metavar="FILE.png", panel=OUTPUT)
    preview_every: Optional[int] = flag(
        "Show a frame beside the clip every K steps, as FILE.preview.png.", metavar="K", panel=OUTPUT
    )
    checkpoint_every: Optional[int] = flag(
        "Keep the state beside the clip every K steps, to go on from if the run is ended.", metavar="K", panel=OUTPUT
    )
    preempt_signal: Optional[PreemptSignal] = flag(
        "Keep the state when this signal comes, and end with code 75, for a cluster to start again.", panel=OUTPUT
    )
    resume: bool = flag("Go on from the state that a run left beside the clip.", default=False, panel=OUTPUT)
    gpus: Optional[int] = flag("Number of ranks. With no degree given, the planner chooses the split.", metavar="N")
    auto: bool = flag("Let the planner choose every degree that is not given.", default=False)
    hardware: Optional[str] = flag(
        "Machine to plan for: a name or FILE.yaml; this machine by default.", metavar="NAME", values=lambda: MACHINES
    )

    prompts: Optional[str] = flag(
        "Make a clip of every line: .txt, .csv or .jsonl; - is stdin.", metavar="FILE", panel=MANY
    )
    count: Optional[int] = flag("Make so many clips of every prompt, with one seed more each.", metavar="N", panel=MANY)
    manifest: Optional[Path] = flag(
        "What became of every clip; a job that is started again goes on from it.", metavar="FILE.jsonl", panel=MANY
    )
    shard: Optional[str] = flag(
        "Make every n-th clip, from the i-th; a Slurm array does so by itself.", metavar="i/n", panel=MANY
    )
    replicas: Optional[int] = flag(
        "Make the clips on so many groups of the plan's ranks, each with the whole model.", metavar="R", panel=MANY
    )
    fail_fast: bool = flag("End the job at the first clip that is not made.", default=False, panel=MANY)

    recipe: Optional[Path] = flag(
        "Recipe file, or a name that `recipes list` shows; flags win over it.", metavar="FILE", values=library.names
    )
    like: Optional[Path] = flag("Make a clip again, from its own record; flags win over it.", metavar="CLIP.mp4")
    settings: Optional[list[str]] = flag("Change one key of the recipe.", "--set", metavar="KEY=VALUE")
    engine: Engine = flag("What runs the plan: hybridgen itself, or xDiT's runner.", default=Engine.native)
    hang_timeout: Optional[float] = hang_timeout()
    join_timeout: float = join_timeout()
    dry_run: bool = flag("Show plan, mesh and traffic; start nothing.", default=False)
    quiet: bool = flag("Print the path and nothing else.", "--quiet", "-q", default=False)

    @property
    def limits(self) -> Limits:
        """The limits of the run. Raises RequestError (quantity)."""
        return limits_of(self)

    @property
    def outputs(self) -> Outputs:
        """The files that the run may write."""
        every, warning = self.checkpoint_every, self.preempt_signal
        if every is not None and every < 1:
            raise RequestError("quantity", "checkpoint-every", every, "must be 1 or more", [1])
        files = (self.out, self.latents, self.report, self.preview)
        if every is None and (self.resume or warning is not None):
            every = AUTO
        number = signal.Signals[f"SIG{warning.value}"] if warning is not None else 0
        return Outputs(*files, self.overwrite, self.preview_every, every or 0, self.resume, int(number))


@dataclass(frozen=True)
class DecodeOptions:
    """Options of decoding kept latents; each field is a flag with its help, but for the file."""

    file: Path = argument("Final latents that a run has kept, or written with --latents.", "LATENTS")
    out: Optional[Path] = flag(
        "Video file; a clip of one frame may be a .png.", "--out", "-o", metavar="FILE.mp4", panel=OUTPUT
    )
    overwrite: bool = flag("Replace files that exist.", "--overwrite/--no-overwrite", default=False, panel=OUTPUT)
    report: Optional[Path] = flag("Write timings, traffic and memory as JSON.", metavar="FILE.json", panel=OUTPUT)
    preview: Optional[Path] = flag("Write a contact sheet of the clip.", metavar="FILE.png", panel=OUTPUT)
    vae: int = flag("Ranks that decode, each a strip of every frame.", default=1, metavar="N")
    model: Optional[str] = flag("The model, where it is not found under the name in the file.", metavar="NAME")
    device: Optional[str] = flag("cuda or cpu; by default cuda if there is one.", metavar="NAME")
    hang_timeout: Optional[float] = hang_timeout()
    join_timeout: float = join_timeout()
    quiet: bool = flag("Print the path and nothing else.", "--quiet", "-q", default=False)
    debug: bool = flag("Show the traceback of a failed rank.", default=False)
