"""The tensors of an AutoencoderKLWan, in either layout. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybridgen.models.shapes import Tensors


class VaeTensors(Tensors):
    """Shapes of tensors by name, with the layers of this autoencoder."""

    def cube(self, name: str, out: int, into: int) -> None:
        """A 3x3x3 convolution."""
        self.linear(name, out, into, 3, 3, 3)

    def residual(self, name: str, out: int, into: int) -> None:
        """A WanResidualBlock."""
        for number, channels in ((1, into), (2, out)):
            self[f"{name}.norm{number}.gamma"] = (channels, 1, 1, 1)
            self.cube(f"{name}.conv{number}", out, channels)
        if out != into:
            self.linear(f"{name}.conv_shortcut", out, into, 1, 1, 1)

    def attention(self, name: str, channels: int) -> None:
        """A WanAttentionBlock."""
        self[f"{name}.norm.gamma"] = (channels, 1, 1)
        self.linear(f"{name}.to_qkv", 3 * channels, channels, 1, 1)
        self.linear(f"{name}.proj", channels, channels, 1, 1)

    def middle(self, name: str, channels: int) -> None:
        """A WanMidBlock."""
        self.attention(f"{name}.attentions.0", channels)
        for number in (0, 1):
            self.residual(f"{name}.resnets.{number}", channels, channels)

    def resample(self, name: str, out: int, into: int, time: int) -> None:
        """A WanResample; `time` is how many times its input's channels the convolution along time makes, or 0."""
        self.linear(f"{name}.resample.1", out, into, 3, 3)
        if time:
            self.linear(f"{name}.time_conv", time * into, into, 3, 1, 1)


def shapes(config: Mapping[str, Any]) -> VaeTensors:
    """All tensors."""
    found, latent = VaeTensors(), config["z_dim"]
    _encoder(found, config)
    _decoder(found, config)
    found.linear("quant_conv", 2 * latent, 2 * latent, 1, 1, 1)
    found.linear("post_quant_conv", latent, latent, 1, 1, 1)
    return found


def _encoder(found: VaeTensors, config: Mapping[str, Any]) -> None:
    base, residual = config["base_dim"], config["is_residual"]
    into, place, last = base, 0, len(config["dim_mult"]) - 1
    found.cube("encoder.conv_in", base, config["in_channels"])
    for level, multiple in enumerate(config["dim_mult"]):
        out, start = base * multiple, "encoder.down_blocks"
        names = []
        for number in range(config["num_res_blocks"]):
            name = f"{start}.{level}.resnets.{number}" if residual else f"{start}.{place}"
            found.residual(name, out, into)
            names.append(name)
            into, place = out, place + 1
            if not residual and 0.5**level in config["attn_scales"]:
                found.attention(f"{start}.{place}", out)
                place += 1
        if level < last:
            name = f"{start}.{level}.downsampler" if residual else f"{start}.{place}"
            found.resample(name, out, out, int(config["temperal_downsample"][level]))
            place += 1
    _end(found, "encoder", into, 2 * config["z_dim"])
    found.middle("encoder.mid_block", into)


def _decoder(found: VaeTensors, config: Mapping[str, Any]) -> None:
    base, residual = config["decoder_base_dim"] or config["base_dim"], config["is_residual"]
    doubles, last = config["temperal_downsample"][::-1], len(config["dim_mult"]) - 1
    into = base * config["dim_mult"][-1]
    found.cube("decoder.conv_in", into, config["z_dim"])
    found.middle("decoder.mid_block", into)
    for level, multiple in enumerate(reversed(config["dim_mult"])):
        out, block = base * multiple, f"decoder.up_blocks.{level}"
        for number in range(config["num_res_blocks"] + 1):
            found.residual(f"{block}.resnets.{number}", out, into)
            into = out
        if level < last:
            name = f"{block}.upsampler" if residual else f"{block}.upsamplers.0"
            into = out if residual else out // 2
            found.resample(name, into, out, 2 * doubles[level])
    _end(found, "decoder", out, config["out_channels"])


def _end(found: VaeTensors, half: str, channels: int, out: int) -> None:
    found[f"{half}.norm_out.gamma"] = (channels, 1, 1, 1)
    found.cube(f"{half}.conv_out", out, channels)
