"""The tensors of a WanTransformer3DModel. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hybridgen.models.shapes import Tensors


def shapes(config: Mapping[str, Any]) -> Tensors:
    """All tensors."""
    found, d = Tensors(), config["num_attention_heads"] * config["attention_head_dim"]
    found["scale_shift_table"] = (1, 2, d)
    found.linear("patch_embedding", d, config["in_channels"], *config["patch_size"])
    found.linear("proj_out", config["out_channels"] * math.prod(config["patch_size"]), d)
    for name, into in (("time", config["freq_dim"]), ("text", config["text_dim"])):
        found.linear(f"condition_embedder.{name}_embedder.linear_1", d, into)
        found.linear(f"condition_embedder.{name}_embedder.linear_2", d, d)
    found.linear("condition_embedder.time_proj", 6 * d, d)
    if config["image_dim"]:
        _image_embedder(found, config, d)
    for layer in range(config["num_layers"]):
        _block(found, f"blocks.{layer}", config, d)
    return found


def _image_embedder(found: Tensors, config: Mapping[str, Any], d: int) -> None:
    image, name = config["image_dim"], "condition_embedder.image_embedder"
    found.norm(f"{name}.norm1", image, bias=True)
    found.linear(f"{name}.ff.net.0.proj", image, image)
    found.linear(f"{name}.ff.net.2", d, image)
    found.norm(f"{name}.norm2", d, bias=True)
    if config["pos_embed_seq_len"]:
        found[f"{name}.pos_embed"] = (1, config["pos_embed_seq_len"], image)


def _block(found: Tensors, block: str, config: Mapping[str, Any], d: int) -> None:
    for attention in ("attn1", "attn2"):
        for name in ("to_q", "to_k", "to_v", "to_out.0"):
            found.linear(f"{block}.{attention}.{name}", d, d)
        for name in ("norm_q", "norm_k"):
            found.norm(f"{block}.{attention}.{name}", d)
    if added := config["added_kv_proj_dim"]:
        for name in ("add_k_proj", "add_v_proj"):
            found.linear(f"{block}.attn2.{name}", d, added)
        found.norm(f"{block}.attn2.norm_added_k", d)
    if config["cross_attn_norm"]:
        found.norm(f"{block}.norm2", d, bias=True)
    found.linear(f"{block}.ffn.net.0.proj", config["ffn_dim"], d)
    found.linear(f"{block}.ffn.net.2", d, config["ffn_dim"])
    found[f"{block}.scale_shift_table"] = (1, 6, d)
