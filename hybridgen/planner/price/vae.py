"""Seconds around denoising: the VAE on some ranks, and writing the file. No torch.

A convolution takes its operations at the rate of the GPU's convolutions, and what surrounds it (norms, activations,
copies of past frames, padding) takes the bytes of its input at the bandwidth of the memory.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Literal, NamedTuple

from hybridgen.plan.autoencoder import Half
from hybridgen.plan.plan import FP32, ITEMSIZE, Plan
from hybridgen.plan.settings import Settings
from hybridgen.planner.hardware.constants import Hardware, Link
from hybridgen.planner.hardware.hosts import borders
from hybridgen.planner.hardware.topology import Span, link, span
from hybridgen.strategies.parallel_vae import rules
from hybridgen.strategies.registry import Degrees

Side = Literal["decoder", "encoder"]
MAX_WIDTH = 32
"""The widest VAE that is tried."""
TIE = 0.15
"""Share of the VAE's time below which widths tie: as far as published times are missed (docs/planner-accuracy.md)."""
TAPS = 27
"""Taps of a 3 x 3 x 3 convolution."""
STRIDED = 9 / 4
"""Taps per element of the input of a 3 x 3 convolution with stride 2."""


def encoder_flops(plan: Plan) -> float:
    """FLOPs of encoding the conditioning frames: every convolution at the size of its input."""
    return _flops(_alone(plan), "encoder")


def _alone(plan: Plan) -> Plan:
    """The plan reduced to what the VAE's work depends on, so that equal work is computed once."""
    return replace(plan, degrees=Degrees(), dtype="float32", vae_dtype="float32", settings=Settings())


def _half(plan: Plan, side: Side) -> tuple[Half, int]:
    """The decoder or the encoder, and the number of latent frames that pass through it in a request."""
    if side == "decoder":
        return plan.facts.vae.decoder, plan.latent_shape[1]
    return plan.facts.vae.encoder, rules.encoded_latents(plan)


@lru_cache(maxsize=64)
def _flops(plan: Plan, side: Side) -> float:
    """FLOPs of all passes through the convolutions."""
    half, passes = _half(plan, side)
    area, total = math.prod(plan.latent_shape[2:]), 0.0
    outputs = [*(x.channels for x in half.layers[1:]), half.outputs]
    for first, count in ((True, min(passes, 1)), (False, max(passes - 1, 0))):
        total += count * sum(
            2 * (STRIDED if x.strided else TAPS) * x.channels * out * x.frames_of(first) * x.scale**2 * area
            for x, out in zip(half.layers, outputs, strict=True)
        )
    return total


@lru_cache(maxsize=64)
def _elements(plan: Plan, side: Side) -> int:
    """Elements of the inputs of all convolutions, over all passes."""
    half, passes = _half(plan, side)
    frames = [(x, x.frames_of(True) * min(passes, 1) + x.frames_of(False) * max(passes - 1, 0)) for x in half.layers]
    return sum(x.channels * count * x.scale**2 for x, count in frames) * math.prod(plan.latent_shape[2:])


def _alone_seconds(plan: Plan, hardware: Hardware, side: Side) -> float:
    """Seconds of one half of the VAE on one GPU: its convolutions, and all passes over their inputs."""
    size, rate = ITEMSIZE[plan.vae_dtype], hardware.decoder.value
    if plan.vae_dtype == "float32":
        rate *= hardware.decoder32.value
    alone = _alone(plan)
    moved = hardware.decoder_passes.value * _elements(alone, side) * size
    return _flops(alone, side) / rate + moved / hardware.bandwidth.value


def decode_seconds(plan: Plan, hardware: Hardware, where: Span | None = None) -> float:
    """Seconds of the VAE's decoder: its share of the work, edges exchanged with neighbours, pixels gathered."""
    frames, width = plan.latent_shape[1], plan.degrees.vae
    seconds = _split_seconds(plan, hardware, where, "decoder")
    return seconds + (width - 1) * frames * hardware.pixels.value


def encode_seconds(plan: Plan, hardware: Hardware, where: Span | None = None) -> float:
    """Seconds of the VAE's encoder: pixels handed out, its share of the work, edges; 0 without given frames."""
    frames, width = rules.encoded_latents(plan), plan.degrees.vae
    if not frames:
        return 0.0
    seconds = _split_seconds(plan, hardware, where, "encoder")
    given = math.prod(rules.pixel_shape(plan)) * FP32
    return seconds + given * (width - 1) / width / _link(plan, hardware, where).bandwidth.value


def vae_seconds(plan: Plan, hardware: Hardware, where: Span | None = None) -> float:
    """Seconds of the VAE in a request: encoding and decoding."""
    return encode_seconds(plan, hardware, where) + decode_seconds(plan, hardware, where)


def _split_seconds(plan: Plan, hardware: Hardware, where: Span | None, side: Side) -> float:
    """Seconds of one half of the VAE on the plan's ranks: the widest strip's share of the work, and its edges."""
    alone = _alone_seconds(plan, hardware, side)
    if plan.degrees.vae == 1:
        return alone
    by, sizes = _link(plan, hardware, where), rules.strip_sizes(plan)
    count, size = _edges(_alone(plan), side)
    edges = 2 * size * ITEMSIZE[plan.vae_dtype]
    return alone * max(sizes) / sum(sizes) + count * by.hop.value + edges / by.rate("p2p")


def _link(plan: Plan, hardware: Hardware, where: Span | None) -> Link:
    return link(hardware, where or span(plan.layout, "vae", borders(plan.world_size, hardware)))


@lru_cache(maxsize=64)
def _edges(plan: Plan, side: Side) -> tuple[int, int]:
    """Number of exchanges and of elements sent to one neighbour by a rank in the whole request."""
    counts = rules.halo_counts(*_half(plan, side))
    numbers = sum(n * channels * length for (channels, length, _), n in counts.items())
    return counts.total(), numbers * rules.across(plan)


def best_width(plan: Plan, hardware: Hardware, half: int, world: int) -> int:
    """The narrowest VAE that ties with the fastest: 1, 2, 4 ..., all of a cfg half, or all of the world."""
    limit = min(rules.widest(plan), MAX_WIDTH)
    tried = [2**i for i in range(MAX_WIDTH.bit_length()) if 2**i <= half]
    widths = sorted({w for w in (*tried, half, world) if w <= limit})
    return _best(_alone(plan), hardware, tuple(widths))


@lru_cache(maxsize=256)
def _best(plan: Plan, hardware: Hardware, widths: tuple[int, ...]) -> int:
    near = Span(2, 2)
    seconds = [vae_seconds(replace(plan, degrees=Degrees(vae=w)), hardware, near) for w in widths]
    limit = min(seconds) * (1 + TIE)
    return next(width for width, taken in zip(widths, seconds, strict=True) if taken <= limit)


def writing_seconds(plan: Plan, hardware: Hardware) -> float:
    """Seconds of encoding and writing all frames."""
    return plan.clip.frames * plan.clip.width * plan.clip.height / hardware.writing.value


def prompt_seconds(plan: Plan, hardware: Hardware) -> float:
    """Seconds of the text encoder: every branch's tokens through its matrices, or the time to read these."""
    params, passes = plan.facts.text_params, plan.branches
    flops = 2.0 * params * plan.facts.text_tokens
    return passes * max(flops / hardware.matmul.value, params * plan.itemsize / hardware.bandwidth.value)


class Tail(NamedTuple):
    """Seconds around denoising."""

    decode: float
    """Seconds of the VAE's decoder."""
    end: float
    """Seconds of everything but denoising: text, encode, decode, and writing."""


def tail(plan: Plan, hardware: Hardware, where: Span | None = None, streamed: bool = True) -> Tail:
    """Seconds of a clip besides denoising; writing overlaps decoding when it is streamed.

    where: the span of the VAE's ranks, by default that of the plan's order.
    """
    decode, writing = decode_seconds(plan, hardware, where), writing_seconds(plan, hardware)
    last = writing / plan.latent_shape[1] if streamed else writing
    before = hardware.fixed.value + prompt_seconds(plan, hardware) + encode_seconds(plan, hardware, where)
    return Tail(decode, before + (max(decode, writing - last) if streamed else decode) + last)
