"""VAE decoding split over ranks, strip by strip with exchange of edges: legality, traffic, memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from hybridgen.degrees import not_legal
from hybridgen.errors import Violation
from hybridgen.layout import split_rows
from hybridgen.plan import FP32, Plan
from hybridgen.traffic import Message, Term

RULES = {
    "vae-width": "The VAE's ranks are laid over the others: the first of one cfg half, so that they are near "
    "each other, or the whole world.",
    "vae-rows": "Each rank decodes a strip of every frame, and a strip has at least one latent row.",
}
NAME = "parallel-vae"
"""The VAE runs in fp32."""
PAST = 2
"""Frames of its input that a causal convolution remembers."""
KERNEL = 27
"""Numbers of an input that one number of a 3x3x3 convolution's output depends on, by channel."""


def split_dim(plan: Plan) -> int:
    """Dim of [..., H, W] that is cut: -2, rows, or -1, columns; the longer one, so that edges are short."""
    rows, columns = plan.latent_shape[2:]
    return -1 if columns > rows else -2


def strip_sizes(plan: Plan) -> tuple[int, ...]:
    """Latent rows (or columns) of each of the VAE's ranks."""
    return tuple(split_rows(plan.latent_shape[split_dim(plan)], plan.degrees.vae))


def violations(plan: Plan) -> Iterator[Violation]:
    width, world = plan.degrees.vae, plan.world_size
    half, rows = world // plan.degrees.cfg, plan.latent_shape[split_dim(plan)]
    legal = [v for v in {*range(1, half + 1), world} if v <= rows]
    if not 1 <= width <= half and width != world:
        limit = f"not between 1 and {half}, the ranks of the run" if half > 1 else "more than the one rank of the run"
        if world > half:
            limit = f"neither between 1 and {half} (the ranks of one cfg half) nor all {world} ranks"
        yield not_legal("vae-width", "vae", width, f"is {limit}", legal)
    elif width > rows:
        what = "columns" if split_dim(plan) == -1 else "rows"
        limit = f"more than the {rows} latent {what} of {plan.clip.width}x{plan.clip.height}"
        yield not_legal("vae-rows", "vae", width, f"is {limit}", legal)


class Layer(NamedTuple):
    """Input of a 3x3 convolution of the decoder, in one pass (one latent frame)."""

    channels: int
    frames: int
    scale: int
    """Rows of it per latent row."""
    remembers: bool = True
    """Whether PAST frames of it are kept for the next pass."""


def layers(plan: Plan, first: bool) -> Iterator[Layer]:
    """Every convolution that needs halos, in order, for the first latent frame or a later one.

    The order of diffusers' WanDecoder3d. Inputs of upsampling convolutions count before they are upsampled.
    """
    vae = plan.facts.vae
    top = len(vae.dim_mult) - 1
    frames = scale = 1
    channels = vae.base_dim * vae.dim_mult[-1]
    yield Layer(vae.latent_channels, frames, scale)
    yield from [Layer(channels, frames, scale)] * 4
    for index, multiple in enumerate(reversed(vae.dim_mult)):
        out = vae.base_dim * multiple
        yield Layer(channels, frames, scale)
        yield from [Layer(out, frames, scale)] * (2 * vae.res_blocks + 1)
        if index < top:
            doubles = vae.time_upsample[index]  # by a causal convolution along time, which has the same input
            frames *= 2 if doubles and not first else 1
            yield Layer(out, frames, scale, remembers=doubles)
            scale *= 2
        # Wan 2.1's upsampling halves the channels, Wan 2.2's residual one does not.
        channels = out if vae.residual else out // 2
    yield Layer(out, frames, scale)


def _place(plan: Plan, rank: int) -> int | None:
    """Which strip a rank decodes; None when it decodes none or nothing is split."""
    ranks = plan.layout.vae_ranks()
    return ranks.index(rank) if rank in ranks and len(ranks) > 1 else None


def traffic(plan: Plan, rank: int) -> Iterator[Message]:
    """Latents once; per latent frame edges for every convolution, keys and values, the finished pixels."""
    place = _place(plan, rank)
    if place is None:
        return
    vae, sizes = plan.facts.vae, strip_sizes(plan)
    channels, frames, rows, columns = plan.latent_shape
    across = rows if split_dim(plan) == -1 else columns
    if place == 0:
        size = sum(sizes[1:]) * across * channels * frames * FP32
        yield Message(NAME, "vae", "p2p", "latents", size, 1, "decode")
    neighbours = (place > 0) + (place < len(sizes) - 1)
    for (width, length), count in halo_counts(plan).items():
        size = neighbours * width * length * across * FP32
        yield Message(NAME, "vae", "p2p", f"halo rows, {width} channels", size, count, "decode")
    key_value = 2 * vae.base_dim * vae.dim_mult[-1] * max(sizes) * across * FP32
    yield Message(NAME, "vae", "all_gather", "K V", (len(sizes) - 1) * key_value, frames, "decode")
    if place:
        pixels = 3 * sizes[place] * across * vae.stride_space**2
        yield Message(NAME, "vae", "p2p", "pixels of the first latent frame", pixels, 1, "decode")
        if frames > 1:
            yield Message(NAME, "vae", "p2p", "pixels", pixels * vae.stride_time, frames - 1, "decode")


def halo_counts(plan: Plan) -> Counter[tuple[int, int]]:
    """How many exchanges of edges a request has, by (channels, frames x length per latent column)."""
    counts = Counter((x.channels, x.frames * x.scale) for x in layers(plan, first=True))
    for x in layers(plan, first=False):
        counts[x.channels, x.frames * x.scale] += plan.latent_shape[1] - 1
    return Counter({shape: count for shape, count in counts.items() if count})


def memory(plan: Plan, rank: int) -> Iterator[Term]:
    """Estimate of the tensors of decoding beside the weights, also where one rank decodes alone.

    Remembered frames, and work: at the peak about as much as six inputs of the largest convolution (seven
    with the stock forwards of a rank alone, which pad in two copies). Counted on the decoders of Wan 2.1 and
    2.2 with fake tensors at 1280x720, where it is within 4%. Workspace of the kernels is not in it.
    """
    sizes = _own_latent(plan, rank)
    if sizes is None:
        return
    work = _pass(plan)
    remembered = sum(PAST * x.channels * x.scale**2 for x in work if x.remembers)
    largest = max(x.frames * x.channels * x.scale**2 for x in work)
    yield Term("vae decoding", FP32 * math.prod(sizes) * (remembered + _inputs(plan) * largest), ("decode",))


def workspace(plan: Plan, rank: int, unfolded: float, block: int) -> int:
    """Bytes that the kernels of convolutions add to the peak of decoding. For the two machine's constants see Hardware.

    A kernel that unfolds holds 27 copies of its input, one that works on blocks of channels a copy of its padded
    input and of its output. The peak is where tensors and copies together are largest, which need not be the
    largest convolution.
    """
    sizes = _own_latent(plan, rank)
    if sizes is None or not block:
        return 0
    rows, columns = sizes
    alone, inputs = plan.degrees.vae == 1, _inputs(plan)

    def number(x: Layer) -> int:
        return x.channels * x.frames * x.scale**2 * rows * columns

    def copies(x: Layer) -> int:
        padded = (PAST + x.frames) * (x.scale * rows + 2)
        if alone and x.channels * padded <= unfolded:
            return KERNEL * number(x)
        channels = -(-x.channels // block) * block
        return channels * padded * (x.scale * columns + 2) + number(x) * channels // x.channels - number(x)

    work = _pass(plan)
    return FP32 * (max(inputs * number(x) + copies(x) for x in work) - inputs * max(number(x) for x in work))


def _own_latent(plan: Plan, rank: int) -> tuple[int, int] | None:
    """Rows and columns of the latent frames that a rank decodes; None when it decodes none."""
    ranks = plan.layout.vae_ranks()
    if rank not in ranks:
        return None
    rows, columns = plan.latent_shape[2:]
    own = strip_sizes(plan)[ranks.index(rank)]
    return (own, columns) if split_dim(plan) == -2 else (rows, own)


def _pass(plan: Plan) -> list[Layer]:
    """The convolutions of the fullest pass, the first one only where there is no other."""
    return list(layers(plan, first=plan.latent_shape[1] == 1))


def _inputs(plan: Plan) -> int:
    """How many inputs of a convolution are held at once."""
    return 6 if plan.degrees.vae > 1 else 7
