"""The components that a checkpoint may have: their classes, configurations and tensors. No torch.

Components of transformers stand here, because families share them; those of diffusers stand with their families.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hybridgen.models.keys import Key, Table, listed, number, only, switch, whole

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of tensors, by their names."""


@dataclass(frozen=True)
class Part:
    """A kind of component, as model_index.json names it by library and class."""

    library: str
    classes: tuple[str, ...]
    config: str = "config.json"
    """Its file with a configuration; "" where hybridgen looks at none."""
    keys: Table = field(default_factory=dict)
    """The keys of that file."""
    weighted: bool = True
    """Whether it has weights."""
    stacks: Mapping[str, str] = field(default_factory=dict)
    """Stacks of equal layers: how their tensors' names begin, and the key that counts them ("text_config.x" in x)."""
    shapes: Callable[[Mapping[str, Any]], Shapes] | None = None
    """Every tensor that must be there, from the configuration; None where the class itself must say."""
    also: tuple[str, ...] = ()
    """How the names of tensors begin that may be there and are not read."""


WIDTH = whole(1, 2**17)
LAYERS = whole(1, 512)
HEADS = whole(1, 1024)
VOCABULARY = whole(1, 2**24)
EPSILON = number(0, 1, 1e-6)

T5_KEYS: Table = {
    "d_model": WIDTH,
    "d_kv": WIDTH,
    "d_ff": WIDTH,
    "num_layers": LAYERS,
    "num_heads": HEADS,
    "vocab_size": VOCABULARY,
    "relative_attention_num_buckets": whole(1, 2**16, 32),
    "relative_attention_max_distance": whole(1, 2**20, 128),
    "layer_norm_epsilon": EPSILON,
    "dropout_rate": number(0, 1, 0.1),
    "feed_forward_proj": only("relu", "gated-gelu", "gated-relu", "gated-silu", "gelu", default="relu"),
    "initializer_factor": number(0, 1e6, 1.0),
}


def t5_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensors of a T5 or UMT5 encoder. T5 has positions in its first layer, UMT5 in every one."""
    d, inner, ff = config["d_model"], config["num_heads"] * config["d_kv"], config["d_ff"]
    gated = config["feed_forward_proj"].startswith("gated")
    found: dict[str, tuple[int, ...]] = {"shared.weight": (config["vocab_size"], d)}
    found["encoder.final_layer_norm.weight"] = (d,)
    for layer in range(config["num_layers"]):
        attention, dense = (f"encoder.block.{layer}.layer.{part}" for part in (0, 1))
        found |= {f"{attention}.SelfAttention.{x}.weight": (inner, d) for x in "qkv"}
        found[f"{attention}.SelfAttention.o.weight"] = (d, inner)
        if config.get("model_type") == "umt5" or layer == 0:
            buckets = config["relative_attention_num_buckets"], config["num_heads"]
            found[f"{attention}.SelfAttention.relative_attention_bias.weight"] = buckets
        found |= {f"{dense}.DenseReluDense.{x}.weight": (ff, d) for x in (("wi_0", "wi_1") if gated else ("wi",))}
        found[f"{dense}.DenseReluDense.wo.weight"] = (d, ff)
        found |= {f"{part}.layer_norm.weight": (d,) for part in (attention, dense)}
    return found


def t5(name: str) -> Part:
    """The encoder of T5, or of UMT5."""
    kind = "umt5" if name.startswith("U") else "t5"
    keys = {**T5_KEYS, "model_type": only(kind, default=kind)}
    also = ("encoder.embed_tokens.", "decoder.", "lm_head.")
    return Part("transformers", (name,), keys=keys, shapes=t5_shapes, also=also)


UMT5 = t5("UMT5EncoderModel")
T5 = t5("T5EncoderModel")

QWEN_TEXT: Mapping[str, Key] = {
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": whole(1, 2**24, 32768),
    "rms_norm_eps": EPSILON,
}
QWEN_VISION: Mapping[str, Key] = {
    "depth": LAYERS,
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_heads": HEADS,
    "out_hidden_size": WIDTH,
    "patch_size": whole(1, 256, 14),
    "in_channels": whole(1, 64, 3),
    "spatial_merge_size": whole(1, 64, 2),
    "temporal_patch_size": whole(1, 64, 2),
    "window_size": whole(1, 2**16, 112),
}
QWEN = Part(
    "transformers",
    ("Qwen2_5_VLForConditionalGeneration",),
    keys={
        "model_type": only("qwen2_5_vl", default="qwen2_5_vl"),
        "text_config": QWEN_TEXT,
        "vision_config": QWEN_VISION,
    },
)
CLIP = Part(
    "transformers",
    ("CLIPVisionModel", "CLIPVisionModelWithProjection"),
    keys={
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "image_size": whole(1, 4096),
        "patch_size": whole(1, 1024),
        "num_channels": whole(1, 64, 3),
        "projection_dim": whole(1, 2**17, 512),
        "layer_norm_eps": number(0, 1, 1e-5),
        "model_type": only("clip_vision_model", "clip", default="clip_vision_model"),
    },
)
CLIP_PICTURES = Part(
    "transformers",
    ("CLIPImageProcessor", "CLIPImageProcessorFast", "CLIPImageProcessorPil"),
    config="preprocessor_config.json",
    keys={
        "do_resize": switch(True, null=True),
        "do_rescale": switch(True, null=True),
        "do_normalize": switch(True, null=True),
        "do_center_crop": switch(True, null=True),
        "rescale_factor": number(0, 1e6, 1 / 255, null=True),
        "image_mean": listed(number(-1e6, 1e6), 3, 3, None, null=True),
        "image_std": listed(number(1e-6, 1e6), 3, 3, None, null=True),
    },
    weighted=False,
)


def tokenizer(*classes: str) -> Part:
    """A tokenizer; its files are looked at by transformers alone."""
    shared = ("TokenizersBackend", "PreTrainedTokenizerFast", "AutoTokenizer")
    return Part("transformers", (*classes, *shared), config="tokenizer_config.json", weighted=False)


T5_TOKENIZER = tokenizer("T5Tokenizer", "T5TokenizerFast")
QWEN_TOKENIZER = tokenizer("Qwen2Tokenizer", "Qwen2TokenizerFast")
