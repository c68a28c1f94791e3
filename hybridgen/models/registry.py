"""Which class takes a checkpoint's pipeline apart."""

from __future__ import annotations

import sys
from importlib import import_module

from hybridgen.models.denoiser import Denoiser
from hybridgen.plan.facts import ModelFacts

DENOISERS = {
    "WanPipeline": "wan.denoiser:Wan",
    "Cosmos3OmniPipeline": "cosmos3.denoiser:Cosmos3",
    "WanImageToVideoPipeline": "wan.image:WanImage",
    "Cosmos2TextToImagePipeline": "cosmos.predict:TextToImage",
    "Cosmos2VideoToWorldPipeline": "cosmos.predict:VideoToWorld",
    "Cosmos2_5_PredictBasePipeline": "cosmos.predict:Predict25",
}
"""By diffusers' pipeline class: module and class in hybridgen.models."""
TOKEN_TIME = dict.fromkeys(("WanPipeline", "WanImageToVideoPipeline"), "wan.image:WanTokenTime")
"""The same where every token has a timestep of its own, and a class of its own takes care of that."""


def denoiser(facts: ModelFacts) -> type[Denoiser]:
    """The class of a model. Imports torch and diffusers."""
    special = TOKEN_TIME.get(facts.pipeline) if facts.transformer.token_time else None
    module, _, name = (special or DENOISERS[facts.pipeline]).partition(":")
    found: type[Denoiser] = getattr(import_module(f"hybridgen.models.{module}"), name)
    return found


def negative_prompt_of(facts: ModelFacts) -> str:
    """The negative prompt that diffusers' pipeline takes where none is given. Imports torch and diffusers."""
    import diffusers

    found: str = sys.modules[getattr(diffusers, facts.pipeline).__module__].DEFAULT_NEGATIVE_PROMPT
    return found
