"""How far a predicted time may be off, by how far a plan is from what was measured. No torch.

The shares are errors of rows whose source no constant was fitted to (docs/planner-accuracy.md): nine of ten lie inside.
What adds to them where nothing was measured is assumed. Independent parts add up as squares.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hybridgen.plan.plan import Plan
from hybridgen.planner.hardware.constants import Constant, Hardware
from hybridgen.planner.hardware.hosts import borders

WIDEST, WIDEST_PCIE = 72, 12
"""Most GPUs of a published run, over NVLink and over PCIe."""
BEYOND = 0.1
"""What every doubling beyond them adds; assumed."""
CROSSING = 0.15
"""What a network between the GPUs adds; assumed, since no published run here crosses one."""
SETTING = 0.1
"""What a setting in few bits, or one that skips steps, adds; assumed, since it was published for few shapes."""
MOST = 0.9


class Part(NamedTuple):
    """One reason why a time may be off."""

    share: float
    why: str
    """What it is for, in words that follow the share: "for the network, over which no run was published"."""


def parts(plan: Plan, hardware: Hardware) -> list[Part]:
    """The reasons why the plan's predicted time may be off."""
    gpus, widest = plan.world_size, WIDEST_PCIE if hardware.shared_bus else WIDEST
    found = [Part(hardware.error.value, "for one GPU's time" + _assumed(hardware.error))]
    if gpus > 1 and hardware.error != hardware.anchored:
        found.append(Part(hardware.anchored.value, "for several GPUs" + _assumed(hardware.anchored)))
    if not borders(gpus, hardware).is_one_domain(gpus):
        found.append(Part(CROSSING, "for the network, over which no run was published"))
    if gpus > widest:
        found.append(Part(BEYOND * math.log2(gpus / widest), f"for more than {widest} GPUs, which nobody measured"))
    if set(plan.settings.chosen) - {"compile"}:
        found.append(Part(SETTING, "for the settings, which were published for few shapes"))
    return found


def _assumed(constant: Constant) -> str:
    """Where a share comes from, unless it was fitted."""
    return "" if constant.origin.startswith("fitted") else f" ({constant.origin})"


def in_words(plan: Plan, hardware: Hardware) -> str:
    """The range and what it is made of: "17%: 15% for one GPU's time, 8% for several GPUs, added as squares"."""
    found, whole = parts(plan, hardware), f"{share(plan, hardware):.0%}"
    if len(found) == 1:
        return f"{whole} {found[0].why}"
    return f"{whole}: {', '.join(f'{part.share:.0%} {part.why}' for part in found)}, added as squares"


def share(plan: Plan, hardware: Hardware) -> float:
    """Half the width of the range around a predicted time, as a share of it."""
    return min(math.sqrt(sum(part.share**2 for part in parts(plan, hardware))), MOST)
