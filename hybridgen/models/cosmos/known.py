"""The Cosmos Predict models known by name. No torch.

Shapes that were read stand beside shapes that were inferred; `origin` says which is which. Tests count the parameters
of every one on diffusers' own classes.
"""

from __future__ import annotations

from dataclasses import replace

from hybridgen.models.cosmos.facts import TRAITS, CosmosTransformer
from hybridgen.models.wan.vae_facts import VAE_21
from hybridgen.plan.facts import ModelFacts

PREDICT2_2B = CosmosTransformer(
    layers=28,
    heads=16,
    head_dim=128,
    ffn=8192,
    text_dim=1024,
    text_width=1024,
    in_channels=17,
    biases=False,
    adaln=256,
    max_positions=128,
    head_norm=True,
)
"""Cosmos Predict2 2B, which reads 16 channels of latents and the padding mask."""
PREDICT2_14B = replace(PREDICT2_2B, layers=36, heads=40, ffn=20480)
PREDICT2_ORIGIN = (
    "heads and layers: diffusers' conversion script for these checkpoints; clip: defaults of its pipeline; text "
    "encoder: T5-11B's, counted"
)
PREDICT2_5_ORIGIN = (
    "heads and layers: diffusers' conversion script for these checkpoints; clip and the hub's branch: its pipeline's "
    "defaults and example; text encoder: Qwen2.5-VL-7B, counted"
)
NVIDIA_LICENCE = "LicenseRef-NVIDIA-Open-Model-License"
"""Licence as named by the pipelines' guardrail; the hub's pages were not read."""


def predict2(name: str, transformer: CosmosTransformer) -> tuple[ModelFacts, ModelFacts]:
    """Cosmos Predict2 in one size: (video to world, text to image)."""
    image = ModelFacts(
        name=f"cosmos-predict2-{name}-text2image",
        pipeline="Cosmos2TextToImagePipeline",
        source=f"nvidia/Cosmos-Predict2-{name.upper()}-Text2Image",
        transformer=transformer,
        vae=VAE_21,
        text_params=4_864_791_552,
        licence=NVIDIA_LICENCE,
        origin=PREDICT2_ORIGIN,
        **TRAITS["Cosmos2TextToImagePipeline"],
    )
    video = replace(
        image,
        name=f"cosmos-predict2-{name}-video2world",
        pipeline="Cosmos2VideoToWorldPipeline",
        source=f"nvidia/Cosmos-Predict2-{name.upper()}-Video2World",
        transformer=replace(transformer, in_channels=18, token_time=True),
        one_frame=False,
        **TRAITS["Cosmos2VideoToWorldPipeline"],
    )
    return video, image


def predict2_5(name: str, transformer: CosmosTransformer, aliases: tuple[str, ...]) -> ModelFacts:
    """Cosmos Predict2.5 in one size. Its text embedding is the output of all encoder layers side by side."""
    return ModelFacts(
        name=f"cosmos-predict2.5-{name}",
        pipeline="Cosmos2_5_PredictBasePipeline",
        source=f"nvidia/Cosmos-Predict2.5-{name.upper()}",
        revision="diffusers/base/post-trained",
        transformer=replace(transformer, in_channels=18, text_dim=100352, token_time=True),
        vae=VAE_21,
        text_params=8_292_166_656,
        aliases=aliases,
        licence=NVIDIA_LICENCE,
        origin=PREDICT2_5_ORIGIN,
        **TRAITS["Cosmos2_5_PredictBasePipeline"],
    )


MODELS = (
    *predict2("2b", PREDICT2_2B),
    *predict2("14b", PREDICT2_14B),
    predict2_5("2b", PREDICT2_2B, ("cosmos2.5", "cosmos-predict2.5", "cosmos2.5-2b")),
    predict2_5("14b", PREDICT2_14B, ("cosmos2.5-14b",)),
)
