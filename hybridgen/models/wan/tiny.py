"""Tiny Wan checkpoints, one of every kind. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hybridgen.models.tiny.kinds import DEFAULTS, IMAGE_TOKENS, IMAGE_WIDTH, TEXT_WIDTH, Config, Kind, unipc


def wan(
    heads: int = 8, head_dim: int = 16, layers: int = 4, ffn: int = 192, image: bool = False, **more: Any
) -> Config:
    """Configuration of a WanTransformer3DModel; `image` adds cross-attention to an encoded image."""
    with_image = {"image_dim": IMAGE_WIDTH, "added_kv_proj_dim": heads * head_dim} if image else {}
    return {
        "_class_name": "WanTransformer3DModel",
        "num_attention_heads": heads,
        "attention_head_dim": head_dim,
        "num_layers": layers,
        "ffn_dim": ffn,
        "text_dim": TEXT_WIDTH,
        "freq_dim": 32,
        "rope_max_seq_len": 64,
        **with_image,
        **more,
    }


def of_wan(boundary: float | None = None, expand_timesteps: bool = False) -> Config:
    """Entries of Wan's model_index.json besides the components."""
    return {"boundary_ratio": boundary, "expand_timesteps": expand_timesteps}


def vae(channels: int, **layout: Any) -> Config:
    """Configuration of an AutoencoderKLWan."""
    return {
        "_class_name": "AutoencoderKLWan",
        "base_dim": 4,
        "z_dim": channels,
        "num_res_blocks": 1,
        "latents_mean": [round(index / channels - 0.5, 4) for index in range(channels)],
        "latents_std": [round(index / channels + 0.5, 4) for index in range(channels)],
        **layout,
    }


VAE = vae(16)
RESIDUAL_VAE = vae(
    48,
    is_residual=True,
    patch_size=2,
    in_channels=12,
    out_channels=12,
    scale_factor_spatial=16,
    scale_factor_temporal=4,
    decoder_base_dim=4,
)
"""Configuration of an AutoencoderKLWan in Wan 2.2's layout: 16 pixels per latent cell."""

WAN_TEXT = Kind(
    "wan2.1-t2v",
    "WanPipeline",
    wan,
    vae=VAE,
    scheduler=unipc(flow_shift=3.0),
    optional=("transformer_2",),
    index=of_wan(),
)
WAN_IMAGE = Kind(
    "wan2.1-i2v",
    "WanImageToVideoPipeline",
    wan,
    {"in_channels": 36, "image": True},
    image_encoder=True,
    vae=VAE,
    optional=("image_encoder", "image_processor", "transformer_2"),
    scheduler=unipc(flow_shift=5.0),
    index=of_wan(),
)
KINDS = (
    WAN_TEXT,
    replace(
        WAN_TEXT,
        name="wan2.2-t2v",
        fields={"layers": 2},
        experts=2,
        index=of_wan(boundary=0.875),
        defaults=replace(DEFAULTS, guidance_2=3.0),
    ),
    WAN_IMAGE,
    replace(
        WAN_IMAGE,
        name="wan2.1-flf2v",
        fields={**WAN_IMAGE.fields, "pos_embed_seq_len": 2 * IMAGE_TOKENS},
    ),
    replace(
        WAN_IMAGE,
        name="wan2.2-i2v",
        fields={"in_channels": 36, "layers": 2},
        experts=2,
        image_encoder=False,
        index=of_wan(boundary=0.9),
        defaults=replace(DEFAULTS, guidance_2=3.0),
    ),
    replace(
        WAN_TEXT,
        name="wan2.2-ti2v",
        fields={"in_channels": 48, "out_channels": 48},
        vae=RESIDUAL_VAE,
        scheduler=unipc(flow_shift=5.0),
        index=of_wan(expand_timesteps=True),
    ),
)
