"""The tensors of a Cosmos3OmniTransformer, as far as video needs them. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from hybridgen.models.shapes import Tensors

UNREAD = ("lm_head.", "norm.", "audio_", "action_")
"""How the names of tensors begin that write text, sound and actions, and are not read."""
TIME_CHANNELS = 256
"""Channels of the sinusoids that embed the time."""


def shapes(config: Mapping[str, Any]) -> Tensors:
    """All tensors but those that are not read."""
    found, d = Tensors(), config["hidden_size"]
    found["embed_tokens.weight"] = (config["vocab_size"], d)
    found.norm("norm_moe_gen", d)
    found.linear("proj_in", d, config["patch_latent_dim"])
    found.linear("proj_out", config["patch_latent_dim"], d)
    found.linear("time_embedder.linear_1", d, TIME_CHANNELS)
    found.linear("time_embedder.linear_2", d, d)
    for layer in range(config["num_hidden_layers"]):
        for suffix in ("", "_moe_gen"):
            for norm in ("input_layernorm", "post_attention_layernorm"):
                found.norm(f"layers.{layer}.{norm}{suffix}", d)
            _mlp(found, f"layers.{layer}.mlp{suffix}", config)
        _attention(found, f"layers.{layer}.self_attn", config)
    return found


def _mlp(found: Tensors, name: str, config: Mapping[str, Any]) -> None:
    d, ff, linear = config["hidden_size"], config["intermediate_size"], partial(found.linear, bias=False)
    for side in ("gate_proj", "up_proj") if config["hidden_act"] == "silu" else ("up_proj",):
        linear(f"{name}.{side}", ff, d)
    linear(f"{name}.down_proj", d, ff)


def _attention(found: Tensors, name: str, config: Mapping[str, Any]) -> None:
    d, head = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    linear = partial(found.linear, bias=config["attention_bias"])
    for projections in (("to_q", "to_k", "to_v", "to_out"), ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")):
        for projection, width in zip(projections[:3], (queries, keys, keys), strict=True):
            linear(f"{name}.{projection}", width, d)
        linear(f"{name}.{projections[3]}", d, queries)
    norms = ["norm_added_q", "norm_added_k"]
    if config["qk_norm_for_text"]:
        norms += ["norm_q", "norm_k"]
    elif config["use_und_k_norm_for_gen"]:
        norms += ["k_norm_und_for_gen"]
    for norm in norms:
        found.norm(f"{name}.{norm}", head)
