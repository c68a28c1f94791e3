"""Wan's video decoder as a stream: latents [1, C, T, H, W] in, uint8 frames [t, H, W, 3] out.

It goes one latent frame at a time: the first makes one frame of video, every later one as many as the VAE's
stride in time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify
from torch import Tensor


def unnormalise(vae: Any, latents_BCTHW: Tensor) -> Tensor:
    """Latents as the transformer knows them -> as the VAE does, by the stock pipeline's arithmetic."""
    latents = latents_BCTHW.to(vae.dtype)
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1, 1).to(latents)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    return latents / (1.0 / std) + mean


@torch.no_grad()
def decode_stream(vae: Any, latents_BCTHW: Tensor) -> Iterator[Tensor]:
    """Pixels [1, 3, t, h, w] in [-1, 1] of each latent frame; joined they equal vae.decode bit for bit.

    Earlier frames are remembered in the VAE itself, so only one stream of a VAE can run at a time. What has
    been yielded is not kept (vae.decode keeps and copies all of it).
    """
    assert latents_BCTHW.shape[0] == 1 and not vae.use_tiling
    vae.clear_cache()
    try:
        inputs = vae.post_quant_conv(latents_BCTHW)
        for index, frame in enumerate(inputs.split(1, dim=2)):
            vae._conv_idx = [0]
            first = index == 0
            pixels = vae.decoder(frame, feat_cache=vae._feat_map, feat_idx=vae._conv_idx, first_chunk=first)
            if vae.config.patch_size is not None:
                pixels = unpatchify(pixels, vae.config.patch_size)
            yield pixels.clamp(-1.0, 1.0)
    finally:
        vae.clear_cache()


def to_uint8(pixels_BCTHW: Tensor) -> Tensor:
    """Pixels [1, 3, t, h, w] in [-1, 1] -> frames [t, h, w, 3], 0 to 255, rounded."""
    levels = (pixels_BCTHW[0] / 2 + 0.5).clamp_(0, 1).mul_(255).round_().to(torch.uint8)
    return levels.permute(1, 2, 3, 0).contiguous()
