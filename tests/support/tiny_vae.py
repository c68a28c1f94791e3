"""Tiny VAEs of both Wan layouts with unit-scale weights, and plans for latents of any size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from diffusers import AutoencoderKLWan
from torch import Tensor

from hybridgen.distributed.mesh import Mesh
from hybridgen.models.catalogue import find
from hybridgen.models.wan.vae import WanAutoencoder
from hybridgen.models.wan.vae_facts import WanVae
from hybridgen.plan.autoencoder import VaeFacts
from hybridgen.plan.facts import ModelFacts
from hybridgen.plan.plan import Clip, Plan
from hybridgen.strategies.parallel_vae.halo import Strip, sharded
from hybridgen.strategies.parallel_vae.rules import NAME, split_dim, strip_sizes
from hybridgen.strategies.registry import AXES, Degrees

TINY = WanVae(base_dim=8, res_blocks=1)
RESIDUAL = WanVae(base_dim=8, res_blocks=1, stride_space=16, residual=True, patch=2)
WAN22_5B = WanVae(base_dim=256, latent_channels=48, stride_space=16, residual=True, patch=2, encoder_base_dim=160)


def facts(vae: VaeFacts) -> ModelFacts:
    return replace(find("wan2.2"), name="test", vae=vae)


def plan_for(
    vae: VaeFacts, rows: int, columns: int, frames: int, degrees: Degrees, order: tuple[str, ...] = AXES
) -> Plan:
    """A plan whose latents have this size."""
    stride = vae.stride_space
    clip = Clip(columns * stride, rows * stride, 4 * (frames - 1) + 1, steps=1, guidance=1.0)
    return Plan(facts(vae), clip, degrees, order)


def config(vae: WanVae) -> dict[str, Any]:
    """The facts as diffusers' arguments."""
    return {
        "base_dim": vae.encoder_base_dim or vae.base_dim,
        "decoder_base_dim": vae.base_dim,
        "z_dim": vae.latent_channels,
        "dim_mult": list(vae.dim_mult),
        "num_res_blocks": vae.res_blocks,
        "temperal_downsample": list(reversed(vae.time_upsample)),
        "is_residual": vae.residual,
        "in_channels": 3 * vae.patch**2,
        "out_channels": 3 * vae.patch**2,
        "patch_size": vae.patch if vae.patch > 1 else None,
        "scale_factor_spatial": vae.stride_space,
        "latents_mean": [0.1 * i for i in range(vae.latent_channels)],
        "latents_std": [1 + 0.1 * i for i in range(vae.latent_channels)],
    }


def build_vae(vae: VaeFacts) -> Any:
    """A VAE of these facts whose weights give activations of unit scale, and pixels mostly within [-1, 1]."""
    assert isinstance(vae, WanVae)
    torch.manual_seed(0)
    model = AutoencoderKLWan(**config(vae)).eval()
    for name, weight in model.named_parameters():
        if name.endswith(".weight"):
            scale = 0.3 if "conv_out" in name else 1.0
            torch.nn.init.normal_(weight, std=scale * weight[0].numel() ** -0.5)
    return model.requires_grad_(False)


def noise(plan: Plan) -> Tensor:
    return torch.randn(1, *plan.latent_shape, generator=torch.Generator().manual_seed(1))


def relative_error(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def decode_strips(model: Any, mesh: Mesh, plan: Plan, latents: Tensor) -> Tensor:
    """Decode on the plan's VAE ranks; every rank's pixels before rounding, put together: [1, 3, t, H, W] in [-1, 1]."""
    group, dim, sizes = mesh.overlay("vae", NAME), split_dim(plan), strip_sizes(plan)
    assert group is not None
    own = torch.split(latents, list(sizes), dim)[group.rank]
    autoencoder = WanAutoencoder(model)
    with sharded(autoencoder, "decoder", Strip(group, dim, sizes)):
        strip = torch.cat(list(autoencoder.decode(own)), dim=2)
    strips: list[Tensor] = [strip] * group.size
    dist.all_gather_object(strips, strip)
    return torch.cat(strips, dim)
