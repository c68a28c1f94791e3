"""The state of a clip between two denoising steps, on disk: what a run that was ended goes on from.

It is the latents and what the scheduler remembers, whole, so that another split can take it up. Rank 0 writes it, whole
or not at all; a write that fails is a warning, since the clip can be made without it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from hybridgen.distributed.files import written_whole
from hybridgen.engine.job import STATE_KEPT
from hybridgen.engine.rank import Rank
from hybridgen.models.denoiser import Denoiser
from hybridgen.models.history import remember
from hybridgen.plan.traffic import STATE

LATENTS = "latents"


def keep(rank: Rank, model: Denoiser, x: Tensor, done: int) -> None:
    """Write the state after so many steps: x is this rank's part of the latents."""
    rank.set_status(f"keep the state of step {done}")
    tensors, plain = model.slots.history(x)
    job, group = rank.job, rank.mesh.sequence()
    if group is None:
        return
    group = replace(group, strategy=STATE)
    whole = {}
    for name, part in {LATENTS: x, **tensors}.items():
        shards = group.gather(part) if group.size > 1 else [part]
        if rank.first and shards is not None:
            whole[name] = model.state.assemble(shards).cpu().contiguous()
    if not rank.first:
        return
    from safetensors.torch import save

    about = {"steps_done": str(done), "scheduler": json.dumps(plain), "request": json.dumps(asdict(job.request()))}
    try:
        with written_whole(job.state, job.owner) as part_file, part_file.open("wb") as file:
            file.write(save(whole, about))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        rank.warn(f"{job.state}: the state cannot be kept ({error.strerror}); the run goes on")
        return
    rank.context.mark(STATE_KEPT, f"{done} {job.state}")


def take_up(rank: Rank, model: Denoiser) -> Tensor:
    """This rank's part of the latents of the state that its clip goes on from, and the scheduler as it was."""
    from safetensors import safe_open

    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    if rank.first:
        with safe_open(rank.job.state, "pt") as file:
            tensors = {name: file.get_tensor(name).to(rank.device) for name in file.keys()}  # noqa: SIM118 - it is no dict
            plain = json.loads(file.metadata()["scheduler"])
    tensors, plain = shared(rank, tensors), rank.broadcast_object(plain)
    parts = {name: model.state.cut(full) for name, full in tensors.items()}
    remember(model.scheduler, {name: part for name, part in parts.items() if name != LATENTS}, plain)
    return parts[LATENTS]


def shared(rank: Rank, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rank 0's tensors on every rank."""
    if rank.context.world == 1:
        return tensors
    world = replace(rank.mesh.world(), strategy=STATE)
    said = {name: (list(x.shape), str(x.dtype).removeprefix("torch.")) for name, x in tensors.items()}
    found = {}
    for name, (shape, dtype) in world.broadcast_object(said).items():
        own = tensors.get(name)
        kind: torch.dtype = getattr(torch, dtype)
        found[name] = world.broadcast(torch.empty(shape, dtype=kind, device=rank.device) if own is None else own)
    return found
