"""Two other implementations on the ranks that hybridgen runs on: DistVAE's decoder, diffusers' context parallelism."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.contenders import stock, transformer, vae
from benchmarks.turns import Contender
from hybridgen.distributed.mesh import Mesh, build_mesh
from hybridgen.models.autoencoder import to_uint8
from hybridgen.models.wan.vae import WanAutoencoder
from hybridgen.models.wan.vae_facts import WanVae
from hybridgen.plan.plan import Plan
from hybridgen.strategies.registry import Degrees
from tests.support.tiny_vae import build_vae, decode_strips, noise, plan_for, relative_error

CPU = torch.device("cpu")
Errors = tuple[float, float | str]
"""hybridgen's error, and the peer's or the reason why it refuses."""


def diffusers_ulysses(plan: Plan) -> Contender:
    """diffusers' pipeline with its own Ulysses over all ranks; every rank ends with all the latents.

    Wired by hand: enable_parallelism asks torch for an accelerator and fails on a machine without one, so for this
    call torch is made to name the CPU, and the mesh is given. All else is diffusers' own.
    """
    from diffusers import ContextParallelConfig

    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("ring", "ulysses"))
    config = ContextParallelConfig(ulysses_degree=dist.get_world_size(), mesh=mesh)
    expert = transformer(plan.facts.transformer)
    with (
        mock.patch.object(torch._C, "_get_accelerator", lambda: CPU),
        mock.patch.object(torch.accelerator, "device_count", lambda: 1),
    ):
        expert.enable_parallelism(config=config)
    return stock(plan, expert)


def distvae_decoder(plan: Plan) -> Contender:
    """Latents, here on all ranks, to frames on the first, DistVAE's way; nothing had to be wired."""
    from distvae.vae import parallelize_decoder

    model, latents = vae(), noise(plan)
    parallelize_decoder(model, None)

    def run() -> Tensor:
        pixels = model.decode(WanAutoencoder(model).unnormalise(latents)).sample
        return torch.empty(0) if dist.get_rank() else to_uint8(pixels)

    return lambda: run


def decoding_errors(model: Any, rival: Any, mesh: Mesh, plan: Plan) -> Errors:
    """||a - b|| / ||b|| against vae.decode in one process, of hybridgen and DistVAE; or why that one refuses.

    Both models have the same weights; DistVAE changes the second for good.
    """
    from distvae.vae import parallelize_decoder

    latents = WanAutoencoder(model).unnormalise(noise(plan))
    whole = model.decode(latents).sample
    ours = relative_error(decode_strips(model, mesh, plan, latents), whole)
    parallelize_decoder(rival, None)
    try:
        theirs = relative_error(rival.decode(latents).sample, whole)
    except ValueError as error:  # raised on every rank, before any exchange
        return ours, str(error)
    return ours, theirs


def tiny_errors(rank: int, facts: WanVae, rows: int, columns: int) -> Errors:
    """The same for a tiny VAE of these facts and two latent frames of this size."""
    plan = plan_for(facts, rows, columns, 2, Degrees(ulysses=2, vae=2))
    return decoding_errors(build_vae(facts), build_vae(facts), build_mesh(plan.layout, rank, "cpu"), plan)
