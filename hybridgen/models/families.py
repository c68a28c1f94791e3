"""Which class takes a checkpoint's pipeline apart."""

from __future__ import annotations

from importlib import import_module

from hybridgen.models.denoiser import Denoiser
from hybridgen.models.facts import ModelFacts

DENOISERS = {
    "WanPipeline": "wan:Wan",
    "Cosmos3OmniPipeline": "cosmos3:Cosmos3",
}
"""By diffusers' pipeline class: module and class in hybridgen.models."""


def denoiser(facts: ModelFacts) -> type[Denoiser]:
    """The class of a model. Imports torch and diffusers."""
    module, _, name = DENOISERS[facts.pipeline].partition(":")
    found: type[Denoiser] = getattr(import_module(f"hybridgen.models.{module}"), name)
    return found
