"""Facts of Cosmos 3 checkpoints. No torch."""

from __future__ import annotations

from hybridgen.models.files import Config, Folder
from hybridgen.plan.facts import RequestDefaults, TransformerFacts

TRAITS: Config = {
    "image": "may",
    "encodes": "first",
    "pads": True,
    "guided_below_1": True,
    "text_tokens": 300,
    "defaults": RequestDefaults(frames=189, steps=35, guidance=6.0, fps=24),
}
"""What the pipeline can do and its defaults, as fields of ModelFacts.

A video's text is a chat of so many tokens with a short prompt; it differs from prompt to prompt.
"""


def transformer(folder: Folder, index: Config) -> TransformerFacts:
    """Cosmos3OmniTransformer."""
    config = folder.json("transformer/config.json")
    patch, channels = config["latent_patch_size"], config["latent_channel"]
    return TransformerFacts(
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        width=config["hidden_size"],
        ffn=config["intermediate_size"],
        gated=config.get("hidden_act", "silu") == "silu",
        text_dim=config["hidden_size"],
        vocabulary=config["vocab_size"],
        biases=config["attention_bias"],
        in_channels=channels,
        out_channels=channels,
        patch=(1, patch, patch),
        cross_attention=False,
        text_stream="own",
        head_norm=True,
        max_positions=2**20,
    )


def model(folder: Folder, index: Config) -> Config:
    """What model_index.json of Cosmos3OmniPipeline says, and TRAITS."""
    return {
        **TRAITS,
        "native_flow": bool(index.get("use_native_flow_schedule")),
        "guarded": bool(index.get("enable_safety_checker", True)),
    }
