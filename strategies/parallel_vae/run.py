"""Decoding split over ranks: latents [1, C, T, H, W] on the first -> strips on all -> frames on the first.

Each rank decodes a run of rows (or columns) of every frame and exchanges edges with its neighbours (halo.py).
Finished strips are gathered as uint8 after each latent frame, so that writing the video overlaps decoding.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hybridgen.models.denoiser import Denoiser
from hybridgen.models.wan_vae import decode_stream, to_uint8
from hybridgen.plan import Plan
from hybridgen.runtime.mesh import Mesh
from hybridgen.strategies.parallel_vae.halo import Strip, sharded
from hybridgen.strategies.parallel_vae.rules import split_dim, strip_sizes


def scatter(strip: Strip, latents: Tensor | None, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Latents [1, C, T, H, W], fp32, on the group's first rank, None elsewhere -> each rank's strip."""
    if strip.group.rank == 0:
        assert latents is not None and tuple(latents.shape) == shape and latents.dtype == torch.float32
        own, *others = torch.split(latents, list(strip.sizes), dim=strip.dim)
        strip.group.swap({place: x.contiguous() for place, x in enumerate(others, start=1)}, {})
        return own
    assert latents is None
    local = list(shape)
    local[strip.dim] = strip.sizes[strip.group.rank]
    buffer = torch.empty(local, device=device)
    strip.group.swap({}, {0: buffer})
    return buffer


def gather_frames(strip: Strip, frames: Tensor) -> Tensor | None:
    """Every rank's uint8 [t, h, w, 3] -> frames [t, H, W, 3] on the group's first rank; None elsewhere."""
    group, dim = strip.group, strip.dim - 1  # channels come last here
    if group.rank:
        group.swap({0: frames}, {})
        return None
    if group.size == 1:
        return frames
    scale = frames.shape[dim] // strip.sizes[0]
    local, received = list(frames.shape), {}
    for place in range(1, group.size):
        local[dim] = scale * strip.sizes[place]
        received[place] = frames.new_empty(local)
    group.swap({}, received)
    return torch.cat([frames, *received.values()], dim)


def apply(model: Denoiser, mesh: Mesh, plan: Plan) -> None:
    """Replace `model.decode`; on ranks that do not decode it ends at once and yields nothing."""
    group, shape = mesh.vae(), (1, *plan.latent_shape)
    strip = Strip(group, split_dim(plan), strip_sizes(plan)) if group is not None else None

    def decode(latents_BCTHW: Tensor | None) -> Iterator[Tensor | None]:
        if strip is None:
            return
        own = scatter(strip, latents_BCTHW, shape, model.device)
        with sharded(model.vae, strip):
            for pixels in decode_stream(model.vae, model.unnormalise(own)):
                yield gather_frames(strip, to_uint8(pixels))

    model.decode = decode
