"""The denoising loop: from noise to final latents, on every rank's own part."""

from __future__ import annotations

import signal
import time

import torch
from torch import Tensor

from hybridgen.engine import state_file
from hybridgen.engine.control import END, KEEP, STOP, Cancelled
from hybridgen.engine.preview import Previews
from hybridgen.engine.rank import Rank
from hybridgen.errors import PREEMPTED, RunFailed, counted
from hybridgen.models.autoencoder import check_finite
from hybridgen.models.denoiser import Denoiser


def denoise(rank: Rank, model: Denoiser) -> Tensor:
    """Denoise this rank's part of the latents; returns a state x (see models/state.py). Raises Cancelled."""
    steps = model.schedule()
    generator = torch.Generator("cpu").manual_seed(rank.job.seed)  # the same noise for every rank and layout
    x = model.state.cut(model.initial_latents(generator))
    done = rank.job.done
    if done:
        anew = "; the warm-up of pipefusion begins anew" if rank.job.plan.degrees.pipefusion > 1 else ""
        rank.progress.note(f"resume   after step {done} of {len(steps)}{anew}")
        x = state_file.take_up(rank, model)
    rank.progress.start(len(steps) - done)
    rank.control.begin()
    previews, is_settled = Previews(rank, model), True
    with rank.stage("denoise"):
        for step in steps[done:]:
            is_settled |= obey(rank, model, x, step.index)
            began = time.perf_counter()
            rank.mesh.traffic.waits.start()
            rank.set_status(f"step {step.index + 1}/{len(steps)}")
            takes_over = step.index == done or step.expert != steps[step.index - 1].expert
            if takes_over and step.index > done:
                rank.progress.note(f"         low-noise expert from step {step.index + 1}")
            is_shown = previews.is_due(step.index, is_settled)
            before = x.clone() if is_shown else x  # pipefusion steps in place
            x = model.slots.advance(x, model.slots.predict(x, step), step)
            if rank.device.type == "cuda":
                torch.cuda.current_stream().synchronize()  # not what is still being sent to other ranks
            if takes_over:  # what is wrong with an expert's weights shows at once
                check_finite(x, f"numbers after step {step.index + 1}")
            rank.steps.append(time.perf_counter() - began)
            rank.waits.append(rank.mesh.traffic.waits.stop())
            rank.progress.step(rank.steps[-1])
            if is_shown:
                previews.show(step.index, before, x)
            is_settled = False
            if rank.job.keep_every > 0 and (step.index + 1) % rank.job.keep_every == 0 and step.index + 1 < len(steps):
                state_file.keep(rank, model, x, step.index + 1)
                is_settled = True
    rank.context.status.keep(rank.first and not rank.job.plan.facts.guarded)
    rank.progress.stage("denoise", counted(len(steps), "step"), rank.seconds["denoise"])
    return x


def obey(rank: Rank, model: Denoiser, x: Tensor, done: int) -> bool:
    """Do what rank 0 orders before a step, after so many steps. Raises Cancelled, RunFailed (preempted).

    Returns whether the state was kept, for which nothing may be under way.
    """
    order = rank.control.order(rank.job)
    if order == STOP:
        model.slots.settle(x)
        raise Cancelled
    if order in (KEEP, END):
        began = time.perf_counter()
        state_file.keep(rank, model, x, done)
        rank.control.pace.kept(time.perf_counter() - began)
    if order == END:
        rank.broadcast_object(None)  # the first rank that ends ends all: not before rank 0 has written
        name = signal.Signals(rank.job.warning).name
        raise RunFailed(PREEMPTED, f"ended by {name} after {done} of {counted(rank.job.plan.clip.steps, 'step')}")
    return order == KEEP


def gather_latents(rank: Rank, model: Denoiser, x: Tensor) -> Tensor | None:
    """Gather the full latents [1, C, T, H, W] on rank 0; None elsewhere."""
    group = rank.mesh.sequence()
    if group is None:
        return None
    rank.set_status("gather latents")
    x = x.float()  # some schedulers give latents in the model's dtype; in fp32 they are the same numbers
    shards = group.gather(x) if group.size > 1 else [x]
    return model.final_latents(model.state.assemble(shards)) if shards is not None and rank.first else None
