"""How often the state of a clip is kept where nobody says: it takes less than a hundredth of the time. No torch."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

SHARE = 0.01
"""Part of the time that keeping states may take."""
FIRST = 0.3
"""Seconds that are assumed for keeping a state, until one was kept."""


@dataclass
class Pace:
    """The pace of one clip: when a state is due, from what the last one took."""

    began: float = field(default_factory=time.monotonic)
    """When the clip began, or the last state was kept."""
    cost: float = FIRST
    """Seconds that the last state took."""

    def is_due(self) -> bool:
        """Whether so much time is gone since the last state that another takes less than SHARE of it."""
        return time.monotonic() - self.began > self.cost / SHARE

    def kept(self, seconds: float) -> None:
        """Note that a state was kept, and what that took."""
        self.began, self.cost = time.monotonic(), seconds
