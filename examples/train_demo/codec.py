"""The demo's video codec, AutoencoderKLWan in the Wan 2.1 layout, and its training.

Clips [n, 3, 1 + 4k, 8h, 8w] in -1..1 become latents [n, 16, 1 + k, h, w] and back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders import autoencoder_kl_wan as wan_vae
from torch import Tensor

from examples.train_demo.clips import free_clips, free_crops, seeded
from examples.train_demo.schedule import set_learning_rate

LATENT_NOISE = 0.1
SHAPE_WEIGHT = 4.0  # of the shape's pixels in the loss, on top of 1
Window = tuple[int, int, int]  # clips, frames, pixels of a batch of crops


def build_vae() -> AutoencoderKLWan:
    """An untrained codec of 0.67 million parameters."""
    return AutoencoderKLWan(
        base_dim=8,
        z_dim=16,
        dim_mult=[1, 2, 4, 4],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
    )


def to_bf16(module: Any) -> Any:
    """All weights in bf16, also those that diffusers would remark on."""
    return torch.nn.Module.to(module, torch.bfloat16)


def in_two_calls(net: Any, x: Tensor, **flags: bool) -> Tensor:
    """Causal coding of frame 0, then of all others: like the library's loop, but faster and unclamped."""
    cache = [None] * sum(isinstance(m, wan_vae.WanCausalConv3d) for m in net.modules())
    first = net(x[:, :, :1], feat_cache=cache, feat_idx=[0], **flags)
    rest = net(x[:, :, 1:], feat_cache=cache, feat_idx=[0], **dict.fromkeys(flags, False))
    return torch.cat([first, rest], 2)


def encode(vae: AutoencoderKLWan, x: Tensor) -> Tensor:
    """Mean latents of clips, not normalised."""
    latents: Tensor = vae.quant_conv(in_two_calls(vae.encoder, x))[:, : vae.config.z_dim]
    return latents


def decode(vae: AutoencoderKLWan, z: Tensor) -> Tensor:
    """Clips of latents that are not normalised."""
    return in_two_calls(vae.decoder, vae.post_quant_conv(z), first_chunk=True)


@contextmanager
def linear_path_only(vae: AutoencoderKLWan) -> Iterator[None]:
    """Skip residual and attention branches, zero after the analytic start: training steps are 3x faster."""

    def shortcut(block: Any, x: Tensor, feat_cache: Any = None, feat_idx: Any = (0,)) -> Tensor:
        feat_idx[0] += 2  # the two convolutions that are skipped
        skipped: Tensor = block.conv_shortcut(x)
        return skipped

    def identity(block: Any, x: Tensor) -> Tensor:
        return x

    replacement = {wan_vae.WanResidualBlock: shortcut, wan_vae.WanAttentionBlock: identity}
    blocks = [m for m in vae.modules() if type(m) in replacement]
    for block in blocks:
        block.forward = MethodType(replacement[type(block)], block)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


@torch.no_grad()
def psnr(vae: AutoencoderKLWan, n: int = 16, seed: int = 999) -> list[float]:
    """Held-out PSNR in dB through the public encode and decode: all frames, first frame, last frame."""
    clips = torch.split(free_clips(n, seeded(seed)), 4)
    error = torch.cat([(vae.decode(vae.encode(x).latent_dist.mean).sample - x) ** 2 for x in clips])
    return [round(10 * math.log10(4 / e.mean().item()), 2) for e in (error, error[:, :, 0], error[:, :, -1])]


def picture_loss(difference: Tensor, mask: Tensor) -> Tensor:
    """L1 and L2, heavier on the shape, and L1 of spatial gradients; difference [n, 3, T, h, w]."""
    weight = 1 + SHAPE_WEIGHT * mask
    weight = weight / weight.mean()
    edges = difference.diff(dim=-1).abs().mean() + difference.diff(dim=-2).abs().mean()
    pixels = (weight * difference.abs()).mean() + 2 * (weight * difference * difference).mean()
    return pixels + edges


def noisy(z: Tensor) -> Tensor:
    """Latents as a sampler might give them: the decoder must tolerate its errors."""
    return z + LATENT_NOISE * torch.randn(z.shape)


def train_vae(
    vae: AutoencoderKLWan,
    steps: int,
    lr: float,
    windows: Sequence[tuple[int, int, int]],
    warm: int,
    seed: int,
) -> None:
    """Train in place on crops; windows are used in turn.

    Once the branches take part, windows must be long: the causal caches reach back over the whole clip, and
    with 5-frame windows only the first frames of a clip improve.
    """
    torch.manual_seed(seed)
    rng, began = seeded(seed), time.time()
    optimiser = torch.optim.Adam(vae.parameters(), lr, betas=(0.9, 0.98))
    for step in range(steps):
        set_learning_rate(optimiser, lr, step, steps, warm)
        x, mask = free_crops(*windows[step % len(windows)], rng)
        z = encode(vae, x)
        loss = picture_loss(decode(vae, noisy(z)) - x, mask) + 1e-4 * (z * z).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimiser.step()
        if (step + 1) % 200 == 0:
            seconds = time.time() - began
            print(
                f"  codec {step + 1}/{steps} {seconds:.0f}s loss {loss.item():.4f} {psnr(vae, 8)} dB",
                flush=True,
            )


def train_bf16_decoder(
    vae: AutoencoderKLWan, steps: int, lr: float, windows: Sequence[Window], warm: int, seed: int
) -> None:
    """Train the decoder in place with weights and arithmetic in bf16; leaves the whole codec in bf16.

    Rounding a decoder that never met it costs 8 dB, mostly in the head, where constant channels cancel. The
    encoder is rounded first and stays as it is, so latents keep their meaning.
    """
    torch.manual_seed(seed)
    rng, began = seeded(seed), time.time()
    decoder = torch.nn.ModuleList([vae.decoder, vae.post_quant_conv])
    exact = [p.detach().clone() for p in decoder.parameters()]
    optimiser = torch.optim.Adam(exact, lr, betas=(0.9, 0.98))
    to_bf16(vae)
    for step in range(steps):
        set_learning_rate(optimiser, lr, step, steps, warm)
        x, mask = free_crops(*windows[step % len(windows)], rng)
        with torch.no_grad():
            z = encode(vae, x.bfloat16())
        loss = picture_loss(decode(vae, noisy(z.float()).bfloat16()).float() - x, mask)
        decoder.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for e, p in zip(exact, decoder.parameters(), strict=True):
            e.grad = None if p.grad is None else p.grad.float()
        torch.nn.utils.clip_grad_norm_(exact, 1.0)
        optimiser.step()
        with torch.no_grad():
            for e, p in zip(exact, decoder.parameters(), strict=True):
                p.copy_(e)
        if (step + 1) % 100 == 0:
            print(f"  bf16 {step + 1}/{steps} {time.time() - began:.0f}s loss {loss.item():.4f}", flush=True)
