"""From the final latents to the files: latents first, then the video while it is decoded."""

from __future__ import annotations

import hashlib

import numpy as np
from torch import Tensor

from hybridgen.models.wan import Wan
from hybridgen.runtime.rank import Rank
from hybridgen.runtime.video import VideoWriter, contact_sheet


def keep_latents(rank: Rank, latents: Tensor) -> str:
    """Put the latents on disk before decoding can fail; their SHA-256."""
    from safetensors.torch import save

    job = rank.job
    host = latents.float().cpu().contiguous()
    digest = hashlib.sha256(host.numpy().tobytes()).hexdigest()
    about = {"model": job.plan.facts.name, "seed": str(job.seed), "prompt": job.prompt, "sha256": digest}
    job.latents_file.write_bytes(save({"latents": host}, metadata=about))
    return digest


def decode(rank: Rank, model: Wan, latents: Tensor | None, digest: str) -> None:
    """Decode on the VAE's ranks; rank 0 hands each chunk to the writer and decodes the next."""
    if rank.mesh.vae() is None:
        return
    chunks = model.decode(latents)
    if not rank.first:
        rank.say("decode")
        for _ in chunks:
            pass
        return
    job, clip, kept = rank.job, rank.job.plan.clip, []
    with rank.stage("decode"):
        writer = VideoWriter(job.output, clip.width, clip.height, clip.fps, job.tags(digest))
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
