"""Seconds after denoising: the VAE's decode on some ranks, and writing the file. No torch."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from hybridgen.degrees import Degrees
from hybridgen.plan import Plan
from hybridgen.planner.hardware import Hardware
from hybridgen.planner.topology import Span, link, span
from hybridgen.strategies.parallel_vae import rules

MAX_WIDTH = 32
"""Widest VAE that is tried."""
TAPS = 27
"""Of a 3 x 3 x 3 convolution."""


def decoder_flops(plan: Plan) -> float:
    """Of the whole clip: every convolution of the decoder at the size of its input (upsampling ones grow after it)."""
    return _flops(_alone(plan))


def _alone(plan: Plan) -> Plan:
    """The plan as far as the decoder's work depends on it, so that equal ones are computed once."""
    return replace(plan, degrees=Degrees(), dtype="float32", patches=0, warmup=0)


@lru_cache(maxsize=64)
def _flops(plan: Plan) -> float:
    frames, area = plan.latent_shape[1], math.prod(plan.latent_shape[2:])
    total = 0.0
    for first, count in ((True, 1), (False, frames - 1)):
        work = list(rules.layers(plan, first))
        outputs = [x.channels for x in work[1:]] + [3 * plan.facts.vae.patch**2]
        total += count * sum(
            2 * TAPS * x.channels * out * x.frames * x.scale**2 * area for x, out in zip(work, outputs, strict=True)
        )
    return total


def decode_seconds(plan: Plan, hardware: Hardware, where: Span | None = None) -> float:
    """The VAE alone: the widest strip's share of the work, edges exchanged with neighbours, pixels gathered."""
    alone = decoder_flops(plan) / hardware.decoder.value
    width = plan.degrees.vae
    if width == 1:
        return alone
    by = link(hardware, where or span(plan.layout, "vae", hardware.domain))
    sizes = rules.strip_sizes(plan)
    count, size = _edges(plan)
    edges = count * by.hop.value + 2 * size / by.bandwidth.value
    pixels = (width - 1) * plan.latent_shape[1] * hardware.pixels.value
    return alone * max(sizes) / sum(sizes) + edges + pixels


def _edges(plan: Plan) -> tuple[int, int]:
    """(exchanges, bytes to one neighbour) of a rank in the whole clip."""
    return _halos(_alone(plan))


@lru_cache(maxsize=64)
def _halos(plan: Plan) -> tuple[int, int]:
    counts = rules.halo_counts(plan)
    rows, columns = plan.latent_shape[2:]
    across = rows if rules.split_dim(plan) == -1 else columns
    return counts.total(), sum(n * width * length for (width, length), n in counts.items()) * across * 4


def best_width(plan: Plan, hardware: Hardware, half: int, world: int, close: float) -> int:
    """The narrowest VAE that is within `close` of the fastest: 1, 2, 4 ..., all of a cfg half, or all of the world."""
    limit = min(sum(rules.strip_sizes(_alone(plan))), MAX_WIDTH)
    tried = [2**i for i in range(MAX_WIDTH.bit_length()) if 2**i <= half]
    widths = sorted({w for w in (*tried, half, world) if w <= limit})
    return _best(_alone(plan), hardware, tuple(widths), close)


@lru_cache(maxsize=256)
def _best(plan: Plan, hardware: Hardware, widths: tuple[int, ...], close: float) -> int:
    near = Span(2, 2)
    seconds = [decode_seconds(replace(plan, degrees=Degrees(vae=w)), hardware, near) for w in widths]
    limit = min(seconds) * (1 + close)
    return next(width for width, taken in zip(widths, seconds, strict=True) if taken <= limit)


def writing_seconds(plan: Plan, hardware: Hardware) -> float:
    """Encoding and writing all frames."""
    return plan.clip.frames * plan.clip.width * plan.clip.height / hardware.writing.value


def tail_seconds(plan: Plan, hardware: Hardware, decode: float, streamed: bool = True) -> float:
    """Everything but denoising: text, decode and writing, which runs beside the decode when it is streamed."""
    writing = writing_seconds(plan, hardware)
    last = writing / plan.latent_shape[1] if streamed else writing
    return hardware.fixed.value + (max(decode, writing - last) if streamed else decode) + last
