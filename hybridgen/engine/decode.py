"""From the final latents to files: the latents first, then the video while it is decoded.

With a guardrail the video alone is written, once all frames have been decoded and checked.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import Tensor

from hybridgen.distributed.files import part_of, take_free_name
from hybridgen.distributed.progress import Event
from hybridgen.engine.job import CLIP_DONE, LATENTS_DONE, Job
from hybridgen.engine.outputs import PICTURE
from hybridgen.engine.rank import Rank
from hybridgen.engine.video import Frames, PictureWriter, VideoWriter, contact_sheet
from hybridgen.errors import RunFailed, counted
from hybridgen.models.denoiser import Denoiser
from hybridgen.models.guardrail import Guardrail, blocked


def digest_of(latents: Tensor) -> str:
    """SHA-256 of the latents' elements."""
    return hashlib.sha256(latents.float().cpu().contiguous().numpy().tobytes()).hexdigest()


@contextmanager
def latents_kept(rank: Rank, latents: Tensor | None, digest: str) -> Iterator[None]:
    """A block during which rank 0, which has the latents, keeps them on disk.

    They stay if the block fails, or if the user wants them.
    """
    if latents is None or rank.job.source is not None:
        yield
        return
    path = keep_latents(rank, latents, digest)
    rank.context.status.keep(False)
    try:
        yield
    except BaseException:
        if not path.exists():  # its folder went away
            keep_latents(rank, latents, digest)
        raise
    if rank.job.latents is None:
        path.unlink(missing_ok=True)


def keep_latents(rank: Rank, latents: Tensor, digest: str) -> Path:
    """Write the final latents to disk, whole, before decoding can fail. Returns their path.

    Where the folder of the clip fails, they go to the working folder or to that of temporary files, which is said.
    Raises OSError where all three fail.
    """
    from safetensors.torch import save

    job = rank.job
    rank.set_status("keep latents")
    host = latents.float().cpu().contiguous()
    content = save({"latents": host}, metadata=job.about_latents(digest))
    failed: OSError | None = None
    for folder in (job.kept_latents.parent, Path.cwd(), None):
        try:
            path = _written(content, _place(folder, job.kept_latents.name), job)
        except OSError as error:
            failed = failed or error
            continue
        if failed is not None:
            rank.warn(f"{job.kept_latents} cannot be written ({failed.strerror}): the final latents are {path}")
        rank.context.mark(LATENTS_DONE, str(path))
        return path
    assert failed is not None
    raise OSError(failed.errno, failed.strerror, str(job.kept_latents))


def read_latents(rank: Rank, path: Path) -> Tensor | None:
    """The latents that an earlier run has kept, on rank 0. Raises RunFailed (kept-latents) where they have changed."""
    if not rank.first:
        return None
    from safetensors.torch import load_file

    with rank.stage("read the latents", "load"):
        latents = load_file(path)["latents"].to(rank.device)
    if rank.job.source_sha256 not in ("", digest_of(latents)):
        raise RunFailed("kept-latents", f"{path}: its numbers are not those that were kept; the file is damaged")
    return latents


def _place(folder: Path | None, name: str) -> Path:
    """A file in a folder; None is a new one among temporary files, which others can neither foresee nor read."""
    return (Path(tempfile.mkdtemp(prefix="hybridgen-latents-")) if folder is None else folder) / name


def _written(content: bytes, path: Path, job: Job) -> Path:
    """Write a file that survives a crash of the machine, under this name or the next that is free."""
    part = part_of(path, job.owner)
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return take_free_name(part, path, job.overwrite and job.latents is not None)
    finally:
        part.unlink(missing_ok=True)


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
    if not rank.control.stays:
        model.experts.clear()  # so that the checker finds room
    allowed: Frames | None = None
    if guardrail is not None:
        with rank.stage("check the frames", "decode"):
            allowed = guardrail.checked(np.concatenate(frames))
    if not rank.broadcast_object(allowed is not None):
        raise blocked(rank.job.plan.facts.name, "the frames")
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
    rank.set_status("begin the video")
    writer = writer_of(job, digest)
    done, count = 0, job.plan.clip.frames
    for frames in chunks:
        writer.add(frames)
        done += len(frames)
        rank.progress.tell(Event("chunk", "decode", done, count))
        if job.preview:
            kept.append(frames)
    with rank.stage("write"):
        path = writer.close()
        rank.context.mark(CLIP_DONE, str(path))
        job.state.unlink(missing_ok=True)
        if job.preview_every:
            job.preview_picture.unlink(missing_ok=True)
        if path != job.output:
            rank.warn(f"{job.output} was made by another run meanwhile: the clip is {path}")
            rank.job = replace(job, output=path)
        if job.preview:
            sheet = contact_sheet(np.concatenate(kept), job.preview, job.owner, job.overwrite)
            if sheet != job.preview:
                rank.warn(f"{job.preview} was made by another run meanwhile: the contact sheet is {sheet}")
    rank.progress.stage("decode", counted(count, "frame"), rank.seconds["decode"])
    rank.progress.stage("write", path.name, rank.seconds["write"])


def writer_of(job: Job, digest: str) -> VideoWriter | PictureWriter:
    """The writer of the clip, by the ending of its file."""
    clip, tags = job.plan.clip, job.tags(digest)
    if job.output.suffix.lower() == PICTURE[0]:
        return PictureWriter(job.output, job.part, tags, job.overwrite)
    return VideoWriter(job.output, job.part, (clip.width, clip.height), clip.fps, tags, job.overwrite)
