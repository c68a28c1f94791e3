"""Other projects give what ours gives: yunchang's Ulysses, DistVAE's decoding.

yunchang 0.6.4's ring is wrong on the CPU and is not used; DistVAE 0.1.0 refuses odd latent rows of Wan 2.2's VAE.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from hybridgen.distributed.comm import Group, Traffic
from hybridgen.distributed.mesh import build_mesh
from hybridgen.distributed.processes import RankContext
from hybridgen.models.wan.vae_facts import WanVae
from hybridgen.strategies.registry import Degrees
from hybridgen.strategies.ulysses.run import gather_heads, scatter_heads
from tests.support.ranks import run_ranks
from tests.support.tiny_vae import RESIDUAL, TINY, build_vae, decode_strips, noise, plan_for, relative_error


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    grouped = q.shape[2] != k.shape[2]
    return F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), enable_gqa=grouped
    ).transpose(1, 2)


def inputs(tokens: int, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, tokens, h, 16, generator=generator) for h in (heads, kv_heads, kv_heads))
    return q, k, v


def ours(q: Tensor, k: Tensor, v: Tensor, context: RankContext) -> Tensor:
    """Ulysses over all ranks, on this rank's shard."""
    group = Group("ulysses", tuple(range(context.world)), context.rank, Traffic(), dist.group.WORLD)
    return gather_heads(attention(*scatter_heads(q, k, v, group, 1)), group, 1)


@pytest.mark.parametrize("world", [2, 4])
def test_ulysses_equals_yunchang(world: int) -> None:
    yunchang = pytest.importorskip("yunchang")
    full = inputs(32, 8, 8)

    def both(context: RankContext) -> tuple[Tensor, Tensor]:
        q, k, v = (x.chunk(context.world, 1)[context.rank].contiguous() for x in full)
        theirs = yunchang.UlyssesAttention(dist.group.WORLD, attn_type=yunchang.kernels.AttnType.TORCH_MATH)
        theirs.attn_fn = lambda q, k, v, **_: attention(q, k, v)  # its kernels want a GPU; the exchanges are the point
        return ours(q, k, v, context), theirs(q, k, v)

    results = run_ranks(world, both)
    reference = attention(*full)
    for found in (torch.cat(shards, 1) for shards in zip(*results, strict=True)):
        torch.testing.assert_close(found, reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("world", "heads", "kv_heads"), [(2, 8, 2), (4, 8, 2), (4, 8, 4), (4, 8, 1)])
def test_grouped_heads_are_split_or_repeated(world: int, heads: int, kv_heads: int) -> None:
    full = inputs(16, heads, kv_heads)

    def shard(context: RankContext) -> Tensor:
        q, k, v = (x.chunk(context.world, 1)[context.rank] for x in full)
        return ours(q, k, v, context)

    found = torch.cat(run_ranks(world, shard), 1)
    torch.testing.assert_close(found, attention(*full), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("vae", "rows"), [(TINY, 7), (RESIDUAL, 6)], ids=["2.1, uneven strips", "2.2"])
def test_parallel_vae_equals_distvae(vae: WanVae, rows: int) -> None:
    distvae = pytest.importorskip("distvae.vae")
    plan = plan_for(vae, rows, 5, 2, Degrees(ulysses=2, vae=2))
    latents = noise(plan)

    def both(context: RankContext) -> tuple[Tensor, Tensor]:
        mine = decode_strips(build_vae(vae), build_mesh(plan.layout, context.rank, "cpu"), plan, latents)
        theirs = build_vae(vae)
        distvae.parallelize_decoder(theirs, None)
        return mine, theirs.decode(latents).sample

    reference = build_vae(vae).decode(latents).sample
    assert all(relative_error(found, reference) <= 1e-5 for pair in run_ranks(2, both) for found in pair)
