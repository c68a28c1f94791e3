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

TRAFFIC = "state"
"""Name under which the bytes of states are counted."""
LATENTS = "latents"


def keep(rank: Rank, model: Denoiser, x: Tensor, done: int) -> None:
    """Write the state after so many steps: x is this rank's part of the latents."""
    rank.set_status(f"keep the state of step {done}")
    job, group = rank.job, rank.mesh.sequence()
    if group is None:
        return
    group = replace(group, strategy=TRAFFIC)
    tensors, plain = remembered(model.scheduler, x)
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
    world = replace(rank.mesh.world(), strategy=TRAFFIC)
    said = {name: (list(x.shape), str(x.dtype).removeprefix("torch.")) for name, x in tensors.items()}
    found = {}
    for name, (shape, dtype) in world.broadcast_object(said).items():
        own = tensors.get(name)
        kind: torch.dtype = getattr(torch, dtype)
        found[name] = world.broadcast(torch.empty(shape, dtype=kind, device=rank.device) if own is None else own)
    return found


def remembered(scheduler: Any, x: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What a scheduler remembers from step to step: tensors in the form of x, and plain values, by attribute.

    An entry of a list is named attribute.index. Tables of the schedule are left out: they are made anew.
    """
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for name, value in vars(scheduler).items():
        if name == "_internal_dict":
            continue
        if _is_like(value, x):
            tensors[name] = value
        elif isinstance(value, list):
            plain[name] = [None if _is_like(one, x) else _plain(one) for one in value]
            tensors |= {f"{name}.{index}": one for index, one in enumerate(value) if _is_like(one, x)}
        elif value is None or isinstance(value, (bool, int, float, str)):
            plain[name] = value
    return tensors, plain


def remember(scheduler: Any, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
    """Give a scheduler, whose timesteps are set, what remembered() has found."""
    for name, value in plain.items():
        setattr(scheduler, name, [_value(one) for one in value] if isinstance(value, list) else value)
    for name, tensor in tensors.items():
        attribute, _, index = name.partition(".")
        if index:
            getattr(scheduler, attribute)[int(index)] = tensor
        else:
            setattr(scheduler, attribute, tensor)


def _is_like(value: Any, x: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == x.shape


def _plain(value: Any) -> Any:
    """A plain value as JSON has it; a tensor of one number as its type and value."""
    if isinstance(value, Tensor):
        assert value.numel() == 1, f"a scheduler remembers a tensor {tuple(value.shape)}"
        return {"dtype": str(value.dtype).removeprefix("torch."), "value": value.item()}
    return value


def _value(plain: Any) -> Any:
    if isinstance(plain, dict):
        return torch.tensor(plain["value"], dtype=getattr(torch, plain["dtype"]))
    return plain
