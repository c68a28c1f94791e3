"""The families of models, as one literal table. No torch."""

from __future__ import annotations

from hybridgen.models.cosmos.family import COSMOS
from hybridgen.models.cosmos3.family import COSMOS3
from hybridgen.models.family import Family
from hybridgen.models.wan.family import WAN
from hybridgen.plan.facts import ModelFacts

FAMILIES = (
    WAN,
    COSMOS,
    COSMOS3,
)
BY_PIPELINE = {pipeline: family for family in FAMILIES for pipeline in family.pipelines}
"""By diffusers' pipeline class."""
MODELS = tuple(model for family in FAMILIES for model in family.known)
"""Every model known by name."""
KINDS = {kind.name: kind for family in FAMILIES for kind in family.tiny}
"""Every tiny checkpoint, by its name."""


def family_of(facts: ModelFacts) -> Family:
    """The family of a model that can be run."""
    return BY_PIPELINE[facts.pipeline]


def relatives(facts: ModelFacts) -> tuple[ModelFacts, ...]:
    """The models known by name of the same family; none for a model that is planned for only."""
    family = BY_PIPELINE.get(facts.pipeline)
    return family.known if family else ()
