"""The models known by name. No torch.

Shapes that were read stand beside shapes that were inferred; `origin` says which is which. Tests count the parameters
of every one on diffusers' own classes.
"""

from __future__ import annotations

from dataclasses import replace

from hybridgen.models.cosmos import facts as cosmos_facts
from hybridgen.models.cosmos3 import facts as cosmos3_facts
from hybridgen.plan.facts import ModelFacts, RequestDefaults, TransformerFacts, VaeFacts

WAN_14B = TransformerFacts(layers=40, heads=40, head_dim=128, ffn=13824, text_dim=4096)
WAN_14B_IMAGE = replace(WAN_14B, in_channels=36)
"""Beside the noise it reads the latents of the given frames, and a mask of four channels that says which they are."""
WAN_1_3B = TransformerFacts(layers=30, heads=12, head_dim=128, ffn=8960, text_dim=4096)
WAN_5B = TransformerFacts(
    layers=30, heads=24, head_dim=128, ffn=14336, text_dim=4096, in_channels=48, out_channels=48, token_time=True
)
VAE_22 = VaeFacts(
    base_dim=256,
    encoder_base_dim=160,
    latent_channels=48,
    stride_space=16,
    residual=True,
    patch=2,
    params=704_688_668,
)
"""Wan 2.2's own; its A14B models have Wan 2.1's."""
WAN_ORIGIN = "configuration files of the checkpoint on the model hub"

# The Wan authors' recommended negative prompt is long and in Chinese; like diffusers, none is assumed.
WAN_TEXT = ModelFacts(
    name="wan2.1-t2v-14b",
    pipeline="WanPipeline",
    source="Wan-AI/Wan2.1-T2V-14B-Diffusers",
    transformer=WAN_14B,
    defaults=RequestDefaults(steps=50),
    aliases=("wan2.1", "wan2.1-14b"),
    licence="Apache-2.0",
    origin=WAN_ORIGIN,
)
WAN_IMAGE = replace(
    WAN_TEXT,
    name="wan2.1-i2v-14b-720p",
    pipeline="WanImageToVideoPipeline",
    source="Wan-AI/Wan2.1-I2V-14B-720P-Diffusers",
    transformer=replace(WAN_14B_IMAGE, image_dim=1280),
    image="must",
    encodes="all",
    image_tokens=257,
    image_params=630_766_080,
    defaults=RequestDefaults(),
    aliases=("wan2.1-i2v-14b", "wan2.1-i2v"),
)
WAN = (
    replace(
        WAN_TEXT,
        name="wan2.1-t2v-1.3b",
        source="Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
        transformer=WAN_1_3B,
        defaults=RequestDefaults(width=832, height=480, steps=50),
        aliases=("wan2.1-1.3b",),
    ),
    WAN_TEXT,
    replace(
        WAN_TEXT,
        name="wan2.2-t2v-a14b",
        source="Wan-AI/Wan2.2-T2V-A14B-Diffusers",
        experts=2,
        boundary=0.875,
        defaults=RequestDefaults(guidance=4.0, guidance_2=3.0),
        aliases=("wan2.2", "wan2.2-a14b", "wan2.2-14b"),
    ),
    replace(
        WAN_IMAGE,
        name="wan2.1-i2v-14b-480p",
        source="Wan-AI/Wan2.1-I2V-14B-480P-Diffusers",
        defaults=RequestDefaults(width=832, height=480),
        aliases=(),
    ),
    WAN_IMAGE,
    replace(
        WAN_IMAGE,
        name="wan2.1-flf2v-14b-720p",
        source="Wan-AI/Wan2.1-FLF2V-14B-720P-diffusers",
        transformer=replace(WAN_14B_IMAGE, image_dim=1280, image_positions=514),
        last_image="must",
        defaults=RequestDefaults(steps=50),
        aliases=("wan2.1-flf2v-14b", "wan2.1-flf2v"),
    ),
    replace(
        WAN_IMAGE,
        name="wan2.2-i2v-a14b",
        source="Wan-AI/Wan2.2-I2V-A14B-Diffusers",
        transformer=WAN_14B_IMAGE,
        last_image="may",
        experts=2,
        boundary=0.9,
        image_tokens=0,
        image_params=0,
        defaults=RequestDefaults(guidance=3.5, guidance_2=3.5),
        aliases=("wan2.2-i2v", "wan2.2-i2v-14b"),
    ),
    replace(
        WAN_TEXT,
        name="wan2.2-ti2v-5b",
        source="Wan-AI/Wan2.2-TI2V-5B-Diffusers",
        transformer=WAN_5B,
        vae=VAE_22,
        image="may",
        encodes="first",
        defaults=RequestDefaults(height=704, frames=121, steps=50, fps=24),
        aliases=("wan2.2-5b", "wan2.2-ti2v"),
    ),
)

PREDICT2_2B = TransformerFacts(
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
"""It reads 16 channels of latents and the padding mask; with given frames also the mask that says which they are."""
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
"""As the pipelines' guardrail names it; the hub's pages were not read."""


def predict2(name: str, transformer: TransformerFacts) -> tuple[ModelFacts, ModelFacts]:
    """Cosmos Predict2 in one size: (from a picture, an image from text)."""
    image = ModelFacts(
        name=f"cosmos-predict2-{name}-text2image",
        pipeline="Cosmos2TextToImagePipeline",
        source=f"nvidia/Cosmos-Predict2-{name.upper()}-Text2Image",
        transformer=transformer,
        text_params=4_864_791_552,
        licence=NVIDIA_LICENCE,
        origin=PREDICT2_ORIGIN,
        **cosmos_facts.TRAITS["Cosmos2TextToImagePipeline"],
    )
    video = replace(
        image,
        name=f"cosmos-predict2-{name}-video2world",
        pipeline="Cosmos2VideoToWorldPipeline",
        source=f"nvidia/Cosmos-Predict2-{name.upper()}-Video2World",
        transformer=replace(transformer, in_channels=18, token_time=True),
        one_frame=False,
        **cosmos_facts.TRAITS["Cosmos2VideoToWorldPipeline"],
    )
    return video, image


def predict2_5(name: str, transformer: TransformerFacts, aliases: tuple[str, ...]) -> ModelFacts:
    """Cosmos Predict2.5 in one size. Its text is what all layers of the encoder say, side by side."""
    return ModelFacts(
        name=f"cosmos-predict2.5-{name}",
        pipeline="Cosmos2_5_PredictBasePipeline",
        source=f"nvidia/Cosmos-Predict2.5-{name.upper()}",
        revision="diffusers/base/post-trained",
        transformer=replace(transformer, in_channels=18, text_dim=100352, token_time=True),
        text_params=8_292_166_656,
        aliases=aliases,
        licence=NVIDIA_LICENCE,
        origin=PREDICT2_5_ORIGIN,
        **cosmos_facts.TRAITS["Cosmos2_5_PredictBasePipeline"],
    )


COSMOS3_NANO = ModelFacts(
    name="cosmos3-nano",
    pipeline="Cosmos3OmniPipeline",
    source="nvidia/Cosmos3-Nano",
    transformer=TransformerFacts(
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
    **cosmos3_facts.TRAITS,
)
COSMOS = (
    *predict2("2b", PREDICT2_2B),
    *predict2("14b", PREDICT2_14B),
    predict2_5("2b", PREDICT2_2B, ("cosmos2.5", "cosmos-predict2.5", "cosmos2.5-2b")),
    predict2_5("14b", PREDICT2_14B, ("cosmos2.5-14b",)),
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
MODELS = (*WAN, *COSMOS)
