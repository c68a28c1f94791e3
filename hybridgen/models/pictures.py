"""The encoder of given images, CLIP's vision tower, and what makes its pictures. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybridgen.models.files import Config, Folder
from hybridgen.models.keys import absent, listed, number, only, pointed, switch, whole
from hybridgen.models.parts import ACTIVATIONS, COMMON, HEADS, LAYERS, WIDTH, Part
from hybridgen.models.shapes import Tensors


def clip_shapes(config: Mapping[str, Any]) -> Tensors:
    """Tensors of a CLIP vision tower."""
    found, d, ff = Tensors(), config["hidden_size"], config["intermediate_size"]
    found["embeddings.class_embedding"] = (d,)
    found.linear("embeddings.patch_embedding", d, config["num_channels"], *2 * [config["patch_size"]], bias=False)
    found["embeddings.position_embedding.weight"] = ((config["image_size"] // config["patch_size"]) ** 2 + 1, d)
    for norm in ("pre_layrnorm", "post_layernorm"):
        found.norm(norm, d, bias=True)
    for layer in range(config["num_hidden_layers"]):
        block = f"encoder.layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            found.linear(f"{block}.self_attn.{name}", d, d)
        found.linear(f"{block}.mlp.fc1", ff, d)
        found.linear(f"{block}.mlp.fc2", d, ff)
        for norm in ("layer_norm1", "layer_norm2"):
            found.norm(f"{block}.{norm}", d, bias=True)
    return found


def check_heads(folder: Folder, component: str, config: Config, _: str) -> None:
    """Raise RequestError (unreadable-model) for heads that do not divide the width."""
    if config["hidden_size"] % config["num_attention_heads"]:
        heads = f"num_attention_heads {config['num_attention_heads']}"
        raise folder.refused(f"{component}: {heads} does not divide hidden_size {config['hidden_size']}")


CLIP = Part(
    "transformers",
    ("CLIPVisionModel", "CLIPVisionModelWithProjection"),
    keys={
        **COMMON,
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "image_size": whole(1, 4096),
        "patch_size": whole(1, 1024),
        "num_channels": whole(1, 64, 3),
        "projection_dim": whole(1, 2**17, 512),
        "layer_norm_eps": pointed(0, 1, 1e-5),
        "hidden_act": only(*ACTIVATIONS, default="quick_gelu"),
        "model_type": only("clip_vision_model", "clip", default="clip_vision_model"),
    },
    shapes=clip_shapes,
    also=("visual_projection.",),
    renamed={"vision_model.": ""},
    look=check_heads,
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
        "rescale_factor": number(1e-9, 1e6, 1 / 255),
        "image_mean": listed(number(-1e6, 1e6), 3, 3, ()),
        "image_std": listed(number(1e-6, 1e6), 3, 3, ()),
        "resample": whole(0, 5, 3),
        "pad_size": absent(),
    },
    weighted=False,
)
SIDE = whole(1, 4096)
"""Pixels of a picture's side."""


def sides_of(config: Mapping[str, Any]) -> tuple[int, int] | str:
    """Height and width of the pictures that a CLIP processor makes, or what is wrong with its configuration."""
    cropped, resized = config["do_center_crop"], config["do_resize"]
    size = _sides(config.get("size", 224), ({"shortest_edge"}, {"height", "width"}))
    crop = _sides(config.get("crop_size", 224), ({"height", "width"},))
    if (resized and not size) or (cropped and not crop):
        return f"none ({'size' if resized and not size else 'crop_size'} names no sides)"
    sides = crop if cropped else size if resized and isinstance(config.get("size"), dict) else ()
    return (sides[0], sides[1]) if len(sides) == 2 else "those of each picture"


def _sides(value: Any, named: tuple[set[str], ...]) -> tuple[int, ...]:
    """The numbers of a size: one for both sides, or one for every name; () where it has others."""
    sides = (value, value) if not isinstance(value, dict) else tuple(value[name] for name in sorted(value))
    right = not isinstance(value, dict) or set(value) in named
    return sides if right and all(SIDE.fits(side) for side in sides) else ()
