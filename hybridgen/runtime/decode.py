"""From the final latents to the files: latents first, then the video while it is decoded."""

from __future__ import annotations

import hashlib
import os

import numpy as np
from torch import Tensor

from hybridgen.models.wan import Wan
from hybridgen.outputs import part_of
from hybridgen.runtime.allocator import return_freed_memory
from hybridgen.runtime.rank import Rank
from hybridgen.runtime.ranks import LATENTS_DONE
from hybridgen.runtime.video import VideoWriter, contact_sheet


def keep_latents(rank: Rank, latents: Tensor) -> str:
    """Put the latents on disk, whole, before decoding can fail; their SHA-256."""
    from safetensors.torch import save

    job = rank.job
    rank.say("keep latents")
    host = latents.float().cpu().contiguous()
    digest = hashlib.sha256(host.numpy().tobytes()).hexdigest()
    about = {"model": job.plan.facts.name, "seed": str(job.seed), "prompt": job.prompt, "sha256": digest}
    target = job.latents or job.scratch
    part = part_of(target, job.owner)
    try:
        with part.open("wb") as file:
            file.write(save({"latents": host}, metadata=about))
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    rank.context.mark(LATENTS_DONE)
    return digest


def decode(rank: Rank, model: Wan, latents: Tensor | None, digest: str) -> None:
    """Decode on the VAE's ranks; rank 0 hands each chunk to the writer and decodes the next."""
    if rank.mesh.vae() is None:
        return
    if rank.device.type == "cpu":
        return_freed_memory()
    chunks = model.decode(latents)
    rank.say("decode")
    if not rank.first:
        for _ in chunks:
            pass
        return
    job, clip, kept = rank.job, rank.job.plan.clip, []
    with rank.stage("decode"):
        writer = VideoWriter(job.output, job.part, (clip.width, clip.height), clip.fps, job.tags(digest), job.overwrite)
        for chunk in chunks:
            assert chunk is not None
            frames = chunk.cpu().numpy()
            writer.add(frames)
            if job.preview:
                kept.append(frames)
    with rank.stage("write"):
        writer.close()
        if job.preview:
            contact_sheet(np.concatenate(kept), job.preview)
    rank.progress.stage("decode", f"{clip.frames} frames", rank.seconds["decode"])
    rank.progress.stage("write", job.output.name, rank.seconds["write"])
