"""One process of a job: its device, its place in the mesh, and what it records."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from hybridgen.distributed.mesh import Mesh, build_mesh
from hybridgen.distributed.peak_memory import PeakMemory
from hybridgen.distributed.processes import RankContext
from hybridgen.distributed.progress import Progress
from hybridgen.distributed.rendezvous import init_process_group
from hybridgen.distributed.waits import Waits
from hybridgen.engine.control import Control
from hybridgen.engine.job import Job
from hybridgen.models.autoencoder import Autoencoder
from hybridgen.models.guardrail import Guardrail
from hybridgen.models.inputs import Encoder


@dataclass
class Held:
    """What a rank that stays keeps from clip to clip."""

    experts: list[Any] = field(default_factory=list)
    """The transformers, of which the rank has its part."""
    vae: Autoencoder | None = None
    encoder: Encoder | None = None
    guardrail: Guardrail | None = None


@dataclass
class Rank:
    """This process as one rank: its place among the others, and what it records of the clip that it makes."""

    context: RankContext
    device: torch.device
    mesh: Mesh
    memory: PeakMemory
    control: Control
    job: Job
    """The clip that is made now."""
    held: Held = field(default_factory=lambda: Held())
    progress: Progress = field(default_factory=Progress)
    doing: str = "start"
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall-clock seconds by stage."""
    steps: list[float] = field(default_factory=list)
    """Seconds of every denoising step."""
    waits: list[dict[str, float]] = field(default_factory=list)
    """Seconds of every denoising step that went to exchanges, by strategy."""
    warnings: list[str] = field(default_factory=list)

    @property
    def first(self) -> bool:
        return self.context.rank == 0

    def begin(self, job: Job) -> None:
        """Begin a clip: nothing that was recorded of another is left."""
        self.job, self.seconds, self.steps, self.waits, self.warnings = job, {}, [], [], []
        if self.memory.stop.is_set():
            self.memory.start()
        self.mesh.traffic.sent.clear()
        self.context.status.forget()
        self.progress = self.control.progress(job, self.first)
        if self.device.type == "cpu":
            torch.set_num_threads(job.threads)

    @contextmanager
    def stage(self, name: str, report: str = "", mapped: bool = False) -> Iterator[None]:
        """A context for a named stage: its time is recorded (under `report`), and the rank's status is set.

        `mapped` says that the stage maps files, as loading does.
        """
        self.set_status(name)
        if mapped:
            self.memory.sample()  # what no stage before it has looked at, and would be left out with its files
        start = time.perf_counter()
        yield
        report = report or name
        self.seconds[report] = self.seconds.get(report, 0.0) + time.perf_counter() - start
        self.memory.sample(mapped)

    def broadcast_object(self, thing: Any) -> Any:
        """Send rank 0's plain data to every rank; `thing` is of the same kind on all."""
        return self.mesh.world().broadcast_object(thing) if self.context.world > 1 else thing

    def warn(self, text: str) -> None:
        """Show a warning at once, and keep it for the report."""
        self.warnings.append(text)
        self.progress.note(f"warning: {text}")

    def set_status(self, doing: str, waits: bool = False) -> None:
        """Set the status that tells the launcher what this rank is doing, and whether it waits for others in it."""
        self.doing = doing
        self.context.status.set(doing, waits)


def set_up(context: RankContext, job: Job, control: Control | None = None) -> Rank:
    """Take the device, join the other ranks, build the mesh, for this clip and those that need the same of ranks."""
    device = torch.device(job.device)
    if device.type == "cuda":
        device = torch.device("cuda", context.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    memory = PeakMemory(device)
    control = control or Control(context)
    if job.warning and context.launcher is not None:
        signal.signal(job.warning, signal.SIG_IGN)  # it may be sent to every process; the launcher hears it
    if job.plan.world_size > 1:
        context.status.set("joining the other ranks", waits=True)
        control.store = init_process_group(context, device)
    mesh = build_mesh(job.plan.layout, context.rank, device.type)
    if device.type == "cuda":
        mesh.traffic.waits = Waits(lambda: torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
    rank = Rank(context, device, mesh, memory, control, job)
    mesh.traffic.watch = lambda name: context.status.set(f"{rank.doing}, {name}", waits=True)
    rank.begin(job)
    return rank


def quiet_libraries() -> None:
    """Silence progress and warnings of the loaders, which would come from every rank; errors are raised anyway."""
    import diffusers
    import transformers

    for logging in (diffusers.utils.logging, transformers.utils.logging):
        logging.set_verbosity_error()
        logging.disable_progress_bar()
