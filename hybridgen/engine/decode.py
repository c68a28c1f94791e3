"""From the final latents to files: the latents first, then the video while it is decoded.

With a guardrail the video alone is written, once all frames have been decoded and checked.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator

import numpy as np
from torch import Tensor

from hybridgen.distributed.files import written_whole
from hybridgen.engine.job import LATENTS_DONE, Job
from hybridgen.engine.outputs import PICTURE
from hybridgen.engine.rank import Rank
from hybridgen.engine.video import Frames, PictureWriter, VideoWriter, contact_sheet
from hybridgen.models.cosmos.guardrail import Guardrail, blocked
from hybridgen.models.denoiser import Denoiser


def digest_of(latents: Tensor) -> str:
    """SHA-256 of the latents' elements."""
    return hashlib.sha256(latents.float().cpu().contiguous().numpy().tobytes()).hexdigest()


def keep_latents(rank: Rank, latents: Tensor, digest: str) -> None:
    """Write the latents to disk, whole, before decoding can fail."""
    from safetensors.torch import save

    job = rank.job
    rank.set_status("keep latents")
    host = latents.float().cpu().contiguous()
    about = {"model": job.plan.facts.name, "seed": str(job.seed), "prompt": job.prompt, "sha256": digest}
    with written_whole(job.latents or job.scratch, job.owner) as part, part.open("wb") as file:
        file.write(save({"latents": host}, metadata=about))
        file.flush()
        os.fsync(file.fileno())
    rank.context.mark(LATENTS_DONE)


def decode(rank: Rank, model: Denoiser, latents: Tensor | None, digest: str) -> None:
    """Decode on the VAE's ranks; rank 0 hands each chunk to the writer and decodes the next."""
    chunks = decoded(rank, model, latents)
    if not rank.first:
        for _ in chunks:
            pass
        return
    write(rank, chunks, digest)


def decode_guarded(
    rank: Rank, model: Denoiser, latents: Tensor | None, digest: str, guardrail: Guardrail | None
) -> None:
    """Decode everything, have it checked on rank 0, and only then write it.

    Raises RunFailed (guardrail) on all ranks.
    """
    frames = list(decoded(rank, model, latents))
    model.experts.clear()  # so that the checker finds room
    allowed: Frames | None = None
    if guardrail is not None:
        with rank.stage("check the frames", "decode"):
            allowed = guardrail.checked(np.concatenate(frames))
    if not rank.broadcast_object(allowed is not None):
        raise blocked("the frames")
    if allowed is not None:
        write(rank, [allowed], digest)


def decoded(rank: Rank, model: Denoiser, latents: Tensor | None) -> Iterator[Frames]:
    """Decode to uint8 frames [t, H, W, 3], chunk by chunk, on rank 0; the VAE's other ranks take part and get none."""
    if not rank.mesh.is_on("vae"):
        return
    chunks = model.slots.decode(latents)
    rank.set_status("decode")
    with rank.stage("decode"):
        for chunk in chunks:
            if chunk is not None:
                yield chunk.cpu().numpy()


def write(rank: Rank, chunks: Iterable[Frames], digest: str) -> None:
    """Write the clip's file, and the contact sheet if it is asked for."""
    job, kept = rank.job, []
    writer = writer_of(job, digest)
    for frames in chunks:
        writer.add(frames)
        if job.preview:
            kept.append(frames)
    with rank.stage("write"):
        writer.close()
        if job.preview:
            contact_sheet(np.concatenate(kept), job.preview, owner=job.owner)
    count = job.plan.clip.frames
    rank.progress.stage("decode", f"{count} frame{'s' * (count > 1)}", rank.seconds["decode"])
    rank.progress.stage("write", job.output.name, rank.seconds["write"])


def writer_of(job: Job, digest: str) -> VideoWriter | PictureWriter:
    """The writer of the clip, by the ending of its file."""
    clip, tags = job.plan.clip, job.tags(digest)
    if job.output.suffix.lower() == PICTURE[0]:
        return PictureWriter(job.output, job.part, tags, job.overwrite)
    return VideoWriter(job.output, job.part, (clip.width, clip.height), clip.fps, tags, job.overwrite)
