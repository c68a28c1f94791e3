"""Tiny Cosmos Predict checkpoints, one of every kind. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hybridgen.models.tiny.kinds import DEFAULTS, QWEN_LAYERS, QWEN_WIDTH, TEXT_WIDTH, Config, Kind, unipc
from hybridgen.models.wan.tiny import VAE


def cosmos(heads: int = 8, head_dim: int = 16, layers: int = 4, ffn: int = 256, **more: Any) -> Config:
    """Configuration of a CosmosTransformer3DModel, as Predict2 and Predict2.5 have it."""
    return {
        "_class_name": "CosmosTransformer3DModel",
        "num_attention_heads": heads,
        "attention_head_dim": head_dim,
        "num_layers": layers,
        "mlp_ratio": ffn / (heads * head_dim),
        "text_embed_dim": TEXT_WIDTH,
        "adaln_lora_dim": 8,
        "rope_scale": [1.0, 3.0, 3.0],
        "concat_padding_mask": True,
        "extra_pos_embed_type": None,
        **more,
    }


COSMOS2 = Kind(
    "cosmos2-v2w",
    "Cosmos2VideoToWorldPipeline",
    cosmos,
    {"in_channels": 17},
    text="t5",
    vae=VAE,
    scheduler={"_class_name": "FlowMatchEulerDiscreteScheduler", "use_karras_sigmas": True},
)
KINDS = (
    replace(
        COSMOS2,
        name="cosmos2-t2i",
        pipeline="Cosmos2TextToImagePipeline",
        fields={"rope_scale": [1.0, 4.0, 4.0]},
        defaults=replace(DEFAULTS, frames=1),
    ),
    COSMOS2,
    Kind(
        "cosmos2.5",
        "Cosmos2_5_PredictBasePipeline",
        cosmos,
        {
            "in_channels": 17,
            "use_crossattn_projection": True,
            "crossattn_proj_in_channels": QWEN_LAYERS * QWEN_WIDTH,
            "encoder_hidden_states_channels": TEXT_WIDTH,
        },
        text="qwen2.5-vl",
        vae=VAE,
        scheduler=unipc(use_karras_sigmas=True, sigma_max=200.0, sigma_min=0.01),
    ),
)
