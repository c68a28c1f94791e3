"""The record that a clip carries in its tags: how it was made, and the recipe that makes it again. No torch."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hybridgen.distributed.files import read_bytes
from hybridgen.errors import RequestError
from hybridgen.recipe.fields import SCHEMA, Recipe, Runtime
from hybridgen.recipe.typed import convert, dotted
from hybridgen.strategies.registry import AXES, DEGREES, OPTIONS

RULES = {
    "clip-record": "A clip that hybridgen wrote says in its tags how it was made. Other tools drop the tags when they "
    "encode a clip anew.",
}
RUNTIME = tuple(item.name for item in fields(Runtime))
PICTURES = ("image", "last_image", "video")


@dataclass(frozen=True)
class Record:
    """How a clip was made."""

    file: Path
    recipe: dict[str, Any]
    """The content of the recipe that makes the clip again."""
    versions: dict[str, str]
    """Versions of the packages that made it."""
    latents_sha256: str
    """SHA-256 of its final latents."""


def read(path: Path, flag: str = "") -> Record:
    """The record of a clip. Raises RequestError (clip-record), which names the flag that named the file."""
    from hybridgen.engine.video import read_tags

    try:
        read_bytes(path, 1)
        said = read_tags(path)
        if said:
            return _record(path, said)
        problem = "carries no record of how it was made"
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    except (subprocess.SubprocessError, SyntaxError):
        problem = "is not a clip that hybridgen wrote: an .mp4 or a .png"
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError, RecursionError):
        problem = "carries a record that cannot be read"
    raise RequestError("clip-record", flag, path, problem)


def _record(path: Path, said: dict[str, Any]) -> Record:
    """The record from the JSON of the tags, whose parts are of declared types. Raises ValueError and the like."""
    content = {"schema": SCHEMA, **_recipe(path, dict(said["request"]), dict(said["plan"]))}
    recipe, misfits = convert(Recipe, content)
    if recipe is None:
        raise ValueError(", ".join(dotted(one.keys) for one in misfits))
    versions = {str(name): str(version) for name, version in dict(said.get("versions", {})).items()}
    return Record(path, content, versions, str(said.get("latents_sha256", "")))


def _recipe(path: Path, request: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    """The keys of a recipe from a record's request and plan; what is open there is left out."""
    same = ("prompt", "negative_prompt", "size", "frames", "steps", "guidance", "seed", "fps")
    asked = {name: request[name] for name in same} | {"timesteps": request.get("timesteps")}
    asked |= {name: _beside(path, request.get(name)) for name in PICTURES}
    if request.get("guidance_2") != request["guidance"]:
        asked["guidance_2"] = request.get("guidance_2")
    sections = {
        "checkpoint": {"revision": request.get("revision")},
        "request": asked,
        "parallel": _parallel(plan),
        "runtime": {name: request.get(name) for name in RUNTIME},
    }
    given = {name: {key: one for key, one in held.items() if one is not None} for name, held in sections.items()}
    return {"model": request["model"], **{name: held for name, held in given.items() if held}}


def _parallel(plan: dict[str, Any]) -> dict[str, Any]:
    """The keys of the parallel section."""
    found: dict[str, Any] = {}
    for degree in DEGREES:
        value = plan["degrees"].get(degree.name, 1)
        if value not in (1, [1, 1]):
            found[degree.name] = "x".join(map(str, value)) if isinstance(value, list) else value
    if stages := plan.get("stages"):
        found["pipefusion"] = f"{len(stages)}:{','.join(map(str, stages))}"
    found |= {option.name: plan.get(option.name) for option in OPTIONS}
    if (order := list(plan["order"])) != list(AXES):
        found["order"] = order
    return found


def _beside(path: Path, name: str | None) -> str | None:
    """The path of a file that the clip starts from: as named here, or beside the clip, where it is there."""
    if name is None:
        return None
    beside = path.parent / Path(name).name
    return str(beside) if beside.exists() and not Path(name).exists() else name
