"""Attention as it is written, for comparison with kernels."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def inputs(num_queries: int, num_keys: int, key_heads: int = 4) -> list[Tensor]:
    """q, k and v of 2 sequences, 4 query heads of 16."""
    random = torch.Generator().manual_seed(1000 * num_queries + num_keys)
    shapes = [(num_queries, 4), (num_keys, key_heads), (num_keys, key_heads)]
    return [torch.randn(2, *shape, 16, generator=random) for shape in shapes]


def plain(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax attention as it is written, in float64: (out [B, Sq, H, D], lse [B, Sq, H, 1])."""
    q, k, v = q.double(), k.double(), v.double()
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bqhk", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bqhk,bkhd->bqhd", scores.softmax(-1), v), scores.logsumexp(-1, keepdim=True)


def error(a: Tensor, b: Tensor) -> float:
    """||a - b|| / ||b||"""
    return float((a.double() - b.double()).norm() / b.double().norm())
