"""The names of diffusers that hybridgen builds on: most are private, and may change with a minor version."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Seams:
    """What must be there."""

    calls: Mapping[str, str] = field(default_factory=dict)
    """Functions and methods, as "module:name" or "module:Class.name", and the parameters that they must take."""
    parts: tuple[str, ...] = ()
    """Attributes of a transformer, dotted; numbers count blocks."""


WAN_VAE = "diffusers.models.autoencoders.autoencoder_kl_wan"
WAN = "diffusers.models.transformers.transformer_wan"
WAN_PIPELINES = "diffusers.pipelines.wan"
COSMOS = "diffusers.models.transformers.transformer_cosmos"
COSMOS_PIPELINES = "diffusers.pipelines.cosmos"
COSMOS3 = "diffusers.models.transformers.transformer_cosmos3"
COSMOS3_PIPELINE = f"{COSMOS_PIPELINES}.pipeline_cosmos3_omni"
UNIPC = "diffusers.schedulers.scheduling_unipc_multistep:UniPCMultistepScheduler"
EULER = "diffusers.schedulers.scheduling_flow_match_euler_discrete:FlowMatchEulerDiscreteScheduler"

EVERY = Seams(
    calls={
        "diffusers.models.modeling_utils:ModelMixin.set_attention_backend": "backend",
        "diffusers.utils.torch_utils:randn_tensor": "shape generator device dtype",
        f"{WAN_VAE}:patchify": "x patch_size",
        f"{WAN_VAE}:unpatchify": "x patch_size",
        f"{WAN_VAE}:AutoencoderKLWan.clear_cache": "",
        f"{WAN_VAE}:WanEncoder3d.forward": "x feat_cache feat_idx",
        f"{WAN_VAE}:WanDecoder3d.forward": "x feat_cache feat_idx first_chunk",
        f"{WAN_VAE}:WanCausalConv3d.forward": "x cache_x",
        f"{WAN_VAE}:WanResample.forward": "x feat_cache feat_idx",
        f"{WAN_VAE}:WanAttentionBlock.forward": "x",
        f"{UNIPC}.set_timesteps": "num_inference_steps device sigmas",
        f"{UNIPC}.step": "model_output timestep sample return_dict",
        f"{EULER}.set_timesteps": "num_inference_steps device sigmas",
        f"{EULER}.step": "model_output timestep sample return_dict",
    },
    parts=("_keep_in_fp32_modules", "dtype", "config"),
)


def attentions(block: str, *more: str) -> tuple[str, ...]:
    """The parts of a block's self- and cross-attention."""
    parts = ("heads", "to_q", "to_k", "to_v", "to_out.0", "to_out.1", "norm_q", "norm_k", "set_processor", *more)
    return tuple(f"{block}.{attn}.{part}" for attn in ("attn1", "attn2") for part in parts)


ENCODE = "prompt negative_prompt do_classifier_free_guidance max_sequence_length device"
WAN_CALLS = {f"{WAN}:WanTransformerBlock.forward": "hidden_states encoder_hidden_states temb rotary_emb"}
WAN_PARTS = (
    *("patch_embedding", "rope", "scale_shift_table", "norm_out", "proj_out"),
    *(f"condition_embedder.time{part}" for part in ("steps_proj", "_embedder", "_proj")),
    *("condition_embedder.act_fn", "condition_embedder.text_embedder"),
    *attentions("blocks.0"),
    *("blocks.0.ffn.net.0.proj", "blocks.0.ffn.net.2"),
)
COSMOS_CALLS = {
    f"{COSMOS}:CosmosTransformerBlock.forward": "hidden_states encoder_hidden_states embedded_timestep temb "
    "image_rotary_emb",
    f"{COSMOS}:CosmosRotaryPosEmbed.forward": "hidden_states fps",
    f"{COSMOS}:CosmosEmbedding.forward": "hidden_states timestep",
    f"{COSMOS}:CosmosPatchEmbed.forward": "hidden_states",
    f"{COSMOS}:CosmosAdaLayerNorm.forward": "hidden_states embedded_timestep temb",
    "diffusers.image_processor:VaeImageProcessor.preprocess": "image height width",
}
COSMOS_PARTS = (
    *("patch_embed.proj", "rope", "time_embed", "norm_out", "proj_out"),
    *attentions("transformer_blocks.0"),
    *("transformer_blocks.0.ff.net.0.proj", "transformer_blocks.0.ff.net.2"),
    *(f"config.{part}" for part in ("use_crossattn_projection", "concat_padding_mask", "in_channels", "out_channels")),
)


def cosmos(module: str, name: str) -> Seams:
    """A pipeline of Cosmos Predict."""
    place = f"{COSMOS_PIPELINES}.{module}"
    return Seams({**COSMOS_CALLS, f"{place}:{name}.encode_prompt": ENCODE}, COSMOS_PARTS)


BY_PIPELINE = {
    "WanPipeline": Seams(
        {**WAN_CALLS, f"{WAN_PIPELINES}.pipeline_wan:WanPipeline.encode_prompt": ENCODE},
        WAN_PARTS,
    ),
    "WanImageToVideoPipeline": Seams(
        {
            **WAN_CALLS,
            f"{WAN_PIPELINES}.pipeline_wan_i2v:WanImageToVideoPipeline.encode_prompt": ENCODE,
            f"{WAN_PIPELINES}.pipeline_wan_i2v:WanImageToVideoPipeline.encode_image": "image device",
            "diffusers.image_processor:VaeImageProcessor.preprocess": "image height width",
        },
        WAN_PARTS,
    ),
    "Cosmos2TextToImagePipeline": cosmos("pipeline_cosmos2_text2image", "Cosmos2TextToImagePipeline"),
    "Cosmos2VideoToWorldPipeline": cosmos("pipeline_cosmos2_video2world", "Cosmos2VideoToWorldPipeline"),
    "Cosmos2_5_PredictBasePipeline": cosmos("pipeline_cosmos2_5_predict", "Cosmos2_5_PredictBasePipeline"),
    "Cosmos3OmniPipeline": Seams(
        calls={
            f"{COSMOS3}:Cosmos3VLTextRotaryEmbedding.forward": "position_ids device dtype",
            f"{COSMOS3}:Cosmos3VLTextMLP.forward": "x",
            f"{COSMOS3_PIPELINE}:_preprocess_conditioning_image": "image height width",
            f"{COSMOS3_PIPELINE}:get_3d_mrope_ids_text_tokens": "num_tokens temporal_offset use_float_positions",
            f"{COSMOS3_PIPELINE}:get_3d_mrope_ids_vae_tokens": "grid_t grid_h grid_w temporal_offset "
            "reset_spatial_indices fps base_fps temporal_compression_factor",
            f"{COSMOS3_PIPELINE}:Cosmos3OmniPipeline.tokenize_prompt": "prompt negative_prompt num_frames height width "
            "fps",
        },
        parts=(
            *("embed_tokens", "rotary_emb", "proj_in", "proj_out", "norm_moe_gen", "time_proj", "time_embedder"),
            *(f"layers.0.{part}" for part in ("mlp", "input_layernorm", "post_attention_layernorm")),
            *(f"layers.0.{part}_moe_gen" for part in ("mlp", "input_layernorm", "post_attention_layernorm")),
            *(f"layers.0.self_attn.to_{part}" for part in ("q", "k", "v", "out", "add_out")),
            *(f"layers.0.self_attn.add_{part}_proj" for part in "qkv"),
            *(f"layers.0.self_attn.norm_{part}" for part in ("q", "k", "added_q", "added_k")),
            *(f"layers.0.self_attn.{part}" for part in ("k_norm_und_for_gen", "head_dim")),
            *(f"layers.0.self_attn.num_{part}_heads" for part in ("attention", "key_value")),
            *(f"config.{part}" for part in ("timestep_scale", "enable_fps_modulation", "base_fps")),
            "config.unified_3d_mrope_temporal_modality_margin",
            "config.unified_3d_mrope_reset_spatial_ids",
        ),
    ),
}
"""What a pipeline class needs beside EVERY."""


def missing(pipeline: str, transformer: Any) -> list[str]:
    """Every name that is not there; the transformer needs no weights."""
    wanted = (EVERY, BY_PIPELINE[pipeline])
    return [name for seams in wanted for name in (*_missing_calls(seams), *_missing_parts(seams, transformer))]


def _missing_calls(seams: Seams) -> Iterator[str]:
    for name, parameters in seams.calls.items():
        module, _, path = name.partition(":")
        try:
            found = found_in(import_module(module), path)
        except (ImportError, AttributeError):
            yield f"{module}.{path}"
            continue
        taken = inspect.signature(found).parameters
        yield from (f"parameter {p} of {module}.{path}" for p in parameters.split() if p not in taken)


def _missing_parts(seams: Seams, transformer: Any) -> Iterator[str]:
    for path in seams.parts:
        try:
            found_in(transformer, path)
        except (AttributeError, LookupError):
            yield f"{type(transformer).__name__}.{path}"


def found_in(owner: Any, path: str) -> Any:
    for name in path.split("."):
        owner = owner[int(name)] if name.isdigit() else getattr(owner, name)
    return owner
