"""Wan's video autoencoder, diffusers' AutoencoderKLWan, as a stream, one latent frame at a time.

The first latent frame stands for one frame of video, every later one for as many as the autoencoder's stride in time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import (
    WanAttentionBlock,
    WanCausalConv3d,
    WanResample,
    patchify,
    unpatchify,
)
from torch import Tensor, nn

from hybridgen.models.autoencoder import Autoencoder, Sees, Side


class WanAutoencoder(Autoencoder):
    """An AutoencoderKLWan in either layout. Earlier frames of a stream are kept in the module itself."""

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> WanAutoencoder:
        module = AutoencoderKLWan.from_pretrained(folder, subfolder="vae", dtype=torch.float32)
        return cls(module.to(device).eval())

    def statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        config = self.module.config
        mean, std = (
            torch.tensor(values).view(1, -1, 1, 1, 1).to(like) for values in (config.latents_mean, config.latents_std)
        )
        return mean, std

    @torch.no_grad()
    def decode(self, latents_BCTHW: Tensor) -> Iterator[Tensor]:
        """Decode as a stream; joined, the pixels equal vae.decode bit for bit. What was yielded is not kept."""
        vae = self.module
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

    @torch.no_grad()
    def encode(self, pixels_BCTHW: Tensor) -> Tensor:
        """Encode pixels [1, 3, stride n + 1, H, W]; the moments equal those of vae.encode bit for bit."""
        moments: Tensor = self.module.quant_conv(torch.cat(list(self._features(pixels_BCTHW)), dim=2))
        return moments

    def _features(self, pixels_BCTHW: Tensor) -> Iterator[Tensor]:
        """Features that the encoder makes of each latent frame, [1, 2 C, 1, h, w]."""
        vae, (batch, _, frames, _, _) = self.module, pixels_BCTHW.shape
        stride = vae.config.scale_factor_temporal
        assert batch == 1 and frames % stride == 1 and not vae.use_tiling
        vae.clear_cache()
        try:
            for chunk in torch.split(pixels_BCTHW, [1] + [stride] * (frames // stride), dim=2):
                if vae.config.patch_size is not None:
                    chunk = patchify(chunk, vae.config.patch_size)
                vae._enc_conv_idx = [0]
                yield vae.encoder(chunk, feat_cache=vae._enc_feat_map, feat_idx=vae._enc_conv_idx)
        finally:
            vae.clear_cache()

    def wide_layers(self, side: Side) -> Iterator[tuple[nn.Module, Sees]]:
        for module in getattr(self.module, side).modules():
            if isinstance(module, WanCausalConv3d) and module.kernel_size[1:] != (1, 1):
                yield module, "causal"
            elif isinstance(module, WanResample):
                yield module.resample, "downsample" if module.mode.startswith("downsample") else "upsample"
            elif isinstance(module, WanAttentionBlock):
                yield module, "frame"
