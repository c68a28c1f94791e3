"""The VAE split over ranks, strip by strip with exchange of edges: legality, traffic, memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from hybridgen.errors import RequestError
from hybridgen.plan.autoencoder import PAST, Half
from hybridgen.plan.axes import Axis, Degree
from hybridgen.plan.layout import split_rows
from hybridgen.plan.numbers import not_legal
from hybridgen.plan.plan import FP32, Plan
from hybridgen.plan.traffic import Message, Phase, Term
from hybridgen.strategies.strategy import Strategy

if TYPE_CHECKING:
    from hybridgen.distributed.mesh import Mesh
    from hybridgen.models.denoiser import Denoiser

RULES = {
    "vae-width": "The VAE's ranks are laid over the others: the first of one cfg half, so that they are near "
    "each other, or the whole world.",
    "vae-rows": "Each rank decodes a strip of every frame, and a strip has at least one latent row.",
}
WORTH = 8
"""Widest VAE where no machine is known: published decode times stop falling at 8 ranks."""
NAME = "parallel-vae"
"""Name of the strategy, under which its traffic is counted."""


def split_dim(plan: Plan) -> int:
    """Dim of [..., H, W] that is cut: -2, rows, or -1, columns; the longer one, so that edges are short."""
    rows, columns = plan.latent_shape[2:]
    return -1 if columns > rows else -2


def widest(plan: Plan) -> int:
    """Most ranks that the VAE can be split over: each has at least one latent row, or column."""
    return plan.latent_shape[split_dim(plan)]


def choices(degree: Degree, plan: Plan, ranks: int) -> Iterable[int]:
    """Widths that are worth having with so many ranks, the widest first."""
    return range(min(WORTH, ranks, widest(plan)), 0, -1)


def strip_sizes(plan: Plan) -> tuple[int, ...]:
    """Latent rows (or columns) of each of the VAE's ranks."""
    return tuple(split_rows(widest(plan), plan.degrees.vae))


def pixel_shape(plan: Plan) -> tuple[int, int, int, int]:
    """Shape (channels, frames, rows, columns) of the video that is encoded; 0 frames if none is."""
    _, _, rows, columns = plan.latent_shape
    stride = plan.facts.vae.stride_space
    return 3, plan.clip.encoded_frames, rows * stride, columns * stride


def violations(plan: Plan) -> Iterator[RequestError]:
    width, world = plan.degrees.vae, plan.world_size
    half, rows = plan.degrees.half, widest(plan)
    if (1 <= width <= half or width == world) and width <= rows:
        return
    legal = sorted({*range(1, min(half, rows) + 1), *([world] if world <= rows else [])})
    if not 1 <= width <= half and width != world:
        limit = f"not between 1 and {half}, the ranks of the run" if half > 1 else "more than the one rank of the run"
        if world > half:
            limit = f"neither between 1 and {half} (the ranks of one cfg half) nor all {world} ranks"
        yield not_legal("vae-width", "vae", width, f"is {limit}", legal)
    else:
        what = "columns" if split_dim(plan) == -1 else "rows"
        limit = f"more than the {rows} latent {what} of {plan.clip.width}x{plan.clip.height}"
        yield not_legal("vae-rows", "vae", width, f"is {limit}", legal)


def encoded_latents(plan: Plan) -> int:
    """Latent frames that the given video becomes; 0 where there is none."""
    return -(-plan.clip.encoded_frames // plan.facts.vae.stride_time)


def across(plan: Plan) -> int:
    """Latent columns of a row, or rows of a column, whichever is cut along: the length of an edge."""
    rows, columns = plan.latent_shape[2:]
    return rows if split_dim(plan) == -1 else columns


def _place(plan: Plan, rank: int) -> int | None:
    """Number of the strip that a rank works on; None when it has none or nothing is split."""
    ranks = plan.layout.vae_ranks()
    return ranks.index(rank) if rank in ranks and len(ranks) > 1 else None


def traffic(plan: Plan, rank: int) -> Iterator[Message]:
    """Messages of encoding the conditioning frames, if there are any, and then of decoding."""
    place = _place(plan, rank)
    if place is None:
        return
    if plan.clip.encoded_frames:
        yield from _encoding(plan, place)
    yield from _decoding(plan, place)


def _encoding(plan: Plan, place: int) -> Iterator[Message]:
    """Messages of encoding: pixels and moments once; per latent frame edges of convolutions, keys and values."""
    vae, sizes, frames = plan.facts.vae, strip_sizes(plan), encoded_latents(plan)
    if place == 0:
        size = math.prod(pixel_shape(plan)) // sum(sizes) * sum(sizes[1:]) * FP32
        yield Message(NAME, "vae", "p2p", "pixels to encode", size, 1, "setup")
    yield from _exchanges(plan, place, vae.encoder, frames, "setup")
    if place:
        size = 2 * vae.latent_channels * frames * sizes[place] * across(plan) * FP32
        yield Message(NAME, "vae", "p2p", "moments", size, 1, "setup")


def _decoding(plan: Plan, place: int) -> Iterator[Message]:
    """Messages of decoding: latents once; per latent frame edges of convolutions, keys and values, and pixels."""
    vae, sizes = plan.facts.vae, strip_sizes(plan)
    channels, frames, _, _ = plan.latent_shape
    if place == 0:
        size = sum(sizes[1:]) * across(plan) * channels * frames * FP32
        yield Message(NAME, "vae", "p2p", "latents", size, 1, "decode")
    yield from _exchanges(plan, place, vae.decoder, frames, "decode")
    if place:
        pixels = 3 * sizes[place] * across(plan) * vae.stride_space**2
        yield Message(NAME, "vae", "p2p", "pixels of the first latent frame", pixels, 1, "decode")
        if frames > 1:
            yield Message(NAME, "vae", "p2p", "pixels", pixels * vae.stride_time, frames - 1, "decode")


def _exchanges(plan: Plan, place: int, half: Half, passes: int, phase: Phase) -> Iterator[Message]:
    """Messages of all passes through one half of the VAE: edges, and keys and values of its middle attention."""
    sizes, edge = strip_sizes(plan), across(plan) * FP32
    before, after = place > 0, place < len(sizes) - 1
    for (width, length, strided), count in halo_counts(half, passes).items():
        size = (before + (after and not strided)) * width * length * edge
        rows = "halo rows back" if strided else "halo rows"
        yield Message(NAME, "vae", "p2p", f"{rows}, {width} channels", size, count, phase)
    key_value = 2 * half.attention * max(sizes) * edge
    yield Message(NAME, "vae", "all_gather", "K V", (len(sizes) - 1) * key_value, passes, phase)


def halo_counts(half: Half, passes: int) -> Counter[tuple[int, int, bool]]:
    """Number of exchanges of edges in these passes, by (channels, frames x length per latent column, strided)."""
    counts: Counter[tuple[int, int, bool]] = Counter()
    for x in half.layers if passes else ():
        counts[x.channels, x.first_frames * x.scale, x.strided] += 1
        counts[x.channels, x.frames * x.scale, x.strided] += passes - 1
    return +counts


class Work(NamedTuple):
    """The decoder or the encoder at work on a request."""

    name: str
    phase: Phase
    half: Half
    passes: int


@lru_cache(maxsize=64)
def numbers_held(half: Half, passes: int) -> tuple[int, int]:
    """Elements per latent cell: those kept from pass to pass, and the largest input in the fullest pass."""
    kept = min(PAST, passes) * sum(x.channels * x.scale**2 for x in half.layers if x.remembers)
    return kept, max(x.channels * x.frames_of(passes == 1) * x.scale**2 for x in half.layers)


def at_work(plan: Plan) -> Iterator[Work]:
    """The decoder, and the encoder where video is given."""
    yield Work("decoding", "decode", plan.facts.vae.decoder, plan.latent_shape[1])
    if plan.clip.encoded_frames:
        yield Work("encoding", "condition", plan.facts.vae.encoder, encoded_latents(plan))


def memory(plan: Plan, rank: int) -> Iterator[Term]:
    """Estimated tensors of decoding and encoding without the weights, also where one rank works alone.

    These are remembered frames, and inputs of the largest convolution. Copies of kernels are left out. The first rank
    holds the whole video that is encoded.
    """
    own = _own_latent(plan, rank)
    if own is None:
        return
    cells = math.prod(own)
    alone = plan.degrees.vae == 1  # the stock forwards hold one input more, since they pad in two copies
    for work in at_work(plan):
        remembered, largest = numbers_held(work.half, work.passes)
        held = (work.half.inputs + alone) * largest
        yield Term(f"vae {work.name}", FP32 * cells * (remembered + held), (work.phase,))
    if plan.clip.encoded_frames:
        whole = math.prod(plan.latent_shape[2:])
        given = FP32 * math.prod(pixel_shape(plan)) // whole
        first = rank == plan.layout.vae_ranks()[0]
        yield Term("video to encode", given * (whole if first else cells), ("condition",))


def _own_latent(plan: Plan, rank: int) -> tuple[int, int] | None:
    """Rows and columns of the latent frames that a rank decodes or encodes; None when it has none."""
    ranks = plan.layout.vae_ranks()
    if rank not in ranks:
        return None
    rows, columns = plan.latent_shape[2:]
    own = strip_sizes(plan)[ranks.index(rank)]
    return (own, columns) if split_dim(plan) == -2 else (rows, own)


def apply(model: Denoiser, mesh: Mesh, plan: Plan) -> None:
    """Replace how the model decodes and encodes."""
    from hybridgen.strategies.parallel_vae.run import apply

    apply(model, mesh, plan)


VAE = Axis(
    "vae",
    divides="picture",
    exchanges="halo rows, K V, pixels, at decode",
    place=None,
    why="laid over the first ranks of one cfg half, which are near each other, or over all",
    alike=True,
)

STRATEGY = Strategy(
    NAME,
    (
        Degree(
            "vae",
            "Ranks that decode and encode, laid over the others.",
            listed=80,
            axes=(VAE,),
            engines={"xdit": "use_parallel_vae", "trtllm": "parallel_vae_size"},
            peers={
                "--vae_parallel_size": ("xDiT", "--vae"),
                "--use_parallel_vae": ("xDiT", "--vae N"),
                "--vae-patch-parallel-size": ("vLLM-Omni", "--vae"),
            },
        ),
    ),
    apply,
    RULES,
    violations,
    traffic,
    memory,
    choices,
)
