"""What one rank does with a job, from an empty process to the end of the clip."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hybridgen.job import Job
from hybridgen.models.wan import Wan
from hybridgen.models.wan_load import TextEncoder, empty_experts, fill, load_scheduler, load_vae, local_folder
from hybridgen.runtime.decode import decode, keep_latents
from hybridgen.runtime.denoise import denoise, gather_latents
from hybridgen.runtime.rank import Rank, quiet_libraries, set_up
from hybridgen.runtime.ranks import RankContext
from hybridgen.runtime.sequence import Shard
from hybridgen.strategies import registry


@torch.no_grad()
def work(context: RankContext, job: Job) -> dict[str, Any] | None:
    """Run the job on this rank; the report on rank 0, None elsewhere."""
    started = time.perf_counter()
    quiet_libraries()
    rank = set_up(context, job)
    embeds = encode(rank) if rank.first else None  # before the transformers are here, so that both need not fit
    with rank.stage("load", mapped=True):
        model = load(rank)
    if rank.first:
        rank.progress.stage("load", f"{job.plan.degrees}", rank.seconds["load"])
        rank.progress.stage("encode", f"{job.plan.branches} prompts", rank.seconds["encode"])
    model.set_prompt(share_embeddings(rank, embeds))
    x = denoise(rank, model)
    latents = gather_latents(rank, model, x)
    digest = keep_latents(rank, latents) if latents is not None else ""
    decode(rank, model, latents, digest)
    return finish(rank, digest, started)


def encode(rank: Rank) -> Tensor:
    """Encode the prompts; the text encoder is gone afterwards. [branches, 1, text tokens, text_dim]"""
    plan, job = rank.job.plan, rank.job
    with rank.stage("load text encoder", "load", mapped=True):
        encoder = TextEncoder(plan, local_folder(plan.facts), rank.device)
    with rank.stage("encode"):
        embeds = encoder.encode(job.prompt, job.negative_prompt)
        encoder.free()
    return embeds


def load(rank: Rank) -> Wan:
    """What this rank runs: its part of the transformers, strategies applied, and the VAE where it decodes."""
    job, plan = rank.job, rank.job.plan
    folder = local_folder(plan.facts)
    shard = Shard(plan.tokens, plan.layout.sequence_index(rank.context.rank))
    model = Wan(plan, empty_experts(plan, folder), load_scheduler(folder), job.kernel, shard)
    apply_strategies(rank, model)  # before the weights are read, so that a rank reads its part only
    fill(model.experts, plan, folder, rank.device)
    if rank.mesh.vae() is not None:
        model.vae = load_vae(folder, rank.device)
    return model


def apply_strategies(rank: Rank, model: Wan) -> None:
    """Change the loaded model as the plan says, in the registry's order."""
    for strategy in registry.active(rank.job.plan):
        strategy.apply(model, rank.mesh, rank.job.plan)


def share_embeddings(rank: Rank, embeds: Tensor | None) -> list[Tensor]:
    """Rank 0's embeddings on every rank, by branch."""
    plan = rank.job.plan
    if embeds is None:
        shape = (plan.branches, 1, plan.facts.text_tokens, plan.facts.transformer.text_dim)
        embeds = torch.empty(shape, dtype=getattr(torch, plan.dtype), device=rank.device)
    if plan.world_size > 1:
        rank.say("waiting for the text embeddings")
        rank.mesh.world().broadcast(embeds)
    return list(embeds)


def finish(rank: Rank, digest: str, started: float) -> dict[str, Any] | None:
    """Collect every rank's traffic and memory on rank 0 and leave together."""
    rank.say("finish")
    world = rank.mesh.world()
    mine = {"traffic": dict(rank.mesh.traffic.sent), "memory": rank.memory.close()}
    everyone = [mine]
    if rank.context.world > 1:
        everyone = world.gather_objects(mine)
        world.barrier()
        dist.destroy_process_group()
    if not rank.first:
        return None
    if rank.job.latents is None:
        rank.job.scratch.unlink()
    rank.seconds["total"] = time.perf_counter() - started
    return rank.job.report(rank.seconds, rank.steps, everyone, digest)
