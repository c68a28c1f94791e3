"""The request whose times are published: Wan 2.2 at 720p on a GB200 rack."""

from __future__ import annotations

from typing import Any

from hybridgen.models import catalogue
from hybridgen.plan.plan import Clip, Plan
from hybridgen.planner.hardware.lookup import find
from hybridgen.strategies.registry import Degrees

WAN22 = catalogue.find("wan2.2")
PUBLISHED_CLIP = Clip(1280, 720, 77, 40, 4.0)
"""The published 80 frames: 20 latent frames."""
RACK = find("gb200-nvl72")


def wan(**degrees: Any) -> Plan:
    return Plan(WAN22, PUBLISHED_CLIP, Degrees(**degrees))
