"""Facts of a checkpoint folder in diffusers layout, from its JSON files and safetensors headers. No torch."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from pathlib import Path

from hybridgen.errors import RequestError
from hybridgen.models import schedulers
from hybridgen.models.family import Family
from hybridgen.models.files import Config, Folder
from hybridgen.models.look import look
from hybridgen.models.registry import BY_PIPELINE, FAMILIES
from hybridgen.plan.facts import ModelFacts

RULES = {
    "unreadable-model": "Checkpoints are read in the layout of diffusers: model_index.json, and a folder for every "
    "part.",
    "unsupported-pipeline": "A model's family must be known to be split; hybridgen knows those of Wan and Cosmos.",
    "unsupported-scheduler": "Each rank steps its own part of the latents, so a scheduler must act on every number "
    "alone, and draw no noise. Its noise must fall in every step, because equal levels make NaN.",
    "boundary": "Two experts share the steps: the boundary says at which noise level the second takes over.",
}
ORIGINAL = ("*.pth", "*/*.pth", "models_*", "config.json", "configuration.json", "high_noise_model", "*.pt", "*/*.pt")
"""What folders have in them that hold a model in the layout of its authors' own code."""


def from_folder(path: Path) -> ModelFacts:
    """Look at all files of a checkpoint, and read what it is. A folder that did not change is read once a process.

    Raises RequestError: unreadable-model, unsupported-pipeline, unsupported-scheduler, quantised-model,
    incomplete-model, boundary.
    """
    return _read_whole(path, path.absolute(), _stamp(path))


def _stamp(path: Path) -> frozenset[tuple[object, ...]]:
    """What differs once a file of a checkpoint is changed, added or removed."""
    found = set()
    if (path / "model_index.json").exists():  # any other folder may hold any number of files
        for file in chain(path.glob("*"), path.glob("*/*")):
            with suppress(OSError):
                about = file.stat()
                found.add((file, about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns))
    return frozenset(found)


@lru_cache(maxsize=16)
def _read_whole(path: Path, _there: Path, _stamp: frozenset[tuple[object, ...]]) -> ModelFacts:
    folder = Folder(path)
    try:
        return _read(folder)
    except RequestError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, OSError) as error:
        raise folder.refused(f"its files do not hold what they should ({type(error).__name__}: {error})") from error
    except (RecursionError, MemoryError) as error:
        raise folder.refused(f"its files do not hold what they should ({type(error).__name__})") from error


def _read(folder: Folder) -> ModelFacts:
    path, index = folder.path, _index(folder)
    family = _family(folder, index)
    index = folder.json("model_index.json", family.switches)
    look(folder, family, index)
    experts = 2 if _is_there(index, "transformer_2") else 1
    facts = ModelFacts(
        name=path.absolute().name,
        pipeline=index["_class_name"],
        source=str(path.absolute()),
        transformer=family.transformer(folder, index),
        vae=family.vae(folder),
        experts=experts,
        boundary=_boundary(folder, index, experts),
        text_params=folder.params("text_encoder") if _is_there(index, "text_encoder") else 0,
        origin=f"{path}",
        flow_shift=schedulers.shift(folder),
        **family.model(folder, index),
    )
    _check_channels(folder, facts)
    found = _known(family, facts)
    return facts if found is None else replace(facts, defaults=found.defaults, licence=found.licence)


def _index(folder: Folder) -> Config:
    """The content of model_index.json. Raises RequestError (unreadable-model), which knows other layouts."""
    path = folder.path
    if not (path / "model_index.json").exists() and any(next(path.glob(name), None) for name in ORIGINAL):
        near = ", ".join(diffusers_names(path.name)) or "a checkpoint for diffusers, whose name on the hub says so"
        raise folder.refused("it is not in the layout of diffusers: there is no model_index.json", near)
    return folder.json("model_index.json")


def diffusers_names(name: str) -> list[str]:
    """Hub ids of known models whose checkpoints for diffusers are named after one in another layout."""
    bare = name.rpartition("/")[2].lower()
    known = [model.source for family in FAMILIES for model in family.known]
    return [source for source in known if source.rpartition("/")[2].lower().removesuffix("-diffusers") == bare]


def _is_there(index: Config, component: str) -> bool:
    """Whether model_index.json has a component."""
    value = index.get(component)
    return isinstance(value, list) and value[:1] != [None]


def _boundary(folder: Folder, index: Config, experts: int) -> float | None:
    """Noise level at which the second of two experts takes over. Raises RequestError (boundary)."""
    boundary: float | None = index.get("boundary_ratio")
    if experts == 2 and not boundary:
        problem = "it has two transformers and no boundary_ratio, so the second would never run"
        raise folder.refused(problem, rule="boundary")
    if experts == 1 and boundary is not None:
        problem = f"its boundary_ratio is {boundary}, and it has no transformer_2 that would take over there"
        raise folder.refused(problem, rule="boundary")
    return boundary


def _check_channels(folder: Folder, facts: ModelFacts) -> None:
    """Raise RequestError (unreadable-model) if transformer and autoencoder do not have the same latents."""
    made, read = facts.transformer.out_channels, facts.vae.latent_channels
    if made != read:
        raise folder.refused(f"its transformer makes latents of {made} channels, and its autoencoder reads {read}")


def _known(family: Family, facts: ModelFacts) -> ModelFacts | None:
    """The model known by name that a checkpoint is, or is tuned from; None if it is of no known shape.

    Models of equal shape are told apart by the shift of their schedulers.
    """
    alike = [model for model in family.known if shape_of(model) == shape_of(facts)]
    if len(alike) > 1:
        alike = [model for model in alike if model.flow_shift == facts.flow_shift]
    return alike[0] if len(alike) == 1 else None


def shape_of(facts: ModelFacts) -> tuple[object, ...]:
    """What tells models apart: their transformers, experts and latents, and what clips are made from."""
    own, vae = facts.transformer, facts.vae
    transformer = replace(own, given_params=0, width=own.hidden, kv_heads=own.key_heads)
    pipeline = "" if own.token_time and facts.image == "may" else facts.pipeline  # Wan 2.2's 5B is run by either
    latents = vae.latent_channels, vae.stride_space, vae.stride_time
    return transformer, pipeline, facts.experts, facts.boundary, latents, facts.image, facts.last_image


def _family(folder: Folder, index: Config) -> Family:
    """The family of a checkpoint. Raises RequestError (unsupported-pipeline) where none runs it."""
    path, pipeline = folder.path, ascii(index.get("_class_name"))[:80].strip("'")
    for family in FAMILIES:
        if pipeline in family.not_run:
            problem = f"it holds a {pipeline}, which cannot be run: {family.not_run[pipeline]}"
            raise RequestError("unsupported-pipeline", "model", path, problem)
    if pipeline not in BY_PIPELINE:
        problem = f"it holds a {pipeline}, which cannot be run; hybridgen runs {', '.join(BY_PIPELINE)}"
        raise RequestError("unsupported-pipeline", "model", path, problem)
    return BY_PIPELINE[pipeline]
