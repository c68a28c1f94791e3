"""What one rank does with a job, from an empty process to the end of the clip."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hybridgen.job import Job
from hybridgen.models.wan import Wan
from hybridgen.models.wan_load import TextEncoder, load_experts, load_scheduler, load_vae, local_folder
from hybridgen.runtime.join import init_process_group, local_rank
from hybridgen.runtime.kernels import Kernel
from hybridgen.runtime.memory import PeakMemory
from hybridgen.runtime.mesh import Mesh, build_mesh
from hybridgen.runtime.progress import Progress
from hybridgen.runtime.ranks import RankContext
from hybridgen.runtime.sequence import Shard
from hybridgen.runtime.video import VideoWriter, contact_sheet
from hybridgen.strategies import registry


@dataclass
class Timings:
    """Wall-clock seconds of this rank, by stage."""

    seconds: dict[str, float] = field(default_factory=dict)
    steps: list[float] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass
class Rank:
    """This process as part of the job."""

    context: RankContext
    job: Job
    kernel: Kernel
    device: torch.device
    mesh: Mesh
    progress: Progress
    timings: Timings
    memory: PeakMemory
    doing: str = "start"

    @property
    def first(self) -> bool:
        return self.context.rank == 0

    @contextmanager
    def stage(self, name: str, report: str) -> Iterator[None]:
        """A named stage: its time is kept, and what the rank is doing is known outside."""
        self.say(name)
        with self.timings.stage(report):
            yield
        self.memory.sample()

    def say(self, doing: str) -> None:
        self.doing = doing
        self.context.status.say(doing)


@torch.no_grad()
def work(context: RankContext, job: Job) -> dict[str, Any] | None:
    """Run the job on this rank; the report on rank 0, None elsewhere."""
    started = time.perf_counter()
    quiet_libraries()
    rank = set_up(context, job)
    embeds = encode(rank) if rank.first else None  # before the transformers are here, so that both need not fit
    with rank.stage("load", "load"):
        model = load(rank)
    model.set_prompt(_share_embeddings(rank, embeds))
    apply_strategies(rank, model)
    x = denoise(rank, model)
    latents = gather_latents(rank, model, x)
    digest = _keep_latents(rank, latents) if latents is not None else ""
    _decode(rank, model, latents, digest)
    return _finish(rank, digest, started)


def apply_strategies(rank: Rank, model: Wan) -> None:
    """Change the loaded model as the plan says, in the registry's order."""
    for strategy in registry.active(rank.job.plan):
        strategy.apply()(model, rank.mesh, rank.job.plan)


def quiet_libraries() -> None:
    """Progress and warnings of the loaders would come from every rank at once; errors are raised anyway."""
    import diffusers
    import transformers

    for logging in (diffusers.utils.logging, transformers.utils.logging):
        logging.set_verbosity_error()
        logging.disable_progress_bar()


def set_up(context: RankContext, job: Job) -> Rank:
    plan = job.plan
    device = torch.device(job.device)
    if device.type == "cuda":
        device = torch.device("cuda", local_rank(context) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(job.threads)
    memory = PeakMemory(device)
    if plan.world_size > 1:
        init_process_group(context, device)
    mesh = build_mesh(plan.layout, context.rank, device.type)
    progress = Progress.for_stream(job.quiet) if context.rank == 0 else Progress()
    rank = Rank(context, job, job.kernel, device, mesh, progress, Timings(), memory)
    mesh.traffic.watch = lambda name: context.status.say(f"{rank.doing}, {name}")
    return rank


def load(rank: Rank) -> Wan:
    """The transformers on every rank, the VAE where it decodes."""
    job, plan = rank.job, rank.job.plan
    folder = local_folder(plan.facts.source)
    shard = Shard(plan.tokens, plan.layout.sequence_index(rank.context.rank))
    model = Wan(plan, load_experts(plan, folder, rank.device), load_scheduler(folder), job.kernel, shard)
    if rank.mesh.vae() is not None:
        model.vae = load_vae(folder, rank.device)
    return model


def encode(rank: Rank) -> Tensor:
    """Encode the prompts; the text encoder is gone afterwards. [branches, 1, text tokens, text_dim]"""
    plan, job = rank.job.plan, rank.job
    with rank.stage("load text encoder", "load"):
        encoder = TextEncoder(plan, local_folder(plan.facts.source), rank.device)
    with rank.stage("encode", "encode"):
        embeds = encoder.encode(job.prompt, job.negative_prompt)
        encoder.free()
    return embeds


def _share_embeddings(rank: Rank, embeds: Tensor | None) -> list[Tensor]:
    """Rank 0's embeddings on every rank, by branch."""
    plan, seconds = rank.job.plan, rank.timings.seconds
    if embeds is None:
        shape = (plan.branches, 1, plan.facts.text_tokens, plan.facts.transformer.text_dim)
        embeds = torch.empty(shape, dtype=getattr(torch, plan.dtype), device=rank.device)
    else:
        rank.progress.stage("load", f"{plan.world_size} rank{'s' if plan.world_size > 1 else ''}", seconds["load"])
        rank.progress.stage("encode", f"{plan.branches} prompts", seconds["encode"])
    if plan.world_size > 1:
        rank.say("waiting for the text embeddings")
        rank.mesh.world().broadcast(embeds)
    return list(embeds)


def denoise(rank: Rank, model: Wan) -> Tensor:
    """From noise to this rank's part of the final latents."""
    job = rank.job
    steps = model.schedule(job.guidance, job.guidance_2)
    x = model.to_state(initial_noise(job, rank.device))
    rank.progress.start(len(steps))
    with rank.stage("denoise", "denoise"):
        for step in steps:
            began = time.perf_counter()
            rank.say(f"step {step.index + 1}/{len(steps)}")
            if step.index and step.expert != steps[step.index - 1].expert:
                rank.progress.note(f"         low-noise expert from step {step.index + 1}")
            x = model.advance(x, model.predict(x, step), step)
            if rank.device.type == "cuda":
                torch.cuda.synchronize()
            rank.timings.steps.append(time.perf_counter() - began)
            rank.progress.step(rank.timings.steps[-1])
    rank.progress.stage("denoise", f"{len(steps)} steps", rank.timings.seconds["denoise"])
    return x


def initial_noise(job: Job, device: torch.device) -> Tensor:
    """The same noise on every rank and for every layout: drawn on the CPU from the seed, [1, C, T, H, W] fp32."""
    from diffusers.utils.torch_utils import randn_tensor

    generator = torch.Generator("cpu").manual_seed(job.seed)
    noise: Tensor = randn_tensor((1, *job.plan.latent_shape), generator=generator, device=device, dtype=torch.float32)
    return noise


def gather_latents(rank: Rank, model: Wan, x: Tensor) -> Tensor | None:
    """The full latents on rank 0."""
    group = rank.mesh.sequence()
    if group is None:
        return None
    rank.say("gather latents")
    shards = group.gather(x) if group.size > 1 else [x]
    return model.to_latents(shards) if shards is not None and rank.first else None


def _keep_latents(rank: Rank, latents: Tensor) -> str:
    """Put the latents on disk before decoding can fail; their SHA-256."""
    from safetensors.torch import save_file

    job = rank.job
    host = latents.float().cpu().contiguous()
    digest = hashlib.sha256(host.numpy().tobytes()).hexdigest()
    about = {"model": job.plan.facts.name, "seed": str(job.seed), "prompt": job.prompt, "sha256": digest}
    save_file({"latents": host}, job.latents_file, metadata=about)
    return digest


def _decode(rank: Rank, model: Wan, latents: Tensor | None, digest: str) -> None:
    """Decode on the VAE's ranks; rank 0 writes each chunk while the next is decoded."""
    job = rank.job
    if rank.mesh.vae() is None:
        return
    chunks = model.decode(latents)
    if not rank.first:
        rank.say("decode")
        for _ in chunks:
            pass
        return
    clip, kept = job.plan.clip, []
    with rank.stage("decode", "decode"):
        writer = VideoWriter(job.output, clip.width, clip.height, job.fps, job.tags(digest))
        for chunk in chunks:
            assert chunk is not None
            frames = chunk.cpu().numpy()
            writer.add(frames)
            if job.preview:
                kept.append(frames)
    with rank.stage("write", "write"):
        writer.close()
        if job.preview:
            import numpy as np

            contact_sheet(np.concatenate(kept), job.preview)
    rank.progress.stage("decode", f"{clip.frames} frames", rank.timings.seconds["decode"])
    rank.progress.stage("write", job.output.name, rank.timings.seconds["write"])


def _finish(rank: Rank, digest: str, started: float) -> dict[str, Any] | None:
    """Collect every rank's traffic and memory on rank 0 and leave together."""
    rank.say("finish")
    mine = {"traffic": dict(rank.mesh.traffic.sent), "memory": rank.memory.close()}
    everyone: list[Any] = [None] * rank.context.world
    if rank.context.world > 1:
        dist.gather_object(mine, everyone if rank.first else None)
        dist.barrier()
        dist.destroy_process_group()
    else:
        everyone = [mine]
    if not rank.first:
        return None
    if not rank.job.keep_latents:
        rank.job.latents_file.unlink()
    rank.timings.seconds["total"] = time.perf_counter() - started
    return rank.job.report(rank.timings.seconds, rank.timings.steps, everyone, digest)


def write_report(report: dict[str, Any], path: Path) -> None:
    """The report as JSON, indented."""
    path.write_text(json.dumps(report, indent=2) + "\n")
