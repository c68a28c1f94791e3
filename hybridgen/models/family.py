"""The description of a family of models. Each family has a folder, and a line in registry.py. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hybridgen.models.files import Config, Folder
from hybridgen.models.guardrail import Guardrail
from hybridgen.models.keys import Table
from hybridgen.models.parts import Part
from hybridgen.models.tiny.kinds import Kind
from hybridgen.plan.autoencoder import VaeFacts
from hybridgen.plan.facts import ModelFacts, TransformerFacts

if TYPE_CHECKING:
    from hybridgen.models.autoencoder import Autoencoder
    from hybridgen.models.denoiser import Denoiser


def default_negative_prompt(facts: ModelFacts) -> str:
    """The negative prompt among the defaults of a model's facts."""
    return facts.defaults.negative_prompt


@dataclass(frozen=True)
class Family:
    """One family. Functions that need torch import it when they are called."""

    pipelines: tuple[str, ...]
    """diffusers' pipeline classes whose checkpoints are run."""
    transformer: Callable[[Folder, Config], TransformerFacts]
    """Reads a checkpoint folder's transformer; the second argument is the content of model_index.json."""
    vae: Callable[[Folder], VaeFacts]
    """Reads the checkpoint folder's autoencoder."""
    model: Callable[[Folder, Config], Config]
    """Reads further fields of ModelFacts, its defaults among them."""
    denoiser: Callable[[ModelFacts], type[Denoiser]]
    """The class that is one rank's model. Imports torch."""
    autoencoder: Callable[[ModelFacts], type[Autoencoder]]
    """The class that is one rank's autoencoder. Imports torch."""
    components: Mapping[str, tuple[Part, ...]]
    """Subfolders of a checkpoint that are read, and so downloaded, with what may be in them; the scheduler's aside."""
    switches: Table = field(default_factory=dict)
    """Keys of model_index.json that are no components."""
    optional: tuple[str, ...] = ()
    """Components that only some checkpoints have."""
    own: Mapping[str, Mapping[str, tuple[Part, ...]]] = field(default_factory=dict)
    """Components in which a pipeline class differs from the family."""
    not_run: Mapping[str, str] = field(default_factory=dict)
    """Pipeline classes of the family whose checkpoints are refused, and why."""
    negative_prompt: Callable[[ModelFacts], str] = default_negative_prompt
    """The negative prompt where none is given. May import torch."""
    guardrail: type[Guardrail] | None = None
    """The checker of prompts and frames for models whose licence asks for one (ModelFacts.guarded)."""
    known: tuple[ModelFacts, ...] = ()
    """Models known by name."""
    tiny: tuple[Kind, ...] = ()
    """Tiny random checkpoints, for `--model tiny:NAME`."""

    def parts(self, pipeline: str) -> dict[str, tuple[Part, ...]]:
        """What may be in each component of a pipeline's checkpoint."""
        return {**self.components, **self.own.get(pipeline, {})}

    @property
    def needed(self) -> tuple[str, ...]:
        """Components that every checkpoint has."""
        return tuple(name for name in self.components if name not in self.optional)
