"""From noise to the final latents: the loop, on every rank's own part of them."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from hybridgen.job import Job
from hybridgen.models.wan import Wan
from hybridgen.runtime.rank import Rank


def denoise(rank: Rank, model: Wan) -> Tensor:
    """This rank's part of the final latents (a state x, see models/wan.py)."""
    steps = model.schedule()
    x = model.to_state(initial_noise(rank.job, rank.device))
    rank.progress.start(len(steps))
    with rank.stage("denoise"):
        for step in steps:
            began = time.perf_counter()
            rank.say(f"step {step.index + 1}/{len(steps)}")
            if step.index and step.expert != steps[step.index - 1].expert:
                rank.progress.note(f"         low-noise expert from step {step.index + 1}")
            x = model.advance(x, model.predict(x, step), step)
            if rank.device.type == "cuda":
                torch.cuda.current_stream().synchronize()  # not what is still being sent to other ranks
            rank.steps.append(time.perf_counter() - began)
            rank.progress.step(rank.steps[-1])
    rank.progress.stage("denoise", f"{len(steps)} steps", rank.seconds["denoise"])
    return x


def initial_noise(job: Job, device: torch.device) -> Tensor:
    """The same noise on every rank and for every layout: drawn on the CPU from the seed, [1, C, T, H, W] fp32."""
    from diffusers.utils.torch_utils import randn_tensor

    generator = torch.Generator("cpu").manual_seed(job.seed)
    noise: Tensor = randn_tensor((1, *job.plan.latent_shape), generator=generator, device=device, dtype=torch.float32)
    return noise


def gather_latents(rank: Rank, model: Wan, x: Tensor) -> Tensor | None:
    """The full latents [1, C, T, H, W] on rank 0, None elsewhere."""
    group = rank.mesh.sequence()
    if group is None:
        return None
    rank.say("gather latents")
    x = x.float()  # some schedulers give latents in the model's dtype; in fp32 they are the same numbers
    shards = group.gather(x) if group.size > 1 else [x]
    return model.to_latents(shards) if shards is not None and rank.first else None
