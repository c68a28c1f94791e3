"""What the settings of a plan save, as factors with their origin: matrix products, and steps that are computed.

What attention gains is in hybridgen/planner/hardware/rates.py, beside the other kernels. No torch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hybridgen.errors import RequestError
from hybridgen.plan.plan import Plan
from hybridgen.plan.settings import KERNEL_LIKE, SETTINGS, Settings
from hybridgen.planner.hardware.constants import Constant, Hardware
from hybridgen.planner.hardware.origins import published
from hybridgen.planner.hardware.rates import attention_factor, has_kernel

RULES = {
    "setting-card": "Tensor cores multiply some numbers only: fp8 since Ada, Hopper and CDNA 3, 4 bits in blocks of 16 "
    "since Blackwell. Weights in fp8 or int8 are cast back where there are none, which saves memory and no time.",
}
ONE = Constant(1.0, "not used")


class Skipping(NamedTuple):
    """How much faster a way to skip steps made whole runs, by threshold."""

    faster: tuple[tuple[float, float], ...]
    """Threshold and how many times as fast, both rising."""
    where: str


SKIPPING = {
    "first-block": Skipping(
        ((0.06, 3675.71 / 2271.06),), "HunyuanVideo at 720p with 30 steps on one L20 (ParaAttention, its guide)"
    ),
    "mag": Skipping(
        ((0.06, 1629 / 1090), (0.12, 1840 / 695), (0.24, 3604 / 1300)),
        "Wan 2.2 A14B at 480p, Wan 2.1 I2V and T2V 14B at 720p, with 40 to 50 steps (MagCache, its pages of Wan)",
    ),
    "teacache": Skipping(
        ((0.14, 55 / 38), (0.2, 55 / 27), (0.3, 29 / 12)),
        "Wan 2.1 14B at 720p, T2V and I2V, on one A800 (TeaCache, its page of Wan 2.1)",
    ),
}
"""By the names of the setting `cache`."""


def products(plan: Plan, hardware: Hardware) -> Constant:
    """How many times as fast matrix products are as in bf16 with weights in bf16."""
    if plan.settings.weights is None or plan.dtype == "float32":
        return ONE
    return {"fp8": hardware.fp8, "int8": hardware.int8, "nvfp4": hardware.nvfp4}[plan.settings.weights]


def computed(plan: Plan) -> Constant:
    """Share of the steps that are computed; the others take no time. At least one is computed.

    Between published thresholds the speed is on a straight line, from 1 at 0, and beyond the last it grows no more.
    """
    cache, steps = plan.settings.cache, plan.clip.steps
    if cache is None:
        return ONE
    faster, where = SKIPPING[cache.method]
    low = (0.0, 1.0)
    for high in faster:
        if cache.threshold <= high[0]:
            part = (cache.threshold - low[0]) / (high[0] - low[0])
            break
        low, part = high, 1.0
    else:
        high = low
    speed = low[1] + part * (high[1] - low[1])
    return published(math.ceil(round(steps / speed, 6)) / steps, f"{speed:.2f} times as fast: {where}")


def factors(plan: Plan, hardware: Hardware) -> list[tuple[str, Constant]]:
    """Every factor of the plan's settings by name, for the page that lists constants."""
    found = {
        "attention, times the usual": attention_factor(plan, hardware) if plan.settings.attention != "auto" else ONE,
        "products, times bf16": products(plan, hardware),
        "share of steps computed": computed(plan),
    }
    return [(name, one) for name, one in found.items() if one is not ONE]


def check_card(settings: Settings, hardware: Hardware) -> None:
    """Raise RequestError (setting-card) for numbers that the GPU's tensor cores do not multiply."""
    problem = f"is not possible on {hardware.title}: its tensor cores have no such numbers"
    if settings.weights == "nvfp4" and not hardware.nvfp4.value:
        near = [choice.name for choice in SETTINGS["weights"].choices if choice.name != "nvfp4"]
        raise RequestError("setting-card", "weights", "nvfp4", problem, near)
    if settings.attention in KERNEL_LIKE and not has_kernel(hardware.generation, settings.attention):
        near = [name for name in KERNEL_LIKE if has_kernel(hardware.generation, name)]
        problem = f"has no kernel for {hardware.title}"
        tries = None if near else [{"attention": None}]
        raise RequestError("setting-card", "attention", settings.attention, problem, near or "auto", tries)
