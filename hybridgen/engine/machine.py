"""The machine that a run is on: its devices, whether they suffice for a plan, and what the planner makes of them."""

from __future__ import annotations

import os

from hybridgen.engine import environment
from hybridgen.errors import RequestError
from hybridgen.plan.plan import Plan
from hybridgen.planner.choose.fill import fill, machine_of
from hybridgen.planner.choose.ranking import Candidate
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.hardware.hosts import spread
from hybridgen.planner.hardware.lookup import find
from hybridgen.planner.price.memory import peak
from hybridgen.recipe.fields import Recipe
from hybridgen.recipe.legal import nearest_plans
from hybridgen.recipe.resolve import check_count

CROWD = 8
"""CPU ranks a core beyond which a run is slow enough to say so."""


def device_of(asked: str | None) -> str:
    """cuda or cpu; cuda where there is one and nothing is said. Raises RequestError (device)."""
    if asked == "cpu":
        return "cpu"
    import torch

    present = torch.cuda.is_available()
    if asked == "cuda" and not present:
        raise RequestError.told("device", "--device cuda: torch sees no CUDA device here; nearest: --device cpu")
    return "cuda" if present else "cpu"


def device_name(device: str) -> str:
    """ "cpu", or what the driver calls the first GPU."""
    if device == "cpu":
        return device
    import torch

    return torch.cuda.get_device_name()


def count_gpus() -> int:
    """GPUs of this machine."""
    import torch

    return torch.cuda.device_count()


def choose(recipe: Recipe, gpus: int | None, machine: str | None = None) -> tuple[Recipe, Candidate, Hardware]:
    """The recipe with every degree that it leaves open chosen by the planner; the plan, and the machine it is for.

    Without `gpus` all GPUs of this machine or of the job are taken; `machine` is a name or file of the planner's, by
    default this machine. Raises RequestError.
    """
    place = environment.joined_rank()
    here = device_of(recipe.runtime.device) if machine is None or gpus is None else ""
    if gpus is None:
        gpus = place.world if place else count_gpus() if here == "cuda" else None
    if gpus is None:
        message = "--auto needs --gpus: this machine has no GPUs to count, and CPU ranks are as many as you like"
        raise RequestError.told("gpus", message, tries=[{"gpus": "2"}])
    check_count("gpus", gpus)
    hardware = find(machine) if machine else machine_of(device_name(here))
    return *fill(recipe, gpus, hardware), hardware


def hardware_unused(machine: str) -> RequestError:
    """Where a machine is named and the planner has nothing to choose."""
    return RequestError.told(
        "hardware-unused",
        f"--hardware {machine} is for the planner, which has nothing to choose: the degrees are given; "
        "nearest: without it, or with --auto --gpus N",
        tries=[{"hardware": None}],
    )


def crowded(ranks: int) -> str | None:
    """One sentence when CPU ranks would wait for each other more than they work; None when they would not."""
    cores = os.cpu_count() or 1
    if ranks <= CROWD * cores or environment.joined_rank() is not None:
        return None
    return f"{ranks} ranks take turns on {cores} CPU cores: that shows what a rack does, and takes minutes"


def check_machine(plan: Plan, device: str) -> None:
    """Enough GPUs, or enough memory for all ranks, on this machine; as many ranks as another launcher started."""
    world, place = plan.world_size, environment.joined_rank()
    if place is not None:
        if place.world != world:
            raise _other_world(plan, place.world)
        return
    if device == "cuda":
        count = count_gpus()
        if world > count:
            raise RequestError.told(
                "gpus-present",
                f"the plan needs {world} GPUs and this machine has {count}; nearest: a plan for {count}, "
                "or more machines under torchrun or srun",
                tries=[spread(world, max(count, 1)).torchrun],
            )
        return
    needed = sum(peak(plan, rank) for rank in range(world))
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > present:
        raise RequestError.told(
            "memory",
            f"this machine has no {'GPU' if world == 1 else f'{world} GPUs'} for the plan, and {plan.facts.name} "
            f"would need about {needed / 1e9:.0f} GB of its {present / 1e9:.0f} GB on CPUs; nearest: --model demo",
            tries=[{"dry-run": ""}],
        )


def _other_world(plan: Plan, world: int) -> RequestError:
    """The launcher and the plan disagree: how many ranks to start, and the plan most like this one for those there."""
    close = nearest_plans(plan, world, 1)
    dropped = dict.fromkeys(("usp", "patches", "warmup", "order"), None)
    return RequestError.told(
        "world-size",
        f"the launcher started {world} ranks and the plan has {plan.world_size} ({plan.degrees}); "
        f"nearest: start {plan.world_size}" + "".join(f", or {other.degrees} on {world}" for other in close),
        tries=[{**dropped, "gpus": str(world), **other.degrees.instead_of(plan.degrees)} for other in close],
    )
