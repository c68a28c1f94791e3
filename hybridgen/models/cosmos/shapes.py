"""The tensors of a CosmosTransformer3DModel without the parts that Predict does not have. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from hybridgen.models.shapes import Tensors


def shapes(config: Mapping[str, Any]) -> Tensors:
    """All tensors."""
    found, d = Tensors(), config["num_attention_heads"] * config["attention_head_dim"]
    cells, adaln = math.prod(config["patch_size"]), config["adaln_lora_dim"]
    linear = partial(found.linear, bias=False)
    linear("patch_embed.proj", d, (config["in_channels"] + config["concat_padding_mask"]) * cells)
    linear("time_embed.t_embedder.linear_1", d, d)
    linear("time_embed.t_embedder.linear_2", 3 * d, d)
    found.norm("time_embed.norm", d)
    linear("norm_out.linear_1", adaln, d)
    linear("norm_out.linear_2", 2 * d, adaln)
    linear("proj_out", config["out_channels"] * cells, d)
    if config["use_crossattn_projection"]:
        text = config["crossattn_proj_in_channels"]
        found.linear("crossattn_proj.0", config["encoder_hidden_states_channels"], text)
    for layer in range(config["num_layers"]):
        _block(found, f"transformer_blocks.{layer}", config, d)
    return found


def _block(found: Tensors, block: str, config: Mapping[str, Any], d: int) -> None:
    linear, ff = partial(found.linear, bias=False), int(d * config["mlp_ratio"])
    for attention, text in (("attn1", d), ("attn2", config["text_embed_dim"])):
        for name, into in (("to_q", d), ("to_k", text), ("to_v", text), ("to_out.0", d)):
            linear(f"{block}.{attention}.{name}", d, into)
        for name in ("norm_q", "norm_k"):
            found.norm(f"{block}.{attention}.{name}", config["attention_head_dim"])
    linear(f"{block}.ff.net.0.proj", ff, d)
    linear(f"{block}.ff.net.2", d, ff)
    for norm in ("norm1", "norm2", "norm3"):
        linear(f"{block}.{norm}.linear_1", config["adaln_lora_dim"], d)
        linear(f"{block}.{norm}.linear_2", 3 * d, config["adaln_lora_dim"])
