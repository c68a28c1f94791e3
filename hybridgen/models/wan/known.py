"""The Wan models known by name. No torch.

Shapes that were read stand beside shapes that were inferred; `origin` says which is which. Tests count the parameters
of every one on diffusers' own classes.
"""

from __future__ import annotations

from dataclasses import replace

from hybridgen.models.wan.facts import WanTransformer
from hybridgen.models.wan.vae_facts import VAE_21, VAE_22
from hybridgen.plan.facts import ModelFacts, RequestDefaults

WAN_14B = WanTransformer(layers=40, heads=40, head_dim=128, ffn=13824, text_dim=4096)
WAN_14B_IMAGE = replace(WAN_14B, in_channels=36)
"""Wan 14B that reads the noise, the latents of the given frames, and a mask of four channels for these."""
WAN_1_3B = WanTransformer(layers=30, heads=12, head_dim=128, ffn=8960, text_dim=4096)
WAN_5B = WanTransformer(
    layers=30, heads=24, head_dim=128, ffn=14336, text_dim=4096, in_channels=48, out_channels=48, token_time=True
)
WAN_ORIGIN = "configuration files of the checkpoint on the model hub"

# The Wan authors' recommended negative prompt is long and in Chinese; like diffusers, none is assumed.
WAN_TEXT = ModelFacts(
    name="wan2.1-t2v-14b",
    pipeline="WanPipeline",
    source="Wan-AI/Wan2.1-T2V-14B-Diffusers",
    transformer=WAN_14B,
    vae=VAE_21,
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
    flow_shift=5.0,
    defaults=RequestDefaults(),
    aliases=("wan2.1-i2v-14b", "wan2.1-i2v"),
)
MODELS = (
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
        flow_shift=3.0,
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
