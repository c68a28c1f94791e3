"""Cosmos Predict 2 and 2.5. No torch until a class is asked for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hybridgen.models import parts, tokenizers
from hybridgen.models.cosmos import facts, tiny
from hybridgen.models.cosmos.guardrail import CosmosGuardrail
from hybridgen.models.cosmos.known import MODELS
from hybridgen.models.family import Family
from hybridgen.models.wan import vae_facts
from hybridgen.models.wan.family import autoencoder
from hybridgen.plan.facts import ModelFacts

if TYPE_CHECKING:
    from hybridgen.models.denoiser import Denoiser


def denoiser(facts: ModelFacts) -> type[Denoiser]:
    from hybridgen.models.cosmos.predict import Predict25, TextToImage, VideoToWorld

    return {
        "Cosmos2TextToImagePipeline": TextToImage,
        "Cosmos2VideoToWorldPipeline": VideoToWorld,
        "Cosmos2_5_PredictBasePipeline": Predict25,
    }[facts.pipeline]


def negative_prompt(facts: ModelFacts) -> str:
    """The negative prompt of diffusers' pipeline. Imports torch and diffusers."""
    import diffusers

    found: str = sys.modules[getattr(diffusers, facts.pipeline).__module__].DEFAULT_NEGATIVE_PROMPT
    return found


FAMILY = Family(
    pipelines=tuple(facts.TRAITS),
    transformer=facts.transformer,
    vae=vae_facts.read,
    model=facts.model,
    denoiser=denoiser,
    autoencoder=autoencoder,
    components={
        "transformer": (facts.TRANSFORMER,),
        "tokenizer": (tokenizers.T5_TOKENIZER,),
        "text_encoder": (parts.T5,),
        "vae": (vae_facts.PART,),
    },
    own={
        "Cosmos2_5_PredictBasePipeline": {
            "tokenizer": (tokenizers.QWEN_TOKENIZER(needs=["pad_token"], content=facts.PROMPT),),
            "text_encoder": (parts.QWEN,),
        }
    },
    not_run=facts.NOT_RUN,
    negative_prompt=negative_prompt,
    guardrail=CosmosGuardrail,
    known=MODELS,
    tiny=tiny.KINDS,
)
