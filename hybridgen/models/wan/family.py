"""Wan 2.1 and 2.2, from text, from images, or both. No torch until a class is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridgen.models import parts, pictures, tokenizers
from hybridgen.models.family import Family
from hybridgen.models.wan import facts, tiny, vae_facts
from hybridgen.models.wan.known import MODELS
from hybridgen.plan.facts import ModelFacts

if TYPE_CHECKING:
    from hybridgen.models.autoencoder import Autoencoder
    from hybridgen.models.denoiser import Denoiser


def denoiser(facts: ModelFacts) -> type[Denoiser]:
    from hybridgen.models.wan.denoiser import Wan
    from hybridgen.models.wan.image import WanImage, WanTokenTime

    if facts.transformer.token_time:
        return WanTokenTime
    return WanImage if facts.pipeline == "WanImageToVideoPipeline" else Wan


def autoencoder(facts: ModelFacts) -> type[Autoencoder]:
    from hybridgen.models.wan.vae import WanAutoencoder

    return WanAutoencoder


FAMILY = Family(
    pipelines=("WanPipeline", "WanImageToVideoPipeline"),
    transformer=facts.transformer,
    vae=vae_facts.read,
    model=facts.model,
    denoiser=denoiser,
    autoencoder=autoencoder,
    components={
        "transformer": (facts.TRANSFORMER,),
        "transformer_2": (facts.TRANSFORMER,),
        "tokenizer": (tokenizers.T5_TOKENIZER,),
        "text_encoder": (parts.UMT5,),
        "image_encoder": (pictures.CLIP,),
        "image_processor": (pictures.CLIP_PICTURES,),
        "vae": (vae_facts.PART,),
    },
    switches=facts.INDEX_KEYS,
    optional=("transformer_2", "image_encoder", "image_processor"),
    known=MODELS,
    tiny=tiny.KINDS,
)
