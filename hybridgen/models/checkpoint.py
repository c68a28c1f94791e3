"""Facts of a checkpoint folder in diffusers layout, from its JSON files and safetensors headers. No torch."""

from __future__ import annotations

import struct
from pathlib import Path

from hybridgen.errors import RequestError
from hybridgen.models.files import Config, Folder
from hybridgen.models.registry import BY_PIPELINE, FAMILIES
from hybridgen.plan.facts import ModelFacts

RULES = {
    "unreadable-model": "Checkpoints are read in the layout of diffusers: model_index.json, and a folder for every "
    "part.",
    "unsupported-pipeline": "A model's family must be known to be split; hybridgen knows those of Wan and Cosmos.",
    "unsupported-scheduler": "Each rank steps its own part of the latents, so a scheduler must act on every number "
    "alone.",
}

SCHEDULERS = ("UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler")
"""Schedulers that act on every number alone, so that each rank can step its own part of the latents."""


def from_folder(path: Path) -> ModelFacts:
    """Read a checkpoint. Raises RequestError: unreadable-model, unsupported-pipeline, unsupported-scheduler."""
    try:
        return _read(Folder(path))
    except RequestError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, OSError, struct.error) as error:
        problem = f"its files do not hold what they should ({type(error).__name__}: {error})"
        raise RequestError("unreadable-model", "model", path, problem) from error


def _read(folder: Folder) -> ModelFacts:
    path, index = folder.path, folder.json("model_index.json")
    _check_can_run(path, index)
    pipeline = index["_class_name"]
    family = BY_PIPELINE[pipeline]
    two_experts = index.get("transformer_2", [None])[0] is not None
    return ModelFacts(
        name=path.name,
        pipeline=pipeline,
        source=str(path),
        transformer=family.transformer(folder, index),
        vae=family.vae(folder),
        experts=2 if two_experts else 1,
        boundary=index.get("boundary_ratio") if two_experts else None,
        text_params=folder.params("text_encoder"),
        origin=f"{path}",
        **family.model(folder, index),
    )


def _check_can_run(path: Path, index: Config) -> None:
    """Raise RequestError (unsupported-pipeline, unsupported-scheduler) for a checkpoint that no family runs."""
    pipeline = str(index.get("_class_name"))
    for family in FAMILIES:
        if pipeline in family.not_run:
            problem = f"it holds a {pipeline}, which cannot be run: {family.not_run[pipeline]}"
            raise RequestError("unsupported-pipeline", "model", path, problem)
    if pipeline not in BY_PIPELINE:
        problem = f"it holds a {pipeline}, which is not run; checkpoints that are: {', '.join(BY_PIPELINE)}"
        raise RequestError("unsupported-pipeline", "model", path, problem)
    scheduler = index["scheduler"][1]
    if scheduler not in SCHEDULERS:
        problem = f"it steps with {scheduler}, which is not run; schedulers that are: {', '.join(SCHEDULERS)}"
        raise RequestError("unsupported-scheduler", "model", path, problem)
