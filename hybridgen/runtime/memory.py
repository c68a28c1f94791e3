"""Peak memory of this rank: the allocator's on a GPU, private memory above the start on a CPU."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import torch

SECONDS = 0.2
"""How often a CPU rank looks at its own memory, unless looking takes more than SHARE of its time."""
SHARE = 0.01
"""The kernel walks the page tables for one look: 9 ms were measured in a run of 0.3 GB, 2% to 10% of its time."""


class PeakMemory:
    """Starts counting when made. On a CPU what the rank shares with the process it was forked from does not count."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.peak, self.stop = device, 0, threading.Event()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            self.base = private_bytes()
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        pause = SECONDS
        while not self.stop.wait(pause):
            start = time.perf_counter()
            self.sample()
            pause = max(SECONDS, (time.perf_counter() - start) / SHARE)

    def sample(self) -> None:
        """Look now, too."""
        if self.device.type != "cuda":
            self.peak = max(self.peak, private_bytes() - self.base)

    def close(self) -> int:
        """Bytes at the peak."""
        self.stop.set()
        self.sample()
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else self.peak


def private_bytes() -> int:
    """Memory written by this process alone (Private_Dirty); 0 where the system does not tell."""
    try:
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
            if line.startswith("Private_Dirty:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
