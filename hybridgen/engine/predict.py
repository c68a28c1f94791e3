"""What the planner predicts of a step of a run, on the machine that it runs on. No torch."""

from __future__ import annotations

from collections import defaultdict

from hybridgen.engine.machine import device_name
from hybridgen.engine.timing import Prediction
from hybridgen.errors import RequestError
from hybridgen.plan.plan import Plan
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.hardware.lookup import find
from hybridgen.planner.hardware.names import machine_of
from hybridgen.planner.hardware.rates import GENERATIONS, STOCK, kernel_name
from hybridgen.planner.price.compute import eager_seconds
from hybridgen.planner.price.cost import cost

STILL = ("pipeline bubbles", "waiting for the slowest GPU")
"""Items of a price in which a rank waits for others without an exchange of its own."""


def predict(plan: Plan, device: str, hardware: str | None = None) -> Prediction:
    """The prediction of a denoising step; without one it says why.

    hardware: name or file of a machine; by default the one with this device, if it is a GPU that the planner knows.
    """
    if device == "cpu" and hardware is None:
        return Prediction("the planner has no figures of this CPU; hybridgen calibrate measures them")
    try:
        machine = find(hardware) if hardware else machine_of(device_name(device))
        price = cost(plan, machine)
    except RequestError as error:
        return Prediction(error.problem)
    steps, exchanges = plan.clip.steps, defaultdict[str, float](float)
    for item in price.items:
        if item.communication:
            exchanges[item.name] += item.seconds / steps
    still = sum(item.seconds for item in price.items if item.name in STILL)
    return Prediction(
        machine=f"{plan.world_size} x {machine.title}",
        kernel=_kernel(plan, machine),
        step=round((price.denoise + eager_seconds(plan, machine)) / steps, 6),
        error=round(price.error, 4),
        waiting=round(still / steps + sum(exchanges.values()), 6),
        exchanges={name: round(seconds, 6) for name, seconds in exchanges.items()},
    )


def _kernel(plan: Plan, machine: Hardware) -> str:
    """The attention kernel that the prediction is for."""
    asked, head_dim = plan.settings.attention, plan.facts.transformer.head_dim
    name = kernel_name(machine.generation, asked, plan.dtype, head_dim, plan.degrees.cp > 1)
    return GENERATIONS[machine.generation].usual if name == STOCK else name
