"""The tiny checkpoints as data: pipelines, components and their configurations. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hybridgen.plan.facts import RequestDefaults

Config = dict[str, Any]
TEXT_WIDTH = 32
IMAGE_WIDTH = 32
IMAGE_TOKENS = 17
"""Of one picture, as the image encoder sees it: 4 x 4 patches and the class token."""
DEFAULTS = RequestDefaults(width=64, height=64, frames=17, steps=4, guidance=4.0, fps=8, dtype="float32")


def wan(
    heads: int = 8, head_dim: int = 16, layers: int = 4, ffn: int = 192, image: bool = False, **more: Any
) -> Config:
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


def of_wan(boundary: float | None = None, expand_timesteps: bool = False) -> Config:
    """What Wan's pipelines keep in model_index.json besides their components."""
    return {"boundary_ratio": boundary, "expand_timesteps": expand_timesteps}


QWEN_LAYERS = 2
QWEN_WIDTH = 16

WAN_TEXT = Kind("wan2.1-t2v", "WanPipeline", wan, scheduler=unipc(flow_shift=3.0), index=of_wan())
WAN_IMAGE = Kind(
    "wan2.1-i2v",
    "WanImageToVideoPipeline",
    wan,
    {"in_channels": 36, "image": True},
    image_encoder=True,
    scheduler=unipc(flow_shift=5.0),
    index=of_wan(),
)
COSMOS2 = Kind(
    "cosmos2-v2w",
    "Cosmos2VideoToWorldPipeline",
    cosmos,
    {"in_channels": 17},
    text="t5",
    scheduler={"_class_name": "FlowMatchEulerDiscreteScheduler", "use_karras_sigmas": True},
)
ALL = (
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
        residual_vae=True,
        scheduler=unipc(flow_shift=5.0),
        index=of_wan(expand_timesteps=True),
    ),
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
        scheduler=unipc(use_karras_sigmas=True, sigma_max=200.0, sigma_min=0.01),
    ),
    Kind(
        "cosmos3",
        "Cosmos3OmniPipeline",
        cosmos3,
        text="",
        residual_vae=True,
        scheduler=unipc(use_karras_sigmas=True, sigma_max=200.0, sigma_min=0.147),
        index={"enable_safety_checker": False, "default_use_system_prompt": True, "use_native_flow_schedule": False},
    ),
)
KINDS = {kind.name: kind for kind in ALL}
