"""A rank's part of the token sequence: latents to tokens, tokens to shards, and back.

Tokens of latents are [B, S, p_t * p_h * p_w * C], in the channel order of the transformers' output projection, so a
prediction and the latents it belongs to line up without going back to [B, C, T, H, W].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridgen.plan.layout import TokenShards


def patchify(latents_BCTHW: Tensor, patch: tuple[int, int, int]) -> Tensor:
    """Cut [B, C, T, H, W], padded with zeros to whole patches, into tokens [B, S, p_t * p_h * p_w * C], time-major."""
    missing = [n for size, p in zip(latents_BCTHW.shape[:1:-1], patch[::-1], strict=True) for n in (0, -size % p)]
    x = F.pad(latents_BCTHW, missing) if any(missing) else latents_BCTHW
    (b, c, t, h, w), (p_t, p_h, p_w) = x.shape, patch
    x = x.reshape(b, c, t // p_t, p_t, h // p_h, p_h, w // p_w, p_w)
    return x.permute(0, 2, 4, 6, 3, 5, 7, 1).reshape(b, -1, p_t * p_h * p_w * c)


def unpatchify(tokens: Tensor, latent_shape: tuple[int, int, int, int], patch: tuple[int, int, int]) -> Tensor:
    """Invert patchify: tokens [B, S, p_t * p_h * p_w * C] -> [B, C, T, H, W]; latent_shape is (any, T, H, W)."""
    (_, t, h, w), (p_t, p_h, p_w) = latent_shape, patch
    x = tokens.reshape(tokens.shape[0], -(-t // p_t), -(-h // p_h), -(-w // p_w), p_t, p_h, p_w, -1)
    x = x.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6, 7).flatten(4, 5).flatten(2, 3)
    return x[:, :, :t, :h, :w]


def join(x_NBSHD: Tensor, patches: int) -> Tensor:
    """Join n neighbouring shards [n, B, S, ...] to one run of tokens [B, n * S, ...] in sequence order.

    With one patch the shards simply follow each other; with several, patch by patch.
    """
    n, b, s = x_NBSHD.shape[:3]
    x = torch.unflatten(x_NBSHD, 2, (patches, s // patches)).movedim(0, 2)
    return x.reshape(b, n * s, *x_NBSHD.shape[3:])


def split(x_BSHD: Tensor, parts: int, patches: int) -> Tensor:
    """Invert join: [B, n * S, ...] -> [n, B, S, ...]."""
    b, s = x_BSHD.shape[0], x_BSHD.shape[1] // parts
    x = torch.unflatten(x_BSHD, 1, (patches, parts, s // patches)).movedim(2, 0)
    return x.reshape(parts, b, s, *x_BSHD.shape[2:])


@dataclass(frozen=True)
class Shard:
    """Which tokens of a request this rank holds."""

    tokens: TokenShards
    index: int

    @property
    def whole(self) -> bool:
        """Whether this rank holds every token in one piece."""
        return self.tokens.shards == 1 and self.tokens.patches == 1

    def take(self, full: Tensor, dim: int = 1) -> Tensor:
        """This rank's rows of a full sequence along `dim`, padded with zeros to the shard's size."""
        pieces = []
        for start, valid in self.tokens.positions(self.index):
            piece = full.narrow(dim, min(start, self.tokens.tokens), valid)
            missing = self.tokens.shard_size - valid
            if missing:
                shape = list(piece.shape)
                shape[dim] = missing
                piece = torch.cat([piece, piece.new_zeros(shape)], dim)
            pieces.append(piece)
        return torch.cat(pieces, dim)  # a copy, also of one piece: a view would keep the full sequence

    def assemble(self, shards: list[Tensor]) -> Tensor:
        """The full sequence [B, S, ...] from every rank's shard, in order; padding is dropped."""
        return join(torch.stack(shards), self.tokens.patches)[:, : self.tokens.tokens]
