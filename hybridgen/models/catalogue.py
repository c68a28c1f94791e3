"""How a name, hub id or folder becomes facts. No torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hybridgen.errors import RequestError, did_you_mean
from hybridgen.models import schedulers
from hybridgen.models.checkpoint import diffusers_names, from_folder
from hybridgen.models.files import Folder
from hybridgen.models.headers import Missing
from hybridgen.models.registry import KINDS, MODELS
from hybridgen.models.tiny import cache
from hybridgen.plan.facts import ModelFacts, RequestDefaults

DEMO_FOLDER = Path(__file__).parent / "demo" / "checkpoint"
DEFAULT_MODEL = "wan2.2-t2v-a14b"
TINY = "tiny:"
"""How the name of a tiny random checkpoint begins."""
MOST_TINY = 10_000_000
"""More parameters than any tiny checkpoint has; a larger model in the cache folder is not a tiny one."""

DEMO_DEFAULTS = RequestDefaults(
    width=64, height=64, frames=17, steps=20, guidance=3.0, fps=8, dtype="float32", example="a red circle moves right"
)

RULES = {
    "revision": "A revision is a full commit of a repository on the hub, so that the weights can never change.",
}


def names() -> list[str]:
    """Every name that --model understands, full names first."""
    aliases = (alias for m in MODELS for alias in m.aliases)
    return ["demo", *(m.name for m in MODELS), *aliases, *(TINY + name for name in KINDS)]


def find(name: str | None, revision: str | None = None) -> ModelFacts:
    """Facts of a model given by short name, hub id or local folder, at a commit of the hub if one is given.

    None is the default model. A known name is that model whatever folders are called so; a folder is given by a path
    ("./folder"), and all its files are looked at.

    Raises RequestError: unknown-model, which lists what exists, revision, where there is no hub, or what
    checkpoint.from_folder() finds wrong. Never touches the network: an unknown hub id is looked for in the local hub
    cache only.
    """
    name = DEFAULT_MODEL if name is None else name
    for model in MODELS:
        if name.lower() in (model.name, model.source.lower(), *model.aliases):
            return replace(model, revision=revision) if revision else model
    if revision is not None and (name == "demo" or name.startswith(TINY) or _is_path(name)):
        problem = f"it is a commit of the hub, and --model {name} is a folder here"
        raise RequestError("revision", "revision", revision, problem, tries=[{"revision": None}])
    if name == "demo":
        return replace(from_folder(DEMO_FOLDER), name="demo", defaults=DEMO_DEFAULTS, licence="Apache-2.0")
    if name.startswith(TINY):
        return _tiny(name)
    if _is_path(name) and _is_folder(name):
        return from_folder(Path(name).expanduser())
    if name.count("/") == 1 and (cached := _cached_snapshot(name, revision)):
        return replace(from_folder(cached), name=name, source=name, revision=revision)
    raise _unknown(name)


def look_at(facts: ModelFacts, steps: int) -> None:
    """Look at what is on this machine of a model that is to take so many steps.

    A folder was looked at when its facts were read, so that its scheduler alone is left. Raises RequestError for what
    is wrong, but not for files that are still to be fetched.
    """
    folder = Path(facts.source) if Path(facts.source).is_absolute() else _cached_snapshot(facts.source, facts.revision)
    if folder is None:
        return
    try:
        if not Path(facts.source).is_absolute():
            from_folder(folder)
        schedulers.check_steps(Folder(folder), steps)
    except RequestError as error:
        if not isinstance(error.__cause__, Missing):
            raise


def _unknown(name: str) -> RequestError:
    """The error of a name that is no model, with what was probably meant."""
    if _is_path(name):
        return RequestError("unknown-model", "model", name, "there is no such folder", names()[:4])
    if close := diffusers_names(name):
        problem = "is in the layout of the model's own code; the checkpoint for diffusers is needed"
        return RequestError("unknown-model", "model", name, problem, close)
    if name and _is_folder(name):
        return RequestError(
            "unknown-model", "model", name, "is not a known model; a folder is given by its path", [f"./{name}"]
        )
    problem = "is not a known model, a downloaded hub id or the path of a folder in diffusers layout"
    return RequestError("unknown-model", "model", name or "''", problem, did_you_mean(name, names(), 2) or names()[:4])


def _is_path(name: str) -> bool:
    """Whether a name is the path of a folder: absolute, of this or the home folder, or with more than one part.

    A name such as "owner/model" is a path where there is such a folder, and a hub id where there is none.
    """
    starts = name.startswith(("/", "./", "../", "~")) or name in (".", "..")
    return starts or name.count("/") > 1 or name.endswith("/") or ("/" in name and _is_folder(name))


def _is_folder(name: str) -> bool:
    """Whether there is a folder of that name; longer names than files can have are none."""
    try:
        return Path(name).expanduser().is_dir()
    except (OSError, ValueError, RuntimeError):
        return False


def _tiny(name: str) -> ModelFacts:
    """A tiny checkpoint, built if it is not there yet. It needs no guardrail, because its weights are random."""
    kind = KINDS.get(name.removeprefix(TINY))
    if kind is None:
        known = [TINY + kind for kind in KINDS]
        close = did_you_mean(name, known)
        nearest = [*close, *(other for other in known if other not in close)]
        raise RequestError("unknown-model", "model", name, "is not a tiny checkpoint", nearest)
    facts = from_folder(cache.checkpoint(kind.name))
    guarded = facts.guarded and facts.transformer.params > MOST_TINY
    return replace(facts, name=name, defaults=kind.defaults, guarded=guarded)


def _cached_snapshot(hub_id: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(hub_id, "model_index.json", revision=revision)
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None
