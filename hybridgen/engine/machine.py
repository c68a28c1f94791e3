"""The machine of a run: its devices, whether they suffice for a plan, and the planner's choice for them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hybridgen.engine import environment
from hybridgen.errors import RequestError, counted
from hybridgen.plan.plan import Plan
from hybridgen.planner.choose.ranking import Candidate
from hybridgen.planner.choose.recommend import fill
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.hardware.hosts import spread
from hybridgen.planner.hardware.lookup import find
from hybridgen.planner.hardware.names import machine_of
from hybridgen.planner.price.memory import peak
from hybridgen.recipe.fields import Recipe
from hybridgen.recipe.legal import nearest_plans
from hybridgen.recipe.resolve import check_count
from hybridgen.strategies import registry

RULES = {
    "gpus-present": "Every rank needs a GPU of its own. More machines are joined by torchrun or srun.",
    "replicas": "Replicas are groups of ranks that are alike, so each of them takes the same part of the GPUs.",
    "hardware-unused": "--hardware says what the planner plans for. It chooses where --gpus is given without degrees, "
    "or with --auto; elsewhere the flag would change nothing.",
}
CROWD = 8
"""CPU ranks per core above which a run is so slow that a warning says so."""


def device_of(asked: str | None) -> str:
    """The device, cuda or cpu; by default cuda if there is one. Raises RequestError (device)."""
    if asked == "cpu":
        return "cpu"
    import torch

    present = torch.cuda.is_available()
    if asked == "cuda" and not present:
        raise RequestError("device", "device", asked, "torch sees no CUDA device here", ["cpu"])
    return "cuda" if present else "cpu"


def device_name(device: str) -> str:
    """Name of the device: "cpu", or what the driver calls the first GPU."""
    if device == "cpu":
        return device
    import torch

    return torch.cuda.get_device_name()


def count_gpus() -> int:
    """Number of GPUs of this machine."""
    import torch

    return torch.cuda.device_count()


@dataclass(frozen=True)
class Choice:
    """What the planner chose for a run."""

    recipe: Recipe
    """The request with every degree given."""
    candidate: Candidate
    """The plan, and what is predicted for it."""
    hardware: Hardware
    """The machine that it was chosen for."""


def choose(
    recipe: Recipe,
    gpus: int | None,
    hardware: str | None = None,
    video_frames: int | None = None,
    replicas: int | None = None,
) -> Choice:
    """Let the planner choose every degree that a recipe leaves open.

    gpus: without it all GPUs of this machine or of the joined job are taken.
    hardware: name or file of the machine to plan for, by default this machine.
    video_frames: frames of the given video, as for clip_of().
    replicas: groups of ranks that share the GPUs.

    Raises RequestError.
    """
    joined = environment.joined_rank()
    here = device_of(recipe.runtime.device) if hardware is None or gpus is None else ""
    if gpus is None:
        gpus = joined.world if joined else count_gpus() if here == "cuda" else None
    if gpus is None:
        problem = "needs --gpus N: torch sees no GPUs to count here, and any number of CPU ranks can be started"
        raise RequestError("gpus", "auto", None, problem, tries=[{"gpus": "2"}])
    check_count("gpus", gpus)
    gpus = share_of(gpus, replicas)
    machine = find(hardware) if hardware else machine_of(device_name(here))
    return Choice(*fill(recipe, gpus, machine, video_frames), machine)


def share_of(gpus: int, replicas: int | None) -> int:
    """GPUs of one of several replicas. Raises RequestError (replicas)."""
    if replicas is None:
        return gpus
    if replicas < 1:
        raise RequestError("quantity", "replicas", replicas, "must be 1 or more", [1])
    if gpus % replicas:
        legal = [count for count in range(1, gpus + 1) if gpus % count == 0]
        near = sorted(legal, key=lambda count: abs(count - replicas))[:2]
        raise RequestError("replicas", "replicas", replicas, f"do not share {counted(gpus, 'GPU')} evenly", near)
    return gpus // replicas


def check_share(plan: Plan, gpus: int | None, replicas: int) -> None:
    """Raise RequestError (replicas) where replicas of a plan are not the GPUs that were given."""
    world = plan.world_size
    gpus = gpus or replicas * world
    if share_of(gpus, replicas) != world:
        problem = f"{counted(replicas, 'replica')} of {counted(world, 'rank')} ({plan.degrees}) are {replicas * world}"
        counts = [{"gpus": str(replicas * world)}, *([{"replicas": str(gpus // world)}] if gpus % world == 0 else [])]
        raise RequestError("replicas", "gpus", gpus, problem, f"--gpus {replicas * world}", counts)


def hardware_unused(hardware: str) -> RequestError:
    """The error of a named machine where the planner has nothing to choose."""
    problem = "is for the planner, which has nothing to choose: the degrees are given"
    nearest = "without it, or with --auto --gpus N"
    return RequestError("hardware-unused", "hardware", hardware, problem, nearest, [{"hardware": None}])


def crowded(ranks: int) -> str | None:
    """A warning if CPU ranks would wait for each other more than they work; None otherwise."""
    cores = os.cpu_count() or 1
    if ranks <= CROWD * cores or environment.joined_rank() is not None:
        return None
    return f"{ranks} ranks take turns on {counted(cores, 'CPU core')}: that shows what a rack does, and takes minutes"


def check_machine(plan: Plan, device: str, replicas: int = 1) -> None:
    """Check that this machine, and the ranks that another launcher started, suffice for replicas of the plan.

    Raises RequestError.
    """
    world, joined = replicas * plan.world_size, environment.joined_rank()
    if joined is not None:
        if joined.world != world:
            raise _other_world(plan, joined.world, replicas)
        return
    if device == "cuda":
        count = count_gpus()
        if plan.world_size <= count < world:
            problem = f"of {counted(plan.world_size, 'GPU')} each are more than this machine has ({count})"
            raise RequestError("gpus-present", "replicas", replicas, problem, [count // plan.world_size])
        if world > count:
            problem = f"this machine has {count}"
            nearest = f"a plan for {count}, or more machines under torchrun or srun"
            raise RequestError("gpus-present", "gpus", world, problem, nearest, [spread(world, max(count, 1)).torchrun])
        return
    one = sum(peak(plan, rank) for rank in range(plan.world_size))
    needed, present = replicas * one, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    words = f"about {needed / 1e9:.0f} GB of memory, and this machine has {present / 1e9:.0f} GB"
    if one <= present < needed:
        raise RequestError("memory", "replicas", replicas, f"need {words}", [int(present // one)])
    if needed > present:
        problem = f"without GPUs {plan.facts.name} needs {words}"
        raise RequestError("memory", "gpus", world, problem, "--model demo", [{"dry-run": ""}])


def _other_world(plan: Plan, world: int, replicas: int) -> RequestError:
    """The error of a launcher that started another number of ranks: how many to start, and the nearest plans."""
    if replicas > 1:
        needed = f"{replicas} replicas of {plan.world_size} ({plan.degrees})"
        problem = f"the launcher started {counted(world, 'rank')}, and the job has {needed}"
        tries = [{"replicas": str(world // plan.world_size)}] if world % plan.world_size == 0 else []
        return RequestError("world-size", "", None, problem, f"start {replicas * plan.world_size}", tries)
    close = nearest_plans(plan, world, 1)
    dropped = dict.fromkeys(registry.BESIDE, None)
    problem = f"the launcher started {counted(world, 'rank')} and the plan has {plan.world_size} ({plan.degrees})"
    nearest = f"start {plan.world_size}" + "".join(f", or {other.degrees} on {world}" for other in close)
    return RequestError(
        "world-size",
        "",
        None,
        problem,
        nearest,
        [{**dropped, "gpus": str(world), **other.degrees.instead_of(plan.degrees)} for other in close],
    )
