"""Cosmos 3. No torch until a class is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridgen.models.cosmos.guardrail import CosmosGuardrail
from hybridgen.models.cosmos3 import facts, tiny
from hybridgen.models.cosmos3.known import MODELS
from hybridgen.models.family import Family
from hybridgen.models.wan import vae_facts
from hybridgen.models.wan.family import autoencoder
from hybridgen.plan.facts import ModelFacts

if TYPE_CHECKING:
    from hybridgen.models.denoiser import Denoiser


def denoiser(facts: ModelFacts) -> type[Denoiser]:
    from hybridgen.models.cosmos3.denoiser import Cosmos3

    return Cosmos3


FAMILY = Family(
    pipelines=("Cosmos3OmniPipeline",),
    transformer=facts.transformer,
    vae=vae_facts.read,
    model=facts.model,
    denoiser=denoiser,
    autoencoder=autoencoder,
    components={
        "transformer": (facts.TRANSFORMER,),
        "text_tokenizer": (facts.TOKENIZER,),
        "vae": (vae_facts.PART,),
    },
    switches=facts.INDEX_KEYS,
    guardrail=CosmosGuardrail,
    known=MODELS,
    tiny=tiny.KINDS,
)
