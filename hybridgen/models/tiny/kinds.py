"""The tiny checkpoints as data: pipelines, components and their configurations. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hybridgen.models.facts import RequestDefaults

Config = dict[str, Any]
TEXT_WIDTH = 32
IMAGE_WIDTH = 32
IMAGE_TOKENS = 17
"""Of one picture, as the image encoder sees it: 4 x 4 patches and the class token."""
DEFAULTS = RequestDefaults(width=64, height=64, frames=17, steps=4, guidance=4.0, fps=8, dtype="float32")


def wan(heads: int = 8, head_dim: int = 16, layers: int = 4, ffn: int = 192, image: bool = False, **more: Any) -> Config:
    """WanTransformer3DModel's configuration; `image`: with cross-attention to an encoded picture."""
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


def cosmos(heads: int = 8, head_dim: int = 16, layers: int = 4, ffn: int = 256, **more: Any) -> Config:
    """CosmosTransformer3DModel's configuration, as Predict2 and Predict2.5 have it."""
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


def cosmos3(
    heads: int = 8, kv_heads: int = 2, head_dim: int = 16, layers: int = 4, ffn: int = 128, **more: Any
) -> Config:
    """Cosmos3OmniTransformer's configuration. The hidden state is as wide whatever the number of heads."""
    quarter = head_dim // 8
    return {
        "_class_name": "Cosmos3OmniTransformer",
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "num_hidden_layers": layers,
        "intermediate_size": ffn,
        "hidden_size": 128,
        "rope_axes_dim": [head_dim // 2 - 2 * quarter, quarter, quarter],
        **more,
    }


@dataclass(frozen=True)
class Kind:
    """One kind of checkpoint."""

    name: str
    pipeline: str
    """diffusers' class."""
    transformer: Callable[..., Config]
    fields: Config = field(default_factory=dict)
    """What the transformer's function is called with."""
    experts: int = 1
    text: str = "umt5"
    """Text encoder: umt5, t5, qwen2.5-vl, or "" where token ids go into the transformer."""
    image_encoder: bool = False
    residual_vae: bool = False
    """Wan 2.2's VAE layout: 48 channels, 16 pixels a cell."""
    scheduler: Config = field(default_factory=dict)
    index: Config = field(default_factory=dict)
    """What model_index.json says besides the components."""
    defaults: RequestDefaults = DEFAULTS


def unipc(**more: Any) -> Config:
    flow = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
    return {"_class_name": "UniPCMultistepScheduler", **flow, **more}


EULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "use_karras_sigmas": True}
TWO_EXPERTS: Config = {"experts": 2, "defaults": replace(DEFAULTS, guidance_2=3.0)}
WAN = {"pipeline": "WanPipeline", "transformer": wan, "scheduler": unipc(flow_shift=3.0)}
WAN_IMAGE = {"pipeline": "WanImageToVideoPipeline", "transformer": wan, "scheduler": unipc(flow_shift=5.0)}
COSMOS = {"transformer": cosmos, "text": "t5", "scheduler": EULER}
IMAGE_FIELDS = {"in_channels": 36, "image": True}
ONE_EXPERT_INDEX = {"boundary_ratio": None, "expand_timesteps": False}
QWEN_LAYERS = 2
QWEN_WIDTH = 16
PROJECTED = {
    "use_crossattn_projection": True,
    "crossattn_proj_in_channels": QWEN_LAYERS * QWEN_WIDTH,
    "encoder_hidden_states_channels": TEXT_WIDTH,
}

KINDS = {
    kind.name: kind
    for kind in (
        Kind("wan2.1-t2v", index=ONE_EXPERT_INDEX, **WAN),
        Kind(
            "wan2.2-t2v",
            fields={"layers": 2},
            index={"boundary_ratio": 0.875, "expand_timesteps": False},
            **WAN,
            **TWO_EXPERTS,
        ),
        Kind("wan2.1-i2v", fields=IMAGE_FIELDS, image_encoder=True, index=ONE_EXPERT_INDEX, **WAN_IMAGE),
        Kind(
            "wan2.1-flf2v",
            fields={**IMAGE_FIELDS, "pos_embed_seq_len": 2 * IMAGE_TOKENS},
            image_encoder=True,
            index=ONE_EXPERT_INDEX,
            **WAN_IMAGE,
        ),
        Kind(
            "wan2.2-i2v",
            fields={"in_channels": 36, "layers": 2},
            index={"boundary_ratio": 0.9, "expand_timesteps": False},
            **WAN_IMAGE,
            **TWO_EXPERTS,
        ),
        Kind(
            "wan2.2-ti2v",
            fields={"in_channels": 48, "out_channels": 48},
            residual_vae=True,
            index={"boundary_ratio": None, "expand_timesteps": True},
            **{**WAN, "scheduler": unipc(flow_shift=5.0)},
        ),
        Kind(
            "cosmos2-t2i",
            pipeline="Cosmos2TextToImagePipeline",
            fields={"rope_scale": [1.0, 4.0, 4.0]},
            defaults=replace(DEFAULTS, frames=1),
            **COSMOS,
        ),
        Kind("cosmos2-v2w", pipeline="Cosmos2VideoToWorldPipeline", fields={"in_channels": 17}, **COSMOS),
        Kind(
            "cosmos2.5",
            pipeline="Cosmos2_5_PredictBasePipeline",
            transformer=cosmos,
            fields={"in_channels": 17, **PROJECTED},
            text="qwen2.5-vl",
            scheduler=unipc(use_karras_sigmas=True, sigma_max=200.0, sigma_min=0.01),
        ),
        Kind(
            "cosmos3",
            pipeline="Cosmos3OmniPipeline",
            transformer=cosmos3,
            text="",
            residual_vae=True,
            scheduler=unipc(use_karras_sigmas=True, sigma_max=200.0, sigma_min=0.147),
            index={
                "enable_safety_checker": False,
                "default_use_system_prompt": True,
                "use_native_flow_schedule": False,
            },
        ),
    )
}
