"""Strips: frames cut into runs of rows (or columns), one per rank, and the layers that look beyond their strip.

A tensor is [..., H, W] throughout, whole on one of the two dims and a strip on the other, `dim`. The layers that
see past the edge of a strip, of four kinds, are those that an autoencoder names (Autoencoder.wide_layers).
3x3x3 convolutions and the convolution after an upsampling need the neighbours' nearest row (the halo; zero
beyond the frame, as their own padding is), the strided convolution of a downsampling only the one after the
strip. The attention in the middle needs all keys and values.
The idea of exchanging edges in a VAE is that of DistVAE (github.com/xdit-project/DistVAE).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridgen.distributed.comm import Group
from hybridgen.models.autoencoder import Autoencoder, Side
from hybridgen.plan.autoencoder import PAST


@dataclass(frozen=True)
class Strip:
    """This rank's part of every frame."""

    group: Group
    dim: int
    """The dim that is split: -2 for rows, -1 for columns."""
    sizes: tuple[int, ...]
    """Latent rows (or columns) of each rank of the group, in order."""

    def edges(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Views of the first and the last row (or column) of x."""
        return x.narrow(self.dim, 0, 1), x.narrow(self.dim, -1, 1)


def exchange_halos(strip: Strip, x: Tensor) -> tuple[Tensor, Tensor]:
    """The rows next to x's first and last one, from the neighbours; zeros beyond the frame. One exchange."""
    rank, size = strip.group.rank, strip.group.size
    edges = dict(zip((rank - 1, rank + 1), strip.edges(x), strict=True))
    sends = {place: edge.contiguous() for place, edge in edges.items() if 0 <= place < size}
    halos = {place: torch.empty_like(edge) for place, edge in sends.items()}
    strip.group.swap(sends, halos)
    before, after = (halos.get(place, torch.zeros_like(edge)) for place, edge in edges.items())
    return before, after


def fetch_after(strip: Strip, x: Tensor) -> Tensor:
    """The row next to x's last one, from the neighbour; zeros beyond the frame. One exchange, in one direction."""
    rank, size = strip.group.rank, strip.group.size
    first = strip.edges(x)[0].contiguous()
    after = torch.zeros_like(first)
    strip.group.swap({rank - 1: first} if rank > 0 else {}, {rank + 1: after} if rank < size - 1 else {})
    return after


def restore_edges(strip: Strip, frames: Tensor, kept: tuple[Tensor, Tensor]) -> None:
    """Give earlier frames [B, C, PAST, H + 2, W + 2] the edges they had when they came."""
    for edge, old in zip(strip.edges(frames), kept, strict=True):
        edge.copy_(old)


def drop_padding(shards: Tensor, lengths: list[int]) -> Tensor:
    """Join [V, N, longest, C], padded at the end, to [N, sum of lengths, C]."""
    return torch.cat([shard[:, :length] for shard, length in zip(shards, lengths, strict=True)], dim=1)


def convolve(padded: Tensor, conv: torch.nn.Conv3d) -> Tensor:
    """Run a convolution without padding.

    On CPUs torch takes oneDNN for a single clip only if C x T x H > 20480 (use_mkldnn in ATen's
    Convolution.cpp). Short strips would get its other kernel, measured to be 1 to 5 times slower, so oneDNN
    is asked for by name.
    """
    if padded.device.type == "cpu" and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return torch.mkldnn_convolution(padded, conv.weight, conv.bias, (0, 0, 0), (1, 1, 1), (1, 1, 1), 1)
    return F.conv3d(padded, conv.weight, conv.bias)


class StripConv3d:
    """Forward of a 3x3x3 causal convolution on a strip. Halos of earlier frames are kept, not sent again."""

    def __init__(self, conv: Any, strip: Strip) -> None:
        assert conv.kernel_size == (3, 3, 3) and conv.stride == (1, 1, 1)
        self.conv, self.strip = conv, strip
        self.kept: tuple[Tensor, Tensor] | None = None
        """Edges of the last PAST padded frames."""

    def __call__(self, x_BCTHW: Tensor, cache_x: Tensor | None = None) -> Tensor:
        batch, channels, frames, height, width = x_BCTHW.shape
        padded = x_BCTHW.new_zeros(batch, channels, PAST + frames, height + 2, width + 2)
        inner = padded[..., 1:-1, 1:-1]
        inner[:, :, PAST:] = x_BCTHW
        across = padded[:, :, PAST:, :, 1:-1] if self.strip.dim == -2 else padded[:, :, PAST:, 1:-1]
        for edge, halo in zip(self.strip.edges(across), exchange_halos(self.strip, x_BCTHW), strict=True):
            edge.copy_(halo)
        if cache_x is not None:
            assert self.kept is not None
            inner[:, :, PAST - cache_x.shape[2] : PAST] = cache_x
            restore_edges(self.strip, padded[:, :, :PAST], self.kept)
        first, last = self.strip.edges(padded[:, :, -PAST:])
        self.kept = first.clone(), last.clone()
        return convolve(padded, self.conv)


class StripUpsample:
    """Forward of (nearest upsampling by 2, 3x3 convolution); halos travel before it doubles them."""

    def __init__(self, layers: Any, strip: Strip) -> None:
        upsample, conv = layers
        assert conv.kernel_size == (3, 3) and conv.stride == (1, 1)
        self.upsample, self.conv, self.strip = upsample, conv, strip

    def __call__(self, x_NCHW: Tensor) -> Tensor:
        dim = self.strip.dim
        before, after = exchange_halos(self.strip, x_NCHW)
        doubled = self.upsample(torch.cat([before, x_NCHW, after], dim))
        needed = doubled.narrow(dim, 1, doubled.shape[dim] - 2)
        return F.conv2d(needed, self.conv.weight, self.conv.bias, padding=(0, 1) if dim == -2 else (1, 0))


class StripDownsample:
    """Forward of (a row and a column of zeros at the end, 3x3 convolution with stride 2)."""

    def __init__(self, layers: Any, strip: Strip) -> None:
        _, conv = layers
        assert conv.kernel_size == (3, 3) and conv.stride == (2, 2) and conv.padding == (0, 0)
        self.conv, self.strip = conv, strip

    def __call__(self, x_NCHW: Tensor) -> Tensor:
        images, channels, height, width = x_NCHW.shape
        assert x_NCHW.shape[self.strip.dim] % 2 == 0  # else the next strip would begin between two strides
        padded = x_NCHW.new_zeros(images, channels, height + 1, width + 1)
        padded[..., :-1, :-1] = x_NCHW
        across = padded[..., :-1] if self.strip.dim == -2 else padded[..., :-1, :]
        self.strip.edges(across)[1].copy_(fetch_after(self.strip, x_NCHW))
        return F.conv2d(padded, self.conv.weight, self.conv.bias, stride=2)


class StripAttention:
    """Forward of the single-headed attention over one frame: own queries, everybody's keys and values."""

    def __init__(self, block: Any, strip: Strip) -> None:
        self.block, self.strip = block, strip

    def __call__(self, x_BCTHW: Tensor) -> Tensor:
        batch, channels, _, height, width = x_BCTHW.shape
        images = x_BCTHW.transpose(1, 2).flatten(0, 1)  # [N, C, h, w], N = B * T
        tokens = self.block.to_qkv(self.block.norm(images)).flatten(2).transpose(1, 2)
        q, key_value = tokens.split([channels, 2 * channels], dim=-1)
        k, v = self.gather(key_value, height * width // x_BCTHW.shape[self.strip.dim]).chunk(2, dim=-1)
        out: Tensor = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        out = self.block.proj(out.transpose(1, 2).reshape(images.shape))
        return out.view(batch, -1, channels, height, width).transpose(1, 2) + x_BCTHW

    def gather(self, tokens: Tensor, per_row: int) -> Tensor:
        """Gather [N, own, C] of every rank to [N, H * W, C]; attention does not depend on the order of keys."""
        lengths = [size * per_row for size in self.strip.sizes]
        padded = F.pad(tokens, (0, 0, 0, max(lengths) - tokens.shape[1]))
        return drop_padding(self.strip.group.all_gather(padded), lengths)


def _put_forward(module: nn.Module, forward: Any) -> None:
    """Set, or with None remove, the forward of this one instance."""
    if forward is None:
        del module.forward
    else:
        module.forward = forward


FORWARDS = {"causal": StripConv3d, "upsample": StripUpsample, "downsample": StripDownsample, "frame": StripAttention}
"""The forward of each kind of layer, by how it sees beyond its strip."""


@contextmanager
def sharded(autoencoder: Autoencoder, side: Side, strip: Strip) -> Iterator[None]:
    """Make one side of an autoencoder work on strips, and undo that on exit."""
    with ExitStack() as undo:
        for layer, sees in autoencoder.wide_layers(side) if strip.group.size > 1 else ():
            undo.callback(_put_forward, layer, layer.__dict__.get("forward"))
            _put_forward(layer, FORWARDS[sees](layer, strip))
        yield
