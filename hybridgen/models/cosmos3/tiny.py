"""A tiny Cosmos 3 checkpoint. No torch."""

from __future__ import annotations

from typing import Any

from hybridgen.models.tiny.kinds import Config, Kind, unipc
from hybridgen.models.wan.tiny import RESIDUAL_VAE


def cosmos3(
    heads: int = 8, kv_heads: int = 2, head_dim: int = 16, layers: int = 4, ffn: int = 128, **more: Any
) -> Config:
    """Configuration of a Cosmos3OmniTransformer; the width of the hidden state does not depend on the heads."""
    eighth = head_dim // 8
    return {
        "_class_name": "Cosmos3OmniTransformer",
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "num_hidden_layers": layers,
        "intermediate_size": ffn,
        "hidden_size": 128,
        "rope_axes_dim": [head_dim // 2 - 2 * eighth, eighth, eighth],
        **more,
    }


KINDS = (
    Kind(
        "cosmos3",
        "Cosmos3OmniPipeline",
        cosmos3,
        text="",
        vae=RESIDUAL_VAE,
        scheduler=unipc(use_karras_sigmas=True, sigma_max=200.0, sigma_min=0.147),
        optional=("safety_checker", "sound_tokenizer"),
        index={"enable_safety_checker": False, "default_use_system_prompt": True, "use_native_flow_schedule": False},
    ),
)
