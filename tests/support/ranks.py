"""Run a function on CPU ranks, for tests: the launcher's own processes with a gloo group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from hybridgen.distributed import peak_memory
from hybridgen.distributed.processes import RankContext, run_local
from hybridgen.distributed.rendezvous import init_process_group


def run_ranks(world: int, fn: Callable[[RankContext], Any], deadline: float = 120.0, group: bool = True) -> list[Any]:
    """fn(context) on `world` forked ranks, one thread each; the results by rank.

    `group`: make the default process group first; else fn does that.
    A rank's exception comes back as RunFailed with the rank's traceback in its text.
    """

    def main(context: RankContext) -> Any:
        torch.set_num_threads(1)
        if group and world > 1:
            init_process_group(context, torch.device("cpu"))
        with torch.no_grad():
            result = fn(context)
        if dist.is_initialized():
            dist.barrier()
        return result

    return run_local(world, main, deadline=deadline)


def without_memory() -> None:
    """On a rank: do not look at its memory, which takes longer than all else that a tiny model does."""
    peak_memory.private_bytes = lambda: 0
    peak_memory.reset_high_water = lambda: False
