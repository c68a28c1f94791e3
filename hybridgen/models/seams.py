"""The names of diffusers that hybridgen builds on, looked up when a rank loads: most are private, and may change."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from hybridgen.errors import RequestError

TESTED = "0.42.1"
"""The version of diffusers that the tests ran with."""


@dataclass(frozen=True)
class Seams:
    """What must be there."""

    calls: Mapping[str, str] = field(default_factory=dict)
    """Functions and methods, as "module:name" or "module:Class.name", and the parameters that they must take."""
    parts: tuple[str, ...] = ()
    """Attributes of a transformer, dotted; numbers count blocks."""


WAN_VAE = "diffusers.models.autoencoders.autoencoder_kl_wan"
COSMOS3 = "diffusers.models.transformers.transformer_cosmos3"
COSMOS3_PIPELINE = "diffusers.pipelines.cosmos.pipeline_cosmos3_omni"
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
BY_PIPELINE = {
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


def check(pipeline: str, transformer: Any) -> None:
    """Raise RequestError (diffusers-changed) for the first name that is missing; the transformer needs no weights."""
    import diffusers

    for seams in (EVERY, BY_PIPELINE.get(pipeline, Seams())):
        for missing in [*_missing_calls(seams), *_missing_parts(seams, transformer)]:
            raise RequestError(
                "diffusers-changed",
                f"diffusers {diffusers.__version__} has no {missing}, which hybridgen builds on; nearest: {TESTED}",
                tries=(f"pip install diffusers=={TESTED}",),
            )


def _missing_calls(seams: Seams) -> Iterator[str]:
    for name, parameters in seams.calls.items():
        module, _, path = name.partition(":")
        try:
            found = _found(import_module(module), path)
        except (ImportError, AttributeError):
            yield f"{module}.{path}"
            continue
        taken = inspect.signature(found).parameters
        yield from (f"parameter {p} of {module}.{path}" for p in parameters.split() if p not in taken)


def _missing_parts(seams: Seams, transformer: Any) -> Iterator[str]:
    for path in seams.parts:
        try:
            _found(transformer, path)
        except (AttributeError, IndexError):
            yield f"{type(transformer).__name__}.{path}"


def _found(owner: Any, path: str) -> Any:
    for name in path.split("."):
        owner = owner[int(name)] if name.isdigit() else getattr(owner, name)
    return owner
