"""The components that a checkpoint may have: their classes, configurations and tensors. No torch.

Components of transformers stand here, because families share them; those of diffusers stand with their families.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hybridgen.models.files import Config, Folder
from hybridgen.models.keys import Key, Maybe, Table, absent, barred, listed, number, only, pointed, switch, text, whole
from hybridgen.models.shapes import Tensors


@dataclass(frozen=True)
class Part:
    """A kind of component, as model_index.json names it by package and class."""

    package: str
    classes: tuple[str, ...]
    config: str = "config.json"
    """Its file with a configuration; "" where hybridgen looks at none."""
    keys: Table = field(default_factory=dict)
    """The keys of that file."""
    weighted: bool = True
    """Whether it has weights."""
    files: tuple[tuple[str, ...], ...] = ()
    """Files of which at least one must be there, group by group; or a key of the configuration called like it."""
    shapes: Callable[[Mapping[str, Any]], Tensors] | None = None
    """Every tensor that must be there, from the configuration; None where the class itself must say."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """How the names of tensors begin in some checkpoints, and how in others, which `shapes` has."""
    nested: str = ""
    """The key under which newer configurations have what older ones have beside it."""
    also: tuple[str, ...] = ()
    """How the names of tensors begin that may be there and are not read."""
    look: Callable[[Folder, str, Config, str], None] | None = None
    """A look at further files, with the component's name, its configuration and its class."""


WIDTH = whole(1, 2**17)
LAYERS = whole(1, 512)
HEADS = whole(1, 1024)
VOCABULARY = whole(1, 2**24)
EPSILON = number(0, 1, 1e-6)
NORM_EPSILON = pointed(0, 1, 1e-6)
TOKEN_ID = whole(-(2**31), 2**31, None, null=True)
VISION_ID = whole(0, 2**31, None)
ACTIVATIONS = ("relu", "gelu", "gelu_new", "quick_gelu", "silu", "gelu_pytorch_tanh")

FUNCTIONS = (
    "attribute_map convert_rope_params_to_dict default_config_fields dict_dtype_to_str from_dict from_json_file "
    "from_pretrained get_config_dict get_mtp_config get_text_config is_custom_code is_heterogeneous is_remote_code "
    "nested_rope_parameter_keys per_layer_attributes push_to_hub register_for_auto_class save_pretrained "
    "standardize_rope_params sub_configs to_dict to_diff_dict to_json_file to_json_string update update_from_string "
    "use_return_dict validate validate_architecture validate_layer_type validate_output_attentions validate_rope "
    "validate_token_ids _check_received_keys _decode_special_floats _dict_from_json_file _encode_special_floats "
    "_get_config_dict _get_files_timestamps _get_generation_parameters _getattr_without_heterogeneous_validation "
    "_hasattr_without_heterogeneous_validation _iter_config_keys_with_heterogeneous_adjustment "
    "_remove_keys_not_serialized _update_heterogeneous_to_dict_output _upload_modified_files "
    "_validate_axial_rope_parameters _validate_default_rope_parameters _validate_dynamic_rope_parameters "
    "_validate_linear_rope_parameters _validate_llama3_rope_parameters _validate_longrope_rope_parameters "
    "_validate_proportional_rope_parameters _validate_yarn_rope_parameters"
).split()
"""What configurations of transformers do themselves, which a key of the same name would replace."""
PLANS = tuple(f"base_model_{kind}_plan" for kind in ("tp", "ep", "pp", "fsdp"))
OWN: Table = {**dict.fromkeys(FUNCTIONS, barred()), **dict.fromkeys((*PLANS, "per_layer_config"), absent())}
"""Keys that no configuration of transformers may have, nor one that is held by another."""

DTYPE = only("float32", "float16", "bfloat16", "float64", default=None, null=True)
COMMON: Table = {
    "dtype": DTYPE,
    "torch_dtype": DTYPE,
    "return_dict": only(True, default=True),
    "output_hidden_states": switch(False, null=True),
    "output_attentions": switch(False, null=True),
    "chunk_size_feed_forward": whole(0, 2**31, 0),
    "is_encoder_decoder": switch(False),
    "is_decoder": switch(False),
    "attn_implementation": only("eager", "sdpa", default=None, null=True),
    "_attn_implementation": only("eager", "sdpa", default=None, null=True),
    "architectures": listed(Key(str), 0, 100, None, null=True),
    "transformers_version": text(),
    "num_labels": whole(0, 2**20, 2),
    "id2label": Key(str, default=None, may_be_null=True, named=True, length=(0, 2**20)),
    "label2id": Key(int, default=None, may_be_null=True, named=True, length=(0, 2**20)),
    **OWN,
    **dict.fromkeys(("problem_type", "experts_implementation", "_experts_implementation"), absent()),
    **dict.fromkeys(("layer_types", "rope_parameters", "rope_scaling"), absent()),
    "attention_dropout": number(0, 1, 0.0, null=True),
    "use_cache": switch(True),
    "initializer_range": pointed(0, 1e6, 0.02),
    "initializer_factor": pointed(0, 1e6, 1.0),
}
"""Keys of every configuration of transformers."""

T5_KEYS: Table = {
    **COMMON,
    "d_model": WIDTH,
    "d_kv": WIDTH,
    "d_ff": WIDTH,
    "num_layers": LAYERS,
    "num_heads": HEADS,
    "vocab_size": VOCABULARY,
    "relative_attention_num_buckets": whole(1, 2**16, 32),
    "relative_attention_max_distance": whole(1, 2**20, 128),
    "layer_norm_epsilon": NORM_EPSILON,
    "dropout_rate": number(0, 1, 0.1),
    "feed_forward_proj": only("relu", "gated-gelu", "gated-relu", "gated-silu", "gelu", default="relu"),
    "num_decoder_layers": whole(0, 512, None, null=True),
    "classifier_dropout": number(0, 1, 0.0),
    "tie_word_embeddings": switch(True),
    "dense_act_fn": only(*ACTIVATIONS, default=None),
    "is_gated_act": switch(None),
    **dict.fromkeys(("hidden_size", "head_dim", "num_attention_heads", "num_hidden_layers"), absent()),
    **dict.fromkeys(("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"), TOKEN_ID),
}


def t5_shapes(config: Mapping[str, Any]) -> Tensors:
    """Tensors of a T5 or UMT5 encoder. T5 has positions in its first layer, UMT5 in every one."""
    found, linear = Tensors(), partial(Tensors.linear, bias=False)
    d, inner, ff = config["d_model"], config["num_heads"] * config["d_kv"], config["d_ff"]
    gated = config["feed_forward_proj"].startswith("gated")
    if config["is_gated_act"] is not None:
        gated = config["is_gated_act"]
    found["shared.weight"] = (config["vocab_size"], d)
    found.norm("encoder.final_layer_norm", d)
    for layer in range(config["num_layers"]):
        attention, dense = (f"encoder.block.{layer}.layer.{part}" for part in (0, 1))
        for x in "qkv":
            linear(found, f"{attention}.SelfAttention.{x}", inner, d)
        linear(found, f"{attention}.SelfAttention.o", d, inner)
        if config["model_type"] == "umt5" or layer == 0:
            buckets = config["relative_attention_num_buckets"], config["num_heads"]
            linear(found, f"{attention}.SelfAttention.relative_attention_bias", *buckets)
        for x in ("wi_0", "wi_1") if gated else ("wi",):
            linear(found, f"{dense}.DenseReluDense.{x}", ff, d)
        linear(found, f"{dense}.DenseReluDense.wo", d, ff)
        found.norm(f"{attention}.layer_norm", d)
        found.norm(f"{dense}.layer_norm", d)
    return found


def t5(name: str) -> Part:
    """The encoder of T5, or of UMT5."""
    kind = "umt5" if name.startswith("U") else "t5"
    keys = {**T5_KEYS, "model_type": only(kind, default=kind)}
    renamed = {"encoder.embed_tokens.": "shared."}
    return Part("transformers", (name,), keys=keys, shapes=t5_shapes, renamed=renamed, also=("decoder.", "lm_head."))


UMT5 = t5("UMT5EncoderModel")
T5 = t5("T5EncoderModel")


def rope(*kinds: str) -> Maybe:
    """How rotary positions are made; what classes make of these kinds is the same."""
    kind = only(*kinds, default=None, null=True)
    sections = listed(whole(0, 4096), 3, 3, None, null=True)
    return Maybe(rope_type=kind, type=kind, rope_theta=number(1, 1e12, None, null=True), mrope_section=sections)


QWEN_TEXT: Table = {
    **OWN,
    "model_type": text(),
    "initializer_range": pointed(0, 1e6, 0.02),
    "attention_dropout": number(0, 1, 0.0, null=True),
    "use_cache": switch(True),
    "max_window_layers": whole(0, 2**24, None, null=True),
    "layer_types": listed(only("full_attention"), 1, 512, None, null=True),
    "rope_parameters": rope("default", "mrope"),
    "rope_scaling": rope("default", "mrope"),
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": whole(1, 2**24, 32768),
    "rms_norm_eps": NORM_EPSILON,
    "hidden_act": only("silu", default="silu"),
    "use_sliding_window": switch(False),
    "sliding_window": whole(1, 2**24, None, null=True),
    **dict.fromkeys(("pad_token_id", "eos_token_id", "bos_token_id"), TOKEN_ID),
}
QWEN_VISION: Table = {
    **OWN,
    "model_type": text(),
    "initializer_range": pointed(0, 1e6, 0.02),
    "tokens_per_second": whole(1, 2**16, 4),
    "rope_parameters": rope("default", "axial"),
    "depth": whole(1, 512, 32),
    "hidden_size": whole(1, 2**17, 3584),
    "intermediate_size": whole(1, 2**17, 3420),
    "num_heads": whole(1, 1024, 16),
    "out_hidden_size": whole(1, 2**17, 3584),
    "patch_size": whole(1, 256, 14),
    "in_channels": whole(1, 64, 3),
    "spatial_merge_size": whole(1, 64, 2),
    "temporal_patch_size": whole(1, 64, 2),
    "window_size": whole(1, 2**16, 112),
    "fullatt_block_indexes": listed(whole(0, 512), 0, 512, [7, 15, 23, 31]),
    "hidden_act": only("silu", default="silu"),
}


def qwen_shapes(config: Mapping[str, Any]) -> Tensors:
    """Tensors of Qwen2.5-VL, its vision tower included."""
    found, text = Tensors(), config["text_config"]
    d = text["hidden_size"]
    for name in ("model.embed_tokens", "lm_head"):
        found.linear(name, text["vocab_size"], d, bias=False)
    if config.get("tie_word_embeddings"):
        del found["lm_head.weight"]
    found.norm("model.norm", d)
    keys = d // text["num_attention_heads"] * text["num_key_value_heads"]
    for layer in range(text["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        for name, width in (("q_proj", d), ("k_proj", keys), ("v_proj", keys)):
            found.linear(f"{block}.self_attn.{name}", width, d)
        found.linear(f"{block}.self_attn.o_proj", d, d, bias=False)
        _gated(found, f"{block}.mlp", d, text["intermediate_size"], bias=False)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found.norm(f"{block}.{norm}", d)
    _vision(found, config["vision_config"])
    return found


def _vision(found: Tensors, config: Mapping[str, Any]) -> None:
    d, merged = config["hidden_size"], config["hidden_size"] * config["spatial_merge_size"] ** 2
    kernel = config["temporal_patch_size"], config["patch_size"], config["patch_size"]
    found.linear("visual.patch_embed.proj", d, config["in_channels"], *kernel, bias=False)
    for layer in range(config["depth"]):
        block = f"visual.blocks.{layer}"
        found.linear(f"{block}.attn.qkv", 3 * d, d)
        found.linear(f"{block}.attn.proj", d, d)
        _gated(found, f"{block}.mlp", d, config["intermediate_size"], bias=True)
        for norm in ("norm1", "norm2"):
            found.norm(f"{block}.{norm}", d)
    found.norm("visual.merger.ln_q", d)
    found.linear("visual.merger.mlp.0", merged, merged)
    found.linear("visual.merger.mlp.2", config["out_hidden_size"], merged)


def _gated(found: Tensors, name: str, d: int, ff: int, bias: bool) -> None:
    for side in ("gate_proj", "up_proj"):
        found.linear(f"{name}.{side}", ff, d, bias=bias)
    found.linear(f"{name}.down_proj", d, ff, bias=bias)


QWEN = Part(
    "transformers",
    ("Qwen2_5_VLForConditionalGeneration",),
    keys={
        **COMMON,
        "model_type": only("qwen2_5_vl", default="qwen2_5_vl"),
        "tie_word_embeddings": switch(False),
        **dict.fromkeys((f"{name}_token_id" for name in ("image", "video", "vision_start", "vision_end")), VISION_ID),
        "rope_parameters": rope("default", "mrope"),
        "rope_scaling": rope("default", "mrope"),
        "text_config": QWEN_TEXT,
        "vision_config": QWEN_VISION,
    },
    shapes=qwen_shapes,
    renamed={"model.language_model.": "model.", "model.visual.": "visual."},
    nested="text_config",
)
