"""The Cosmos 3 models known by name. No torch.

Shapes that were read stand beside shapes that were inferred; `origin` says which is which. Tests count the parameters
of every one on diffusers' own classes.
"""

from __future__ import annotations

from dataclasses import replace

from hybridgen.models.cosmos.known import NVIDIA_LICENCE
from hybridgen.models.cosmos3.facts import TRAITS, Cosmos3Transformer
from hybridgen.models.wan.vae_facts import VAE_22
from hybridgen.plan.facts import ModelFacts

COSMOS3_NANO = ModelFacts(
    name="cosmos3-nano",
    pipeline="Cosmos3OmniPipeline",
    source="nvidia/Cosmos3-Nano",
    transformer=Cosmos3Transformer(
        layers=36,
        heads=32,
        kv_heads=8,
        head_dim=128,
        ffn=12288,
        text_dim=4096,
        in_channels=48,
        out_channels=48,
        gated=True,
        biases=False,
        cross_attention=False,
        text_stream="own",
        vocabulary=151936,
        max_positions=2**20,
        head_norm=True,
    ),
    vae=VAE_22,
    text_params=0,
    guarded=True,
    licence=NVIDIA_LICENCE,
    origin="defaults of diffusers' transformer and pipeline; text: a guess for a prompt with its templates",
    **TRAITS,
)
MODELS = (
    COSMOS3_NANO,
    replace(
        COSMOS3_NANO,
        name="cosmos3-super",
        source="nvidia/Cosmos3-Super",
        transformer=replace(COSMOS3_NANO.transformer, layers=64, heads=64, width=5120, ffn=25600, text_dim=5120),
        aliases=("cosmos3",),
        origin="heads: diffusers' example for it; width, layers and feed-forward: inferred from Qwen3-32B, which its "
        "120 GB imply; the rest as Cosmos3-Nano",
    ),
)
