"""Facts of Wan's video autoencoder, diffusers' AutoencoderKLWan, which Cosmos has, too. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hybridgen.models.files import Config, Folder
from hybridgen.models.keys import Table, listed, number, switch, whole
from hybridgen.models.parts import Part
from hybridgen.models.wan.vae_shapes import shapes
from hybridgen.plan.autoencoder import Half, Layer, VaeFacts


@dataclass(frozen=True)
class WanVae(VaeFacts):
    """An AutoencoderKLWan in either layout: Wan 2.1's, or Wan 2.2's residual one. The defaults are Wan 2.1's.

    The inputs held at the peak were counted with fake tensors at 1280x720 on the autoencoders of Wan 2.1 and 2.2:
    decoding is within 4%, encoding within 5% from 17 frames on; fewer need up to a quarter less than this says.
    """

    params: int = 127_000_000
    base_dim: int = 96
    """Channels of the decoder's finest level."""
    encoder_base_dim: int = 0
    """Channels of the encoder's finest level; 0 means as many as the decoder's."""
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    res_blocks: int = 2
    time_upsample: tuple[bool, ...] = (True, True, False)
    """Which of the decoder's upsamplers doubles the frames as well."""
    residual: bool = False
    """Whether the layout is Wan 2.2's residual one, whose decoder graph differs from Wan 2.1's."""
    patch: int = 1
    """Pixels per side that the outermost layer folds into channels."""

    @cached_property
    def decoder(self) -> Half:
        middle = self.base_dim * self.dim_mult[-1]
        return Half(tuple(self._decoder_layers()), 3 * self.patch**2, middle, inputs=6)

    @cached_property
    def encoder(self) -> Half:
        middle = self._encoder_dim * self.dim_mult[-1]
        return Half(tuple(self._encoder_layers()), 2 * self.latent_channels, middle, inputs=7 if self.residual else 5)

    @property
    def _encoder_dim(self) -> int:
        return self.encoder_base_dim or self.base_dim

    def _decoder_layers(self) -> Iterator[Layer]:
        """Convolutions of the decoder in the order of diffusers' WanDecoder3d."""
        frames = scale = 1
        channels = self.base_dim * self.dim_mult[-1]
        yield Layer(self.latent_channels, 1, frames, scale)
        yield from [Layer(channels, 1, frames, scale)] * 4
        for index, multiple in enumerate(reversed(self.dim_mult)):
            out = self.base_dim * multiple
            yield Layer(channels, 1, frames, scale)
            yield from [Layer(out, 1, frames, scale)] * (2 * self.res_blocks + 1)
            if index < len(self.dim_mult) - 1:
                doubles = self.time_upsample[index]  # by a causal convolution along time, which has the same input
                frames *= 2 if doubles else 1
                yield Layer(out, 1, frames, scale, remembers=doubles)
                scale *= 2
            # Wan 2.1's upsampling halves the channels, Wan 2.2's residual one does not.
            channels = out if self.residual else out // 2
        yield Layer(out, 1, frames, scale)

    def _encoder_layers(self) -> Iterator[Layer]:
        """Convolutions of the encoder in the order of diffusers' WanEncoder3d, which both layouts share."""
        frames, scale = self.stride_time, self.stride_space // self.patch
        channels = self._encoder_dim
        yield Layer(3 * self.patch**2, 1, frames, scale)
        for index, multiple in enumerate(self.dim_mult):
            out = self._encoder_dim * multiple
            yield Layer(channels, 1, frames, scale)
            yield from [Layer(out, 1, frames, scale)] * (2 * self.res_blocks - 1)
            channels = out
            if index < len(self.dim_mult) - 1:
                yield Layer(out, 1, frames, scale, remembers=False, strided=True)
                scale //= 2
                frames //= 2 if self.time_upsample[-1 - index] else 1
        yield from [Layer(channels, 1, frames, scale)] * 5


VAE_21 = WanVae()
VAE_22 = WanVae(
    latent_channels=48,
    stride_space=16,
    params=704_688_668,
    base_dim=256,
    encoder_base_dim=160,
    residual=True,
    patch=2,
)
"""The autoencoder of Wan 2.2's 5B; its A14B models have Wan 2.1's."""


KEYS: Table = {
    "base_dim": whole(1, 2**16, 96),
    "decoder_base_dim": whole(1, 2**16, None, null=True),
    "z_dim": whole(1, 4096, 16),
    "dim_mult": listed(whole(1, 64), 2, 8, [1, 2, 4, 4]),
    "num_res_blocks": whole(1, 64, 2),
    "attn_scales": listed(number(0, 1e6), 0, 16, []),
    "temperal_downsample": listed(switch(), 1, 7, [False, True, True]),
    "dropout": number(0, 1, 0.0),
    "latents_mean": listed(number(-1e6, 1e6), 1, 4096),
    "latents_std": listed(number(1e-9, 1e6), 1, 4096),
    "is_residual": switch(False),
    "in_channels": whole(1, 4096, 3),
    "out_channels": whole(1, 4096, 3),
    "patch_size": whole(1, 64, None, null=True),
    "scale_factor_temporal": whole(1, 64, 4),
    "scale_factor_spatial": whole(1, 256, 8),
}
PART = Part("diffusers", ("AutoencoderKLWan",), keys=KEYS, shapes=shapes)


def read(folder: Folder) -> WanVae:
    """Facts of the autoencoder of a checkpoint folder. Raises RequestError (unreadable-model)."""
    config = folder.json("vae/config.json", KEYS)
    _check(folder, config)
    return WanVae(
        latent_channels=config["z_dim"],
        stride_space=config["scale_factor_spatial"],
        stride_time=config["scale_factor_temporal"],
        params=folder.params("vae"),
        base_dim=config.get("decoder_base_dim") or config["base_dim"],
        encoder_base_dim=config["base_dim"],
        dim_mult=tuple(config["dim_mult"]),
        res_blocks=config["num_res_blocks"],
        time_upsample=tuple(reversed(config["temperal_downsample"])),
        residual=bool(config.get("is_residual")),
        patch=config.get("patch_size") or 1,
    )


def _check(folder: Folder, config: Config) -> None:
    """Raise RequestError (unreadable-model) where the keys of the configuration contradict each other."""
    file, channels, steps = "vae/config.json", config["z_dim"], len(config["dim_mult"]) - 1
    patch = config["patch_size"] or 1
    wanted = {
        "latents_mean": (len(config["latents_mean"]), channels, "values, one for each of z_dim"),
        "latents_std": (len(config["latents_std"]), channels, "values, one for each of z_dim"),
        "temperal_downsample": (len(config["temperal_downsample"]), steps, "values, one less than dim_mult"),
        "scale_factor_temporal": (config["scale_factor_temporal"], 2 ** sum(config["temperal_downsample"]), "frames"),
        "scale_factor_spatial": (config["scale_factor_spatial"], patch * 2**steps, "pixels"),
        "in_channels": (config["in_channels"], 3 * patch**2, "channels"),
        "out_channels": (config["out_channels"], 3 * patch**2, "channels"),
    }
    for key, (found, needed, what) in wanted.items():
        if found != needed:
            raise folder.refused(f"{file}: {key} has {found} {what}, and the other keys make it {needed}")
