"""A Wan transformer with random weights, for code that needs its shapes and speed and not its output."""

from __future__ import annotations

from typing import Any

import torch

from hybridgen.plan.facts import TransformerFacts


def transformer(facts: TransformerFacts, dtype: torch.dtype = torch.float32) -> Any:
    """A transformer of diffusers with these facts and randomly drawn weights."""
    from diffusers import WanTransformer3DModel

    model = WanTransformer3DModel(
        patch_size=facts.patch,
        num_attention_heads=facts.heads,
        attention_head_dim=facts.head_dim,
        in_channels=facts.in_channels,
        out_channels=facts.out_channels,
        text_dim=facts.text_dim,
        freq_dim=facts.freq_dim,
        ffn_dim=facts.ffn,
        num_layers=facts.layers,
        rope_max_seq_len=facts.max_positions,
    )
    return cast(model.eval(), dtype)


def cast(model: Any, dtype: torch.dtype) -> Any:
    """The model in another dtype, except for the modules that from_pretrained keeps in fp32."""
    for name, parameter in model.named_parameters():
        if not any(part in name.split(".") for part in model._keep_in_fp32_modules):
            parameter.data = parameter.data.to(dtype)
    return model
