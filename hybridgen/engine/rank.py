"""One process of a job: its device, its place in the mesh, and what it records."""

from __future__ import annotations

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
from hybridgen.engine.job import Job


@dataclass
class Rank:
    """This process as one rank of the job."""

    context: RankContext
    job: Job
    device: torch.device
    mesh: Mesh
    progress: Progress
    memory: PeakMemory
    doing: str = "start"
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall-clock seconds by stage."""
    steps: list[float] = field(default_factory=list)
    """Seconds of every denoising step."""
    warnings: list[str] = field(default_factory=list)

    @property
    def first(self) -> bool:
        return self.context.rank == 0

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


def set_up(context: RankContext, job: Job) -> Rank:
    """Take the device, join the other ranks, build the mesh."""
    device = torch.device(job.device)
    if device.type == "cuda":
        device = torch.device("cuda", context.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(job.threads)
    memory = PeakMemory(device)
    if job.plan.world_size > 1:
        context.status.set("joining the other ranks", waits=True)
        init_process_group(context, device)
    mesh = build_mesh(job.plan.layout, context.rank, device.type)
    progress = Progress.for_stream(job.quiet) if context.rank == 0 else Progress()
    rank = Rank(context, job, device, mesh, progress, memory)
    mesh.traffic.watch = lambda name: context.status.set(f"{rank.doing}, {name}", waits=True)
    return rank


def quiet_libraries() -> None:
    """Silence progress and warnings of the loaders, which would come from every rank; errors are raised anyway."""
    import diffusers
    import transformers

    for logging in (diffusers.utils.logging, transformers.utils.logging):
        logging.set_verbosity_error()
        logging.disable_progress_bar()
