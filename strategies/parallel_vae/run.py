"""Decoding and encoding split over ranks: what the first rank has -> strips on all -> the result on the first.

Each rank works on a run of rows (or columns) of every frame and exchanges edges with its neighbours (halo.py).
Decoded strips are gathered as uint8 after each latent frame, so that writing the video overlaps decoding. Pixels to
encode travel in fp32, which the VAE runs in, and so do the moments, once all frames are through.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hybridgen.distributed.mesh import Mesh
from hybridgen.models.autoencoder import to_uint8
from hybridgen.models.denoiser import Denoiser
from hybridgen.plan.plan import Plan
from hybridgen.strategies.parallel_vae.halo import Strip, sharded
from hybridgen.strategies.parallel_vae.rules import NAME, pixel_shape, split_dim, strip_sizes


def scatter(strip: Strip, x: Tensor | None, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Hand out strips of latents or pixels [1, C, T, H, W], fp32, from the group's first rank; x is None elsewhere.

    Strips are sent one after the other, so that only one copy is held in addition to x.
    """
    scale = shape[strip.dim] // sum(strip.sizes)
    lengths = [scale * size for size in strip.sizes]
    if strip.group.rank == 0:
        assert x is not None and tuple(x.shape) == shape and x.dtype == torch.float32
        own, *others = torch.split(x, lengths, dim=strip.dim)
        for place, other in enumerate(others, start=1):
            strip.group.swap({place: other.contiguous()}, {})
        return own
    assert x is None
    local = list(shape)
    local[strip.dim] = lengths[strip.group.rank]
    buffer = torch.empty(local, device=device)
    strip.group.swap({}, {0: buffer})
    return buffer


def gather(strip: Strip, x: Tensor, dim: int) -> Tensor | None:
    """Gather every rank's strip, cut along `dim`: the whole on the group's first rank, None elsewhere."""
    group = strip.group
    if group.rank:
        group.swap({0: x.contiguous()}, {})
        return None
    if group.size == 1:
        return x
    scale = x.shape[dim] // strip.sizes[0]
    local, received = list(x.shape), {}
    for place in range(1, group.size):
        local[dim] = scale * strip.sizes[place]
        received[place] = x.new_empty(local)
    group.swap({}, received)
    return torch.cat([x, *received.values()], dim)


def apply(model: Denoiser, mesh: Mesh, plan: Plan) -> None:
    """Decode and encode in strips; both return nothing at once on ranks that are not the VAE's."""
    group = mesh.overlay("vae", NAME)
    strip = Strip(group, split_dim(plan), strip_sizes(plan)) if group is not None else None

    def decode(latents_BCTHW: Tensor | None) -> Iterator[Tensor | None]:
        if strip is None:
            return
        own = scatter(strip, latents_BCTHW, (1, *plan.latent_shape), model.vae.device)
        with sharded(model.vae, "decoder", strip):
            for pixels in model.vae.decode(model.unnormalise(own)):
                yield gather(strip, to_uint8(pixels), strip.dim - 1)  # channels come last here

    def encode_split(pixels_BCTHW: Tensor | None) -> Tensor | None:
        if strip is None:
            return None
        own = scatter(strip, pixels_BCTHW, (1, *pixel_shape(plan)), model.vae.device)
        with sharded(model.vae, "encoder", strip):
            moments = model.vae.encode(own)
        return gather(strip, moments, strip.dim)

    model.slots.decode, model.slots.encode = decode, encode_split
