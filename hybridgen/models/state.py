"""The two forms of what a rank denoises, and how everything of its size is cut and put together.

The state x is the latents [1, C, T, H, W] in fp32 on a rank that holds the whole sequence, and this rank's tokens
[1, local, p_t * p_h * p_w * C] otherwise (see distributed/sequence.py). Predictions have the form of x.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hybridgen.distributed.sequence import Shard, patchify, unpatchify
from hybridgen.plan.plan import Plan


class State:
    """This rank's part of the latents."""

    def __init__(self, plan: Plan, shard: Shard) -> None:
        self.plan, self.shard, self.patch = plan, shard, plan.facts.transformer.patch

    @property
    def whole(self) -> bool:
        """Whether the state is the latents themselves. Then every operation is the stock pipeline's, for equal bits."""
        return self.shard.whole

    def cut(self, latents_BCTHW: Tensor) -> Tensor:
        """Cut full latents, or a tensor of their size, to this rank's part in the form of x."""
        if self.whole:
            return latents_BCTHW
        return self.shard.take(patchify(latents_BCTHW, self.patch))

    def cut_mask(self, mask_B1THW: Tensor) -> Tensor:
        """This rank's part of a mask that is equal in all cells of a token: [1, 1, T, H, W] or [1, local, 1]."""
        return self.cut(mask_B1THW) if self.whole else self.cut(mask_B1THW)[..., :1]

    def assemble(self, shards: list[Tensor]) -> Tensor:
        """Join every rank's state, in order, to full latents [1, C, T, H, W]."""
        if self.whole:
            return shards[0]
        return unpatchify(self.shard.assemble(shards), self.plan.latent_shape, self.patch)

    def rows(self, full: Tensor, dim: int = 1) -> Tensor:
        """Rows of a table with one row per token of the sequence, for this rank's tokens; padding gets zeros."""
        return full if self.whole else self.shard.take(full, dim)

    def tokens(self, x: Tensor) -> Tensor:
        """A part of the state as tokens."""
        return patchify(x, self.patch) if self.whole else x

    def prediction(self, tokens: Tensor) -> Tensor:
        """Tokens from the output projection, in the form of x."""
        return unpatchify(tokens, self.plan.latent_shape, self.patch) if self.whole else tokens

    def beside(self, *parts: Tensor) -> Tensor:
        """Join channels of several parts, each in the form of x, in every cell of a token."""
        if self.whole:
            return torch.cat(parts, 1)
        cells = [torch.unflatten(part, -1, (math.prod(self.patch), -1)) for part in parts]
        return torch.cat(cells, -1).flatten(-2)

    def piece(self, x: Tensor, patch: int) -> Tensor:
        """This rank's rows of a patch, a view of [1, local, ...]; all of x when there is one patch."""
        if self.plan.tokens.patches == 1:
            return x
        size = self.plan.tokens.shard_size
        return x[:, patch * size : (patch + 1) * size]

    def here(self, x: Tensor, patch: int | None) -> Tensor:
        """The rows of [1, local, ...] that run in a pass of one patch, or of all."""
        return x if patch is None else self.piece(x, patch)

    def pieces(self, patch: int | None) -> int:
        """Number of pieces of the sequence in the tensors of a pass."""
        return self.plan.tokens.patches if patch is None else 1
