"""A video autoencoder at work on one rank, whatever its kind: a stream of latent frames, whole or in strips.

Latents are [1, C, T, h, w], pixels [1, 3, F, H, W] in [-1, 1], and moments [1, 2 C, T, h, w]: the mean and the log
variance of the latents that an encoder found.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hybridgen.errors import RunFailed

Side = Literal["encoder", "decoder"]

Sees = Literal["causal", "upsample", "downsample", "frame"]
"""How a layer sees beyond a strip of the frame:

- causal: a 3x3x3 convolution with stride 1, causal in time, with zeros around the frame; it is called with x and
  earlier frames
- upsample: nn.Sequential of an upsampling by 2 to the nearest pixel and a 3x3 convolution
- downsample: nn.Sequential of a row and a column of zeros at the end and a 3x3 convolution with stride 2
- frame: single-headed attention over each frame, with `norm`, `to_qkv` and `proj`, and a residual around it
"""


class Autoencoder(ABC):
    """One rank's autoencoder; one stream can run at a time."""

    def __init__(self, module: Any) -> None:
        self.module = module

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, device: torch.device) -> Autoencoder:
        """Load the autoencoder of a checkpoint folder, in fp32."""

    @property
    def dtype(self) -> torch.dtype:
        return self.module.dtype  # type: ignore[no-any-return]

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device  # type: ignore[no-any-return]

    @abstractmethod
    def statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the latents by channel, [1, C, 1, 1, 1], dtype and device of `like`."""

    def unnormalise(self, latents_BCTHW: Tensor) -> Tensor:
        """Turn a transformer's latents into the autoencoder's."""
        latents = latents_BCTHW.to(self.dtype)
        mean, std = self.statistics(latents)
        return latents / (1.0 / std) + mean

    def normalise(self, latents_BCTHW: Tensor) -> Tensor:
        """Turn the autoencoder's latents into a transformer's, in fp32."""
        latents = latents_BCTHW.float()
        mean, std = self.statistics(latents)
        return (latents - mean) * (1.0 / std)

    @abstractmethod
    def decode(self, latents_BCTHW: Tensor) -> Iterator[Tensor]:
        """Decode latents to the pixels of each latent frame, one after the other; on strips where they are cut."""

    @abstractmethod
    def encode(self, pixels_BCTHW: Tensor) -> Tensor:
        """Encode pixels to the moments of all frames; on strips where they are cut."""

    @abstractmethod
    def wide_layers(self, side: Side) -> Iterator[tuple[nn.Module, Sees]]:
        """The layers that see beyond a strip; all others work pixel by pixel, along time, or within squares that a
        strip holds whole."""


def to_uint8(pixels_BCTHW: Tensor) -> Tensor:
    """Turn pixels [1, 3, t, h, w] in [-1, 1] into frames [t, h, w, 3], 0 to 255, rounded.

    Raises RunFailed (not-finite) for pixels that are NaN, which would be black.
    """
    check_finite(pixels_BCTHW, "pixels")
    levels = (pixels_BCTHW[0] / 2 + 0.5).clamp_(0, 1).mul_(255).round_().to(torch.uint8)
    return levels.permute(1, 2, 3, 0).contiguous()


def check_finite(x: Tensor, what: str) -> None:
    """Raise RunFailed (not-finite) if a tensor holds NaN or infinity."""
    if not bool(torch.isfinite(x).all()):
        bad = int((~torch.isfinite(x)).sum())
        message = (
            f"{bad} of {x.numel()} {what} are NaN or infinite: the checkpoint's weights are, or overflow in --dtype"
        )
        raise RunFailed("not-finite", message)
