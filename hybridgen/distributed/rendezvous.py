"""How a rank joins the others: the default process group, over a store of this machine or of another launcher."""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from hybridgen.distributed.files import written_whole
from hybridgen.distributed.processes import RankContext

PATIENCE = timedelta(days=1)
"""How long a collective waits: ranks wait for rank 0 while it decodes. The launcher notices deaths, not this limit."""


def init_process_group(context: RankContext, device: torch.device) -> None:
    """Join the other ranks: NCCL between GPUs, gloo between CPUs."""
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore("ranks", context.store or _local_store(context)),
        rank=context.rank,
        world_size=context.world,
        timeout=PATIENCE,
        device_id=device if device.type == "cuda" else None,
    )


def _local_store(context: RankContext) -> Store:
    """The key-value store of this machine's ranks. Rank 0 serves it on a free port and notes the port in a file.

    It starts after the fork: a thread of the parent could hold a lock that its children would never see released.
    """
    note = context.folder / "port"
    if context.rank == 0:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        with written_whole(note) as part:
            part.write_text(str(store.port))
        return store
    while not note.exists():
        time.sleep(0.01)
    return TCPStore("127.0.0.1", int(note.read_text()), is_master=False)
