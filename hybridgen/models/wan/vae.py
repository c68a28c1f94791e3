"""Wan's video autoencoder as a stream, one latent frame at a time.

The first latent frame stands for one frame of video, every later one for as many as the VAE's stride in time.
Decoding: latents [1, C, T, H, W] in, uint8 frames [t, H, W, 3] out. Encoding: pixels [1, 3, F, H, W] in, moments
[1, 2 C, T, h, w] out, as diffusers' DiagonalGaussianDistribution takes them: C channels of mean, C of log variance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import patchify, unpatchify
from torch import Tensor

STRIDE = 4
"""Frames that one later latent frame stands for, in every VAE of this class."""


def statistics(vae: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the VAE's latents by channel, [1, C, 1, 1, 1] each, dtype and device of `like`."""
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1, 1).to(like)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    return mean, std


def unnormalise(vae: Any, latents_BCTHW: Tensor) -> Tensor:
    """Latents as the transformer knows them -> as the VAE does, by the stock pipeline's arithmetic."""
    latents = latents_BCTHW.to(vae.dtype)
    mean, std = statistics(vae, latents)
    return latents / (1.0 / std) + mean


def normalise(vae: Any, latents_BCTHW: Tensor) -> Tensor:
    """Latents as the VAE makes them -> as the transformer knows them, in fp32, by the stock pipeline's arithmetic."""
    latents = latents_BCTHW.float()
    mean, std = statistics(vae, latents)
    return (latents - mean) * (1.0 / std)


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


@torch.no_grad()
def encode_stream(vae: Any, pixels_BCTHW: Tensor) -> Iterator[Tensor]:
    """Features [1, 2 C, 1, h, w] of each latent frame, as the encoder makes them: quant_conv is still to come.

    Pixels are [1, 3, 4 n + 1, H, W] in [-1, 1]. Earlier frames are remembered as in decode_stream.
    """
    batch, _, frames, _, _ = pixels_BCTHW.shape
    assert batch == 1 and frames % STRIDE == 1 and not vae.use_tiling
    vae.clear_cache()
    try:
        for chunk in torch.split(pixels_BCTHW, [1] + [STRIDE] * (frames // STRIDE), dim=2):
            if vae.config.patch_size is not None:
                chunk = patchify(chunk, vae.config.patch_size)
            vae._enc_conv_idx = [0]
            yield vae.encoder(chunk, feat_cache=vae._enc_feat_map, feat_idx=vae._enc_conv_idx)
    finally:
        vae.clear_cache()


@torch.no_grad()
def encode(vae: Any, pixels_BCTHW: Tensor) -> Tensor:
    """Pixels [1, 3, 4 n + 1, H, W] in [-1, 1] -> moments [1, 2 C, T, h, w], those of vae.encode bit for bit."""
    moments: Tensor = vae.quant_conv(torch.cat(list(encode_stream(vae, pixels_BCTHW)), dim=2))
    return moments
