"""The families of models, as one literal table. No torch."""

# ruff: noqa: F401 - the imports are the table
from __future__ import annotations

from hybridgen.errors import assert_unique
from hybridgen.models.family import Family
from hybridgen.models.guardrail import Guardrail
from hybridgen.plan.facts import ModelFacts

# The table: one line per family, in the order in which models are listed.
# isort: off
from hybridgen.models.wan.family import FAMILY as wan
from hybridgen.models.cosmos.family import FAMILY as cosmos
from hybridgen.models.cosmos3.family import FAMILY as cosmos3
# isort: on

FAMILIES: tuple[Family, ...] = tuple(found for found in list(globals().values()) if isinstance(found, Family))
"""The families imported above, in that order."""


def check_unique(families: tuple[Family, ...]) -> None:
    """Raise AssertionError where two families declare one pipeline, one name of a model, or one tiny checkpoint."""
    assert_unique("pipeline", [name for family in families for name in (*family.pipelines, *family.not_run)])
    models = [model for family in families for model in family.known]
    assert_unique("model", [name for model in models for name in (model.name, *model.aliases)])
    assert_unique("tiny checkpoint", [kind.name for family in families for kind in family.tiny])


check_unique(FAMILIES)
BY_PIPELINE = {pipeline: family for family in FAMILIES for pipeline in family.pipelines}
"""Families by the name of diffusers' pipeline class."""
MODELS = tuple(model for family in FAMILIES for model in family.known)
"""Every model known by name."""
KINDS = {kind.name: kind for family in FAMILIES for kind in family.tiny}
"""Every tiny checkpoint, by its name."""


def family_of(facts: ModelFacts) -> Family:
    """The family of a model that can be run."""
    return BY_PIPELINE[facts.pipeline]


def guardrail_of(facts: ModelFacts) -> type[Guardrail] | None:
    """The checker with which a model is run; None where its licence asks for none."""
    if not facts.guarded:
        return None
    found = family_of(facts).guardrail
    if found is None:
        raise LookupError(f"{facts.name} is guarded, and its family names no guardrail")
    return found


def relatives(facts: ModelFacts) -> tuple[ModelFacts, ...]:
    """The models known by name of the same family; none for a model that is planned for only."""
    family = BY_PIPELINE.get(facts.pipeline)
    return family.known if family else ()
