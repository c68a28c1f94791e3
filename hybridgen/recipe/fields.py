"""A recipe: everything one run needs, as one typed object. Flags, YAML keys and these fields are one list.

Precedence: flag, then --set, then the recipe file, then the model's defaults. None means open. No torch.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Optional

from hybridgen.errors import RequestError
from hybridgen.recipe import yaml_file
from hybridgen.recipe.yaml_file import doubled

SCHEMA = 1
"""Version of the recipe format."""


def option(help: str, *flags: str, metavar: str | None = None) -> Any:
    """A field that is also a flag (--name unless flags are given) and a key; `help` explains all three."""
    return field(default=None, metadata={"help": help, "flags": flags, "metavar": metavar})


def entry(help: str, default: Any = None, choices: tuple[str, ...] = ()) -> Any:
    """A field that is a key of the file only; a `default` that is a class is called for every recipe."""
    about = {"help": help, "choices": choices}
    return field(default_factory=default, metadata=about) if default else field(default=None, metadata=about)


@dataclass
class Checkpoint:
    """Which files of the model; they belong to the recipe's model, and another --model drops them."""

    revision: Optional[str] = option("Commit of the model on the hub (40 hex digits).", metavar="SHA")
    license: Optional[str] = entry("The model's licence, as an SPDX name.")


@dataclass
class Request:
    """What is to be made."""

    prompt: Optional[str] = option("What the clip shows.", "--prompt", "-p", metavar="TEXT")
    negative_prompt: Optional[str] = option("What the clip should not show.", metavar="TEXT")
    image: Optional[str] = option("Picture that the clip starts from, or shows.", metavar="FILE")
    last_image: Optional[str] = option("Picture that it ends with.", metavar="FILE")
    video: Optional[str] = option("Video that the clip continues.", metavar="FILE")
    size: Optional[str] = option("Width x height in pixels.", metavar="WxH")
    frames: Optional[int] = option("Number of frames: 4k + 1.", metavar="N")
    steps: Optional[int] = option("Denoising steps.", metavar="N")
    guidance: Optional[float] = option("Guidance scale; 1 turns guidance off.", metavar="X")
    guidance_2: Optional[float] = option("Guidance scale of the low-noise expert.", metavar="X")
    seed: Optional[int] = option("Seed of the noise; without it one is drawn and printed.", metavar="N")
    fps: Optional[int] = option("Frames per second of the file; the model's own by default.", metavar="N")


@dataclass
class Parallel:
    """How it is spread over ranks."""

    cfg: Optional[int] = option("Guidance branches on separate halves: 1 or 2.", metavar="N")
    ulysses: Optional[int] = option("Ranks that trade heads for tokens.", metavar="N")
    ring: Optional[int] = option("Ranks in a ring of K/V.", metavar="N")
    usp: Optional[str] = option("Ulysses x ring under one flag.", metavar="UxR")
    attn2d: Optional[str] = option("Attention2D: rows x columns.", metavar="RxC")
    tp: Optional[int] = option("Ranks that split every weight.", metavar="N")
    pipefusion: Optional[int | str] = option(
        "Pipeline stages of the transformer; N:A,B,... says how many blocks each has.", metavar="N[:A,B,...]"
    )
    vae: Optional[int] = option("Ranks that decode and encode, laid over the others.", metavar="N")
    order: Optional[list[str]] = option("Mesh axes, slowest first, as in cfg,row,col,ulysses.", metavar="AXES")
    patches: Optional[int] = option("PipeFusion: patches of the sequence (default: stages).", metavar="N")
    warmup: Optional[int] = option(
        "PipeFusion: synchronous steps at the start of every expert (default 1).", metavar="N"
    )


@dataclass
class Runtime:
    """What it is computed with."""

    device: Optional[str] = option("cuda or cpu; cuda when there is one.", metavar="NAME")
    dtype: Optional[str] = option("float32, bfloat16 or float16; the model's own by default.", metavar="NAME")
    attention: Optional[str] = option(
        "Attention kernel (sdpa, cudnn, flash, cpu ...); chosen when open.", metavar="NAME"
    )


@dataclass
class Hardware:
    """The machine a recipe is for."""

    name: Optional[str] = entry("GPU, and system where it matters, as in gb200-nvl72 or rtx-4090; or cpu.")
    gpus: Optional[int] = entry("Number of GPUs (on cpu: of ranks).")
    per_node: Optional[int] = entry("GPUs of one machine.")
    link: Optional[str] = entry("What connects them, as in nvlink or pcie.")


STATUSES = ("verified", "published", "planned")


@dataclass
class Measured:
    """One result: what this repository ran, what somebody else published, or what the planner says."""

    status: Optional[str] = entry(
        "verified: run end to end with hybridgen; published: by somebody else; planned: by the planner.", None, STATUSES
    )
    engine: Optional[str] = entry("What ran it, where that was not hybridgen.")
    hardware: Optional[str] = entry("The GPU, where the recipe's hardware does not say it.")
    request: Request = entry("Where the request was not the recipe's.", Request)
    denoise_s: Optional[float] = entry("Seconds of the denoising steps (median).")
    end_to_end_s: Optional[float] = entry("Seconds from request to file (median).")
    peak_gb: Optional[float] = entry("Most memory on one GPU, in 10^9 bytes.")
    n: Optional[int] = entry("Number of runs.")
    date: Optional[str] = entry("Day of the run, or on which the source was read: YYYY-MM-DD.")
    source: Optional[str] = entry("Address of the publication.")
    software: dict[str, str] = entry("Versions of what ran it: package to version.", dict)
    kernel: Optional[str] = entry("Attention kernel.")
    notes: Optional[str] = entry("What else one must know to compare.")


@dataclass
class Recipe:
    """One run. `license`, `notes`, `hardware` and `measured` are evidence that a file carries; they change nothing."""

    schema: int = field(default=SCHEMA, metadata={"help": "Version of the recipe format."})
    license: Optional[str] = entry("Licence of this file, as an SPDX name.")
    model: Optional[str] = option(
        "demo, wan2.2 (default), wan2.2-i2v, wan2.2-5b, cosmos3, cosmos2.5, tiny:NAME ..., a hub id or a folder.",
        metavar="NAME",
    )
    checkpoint: Checkpoint = entry("Which files of the model.", Checkpoint)
    notes: Optional[str] = entry("What the recipe is for.")
    request: Request = entry("What is to be made.", Request)
    parallel: Parallel = entry("How it is spread over ranks.", Parallel)
    runtime: Runtime = entry("What it is computed with.", Runtime)
    hardware: Hardware = entry("The machine it is for.", Hardware)
    measured: list[Measured] = entry("Results, each with its origin.", list)


SECTIONS = {"checkpoint": Checkpoint, "request": Request, "parallel": Parallel, "runtime": Runtime}
"""Sections whose options are flags, too."""
CLASSES = {kind.__name__: kind for kind in (*SECTIONS.values(), Hardware, Measured)}


def held_by(item: Any) -> Any:
    """The dataclass that a field holds, or holds a list of; None for plain values."""
    return next((CLASSES[word] for word in re.findall(r"\w+", str(item.type)) if word in CLASSES), None)


def options() -> Iterator[tuple[str, str, Any]]:
    """(section, field name, field) of everything that is a flag; the section of `model` is ""."""
    yield "", "model", next(f for f in fields(Recipe) if f.name == "model")
    for section, kind in SECTIONS.items():
        for item in fields(kind):
            if "flags" in item.metadata:
                yield section, item.name, item


def flag_of(item: Any) -> str:
    """The long flag of a field."""
    flags = item.metadata["flags"]
    return str(flags[0]) if flags else f"--{item.name.replace('_', '-')}"


def compose(file: Path | None, settings: list[str], flags: dict[str, Any]) -> Recipe:
    """The recipe that file, --set entries and flags ({field name: value or None}) amount to.

    Raises RequestError: recipe-unreadable, recipe-key, recipe-value.
    """
    recipe = Recipe()
    if file is not None:
        fill(recipe, read(file), str(file))
    named, pinned = recipe.model, recipe.checkpoint
    recipe.checkpoint = Checkpoint()
    for setting in settings:
        fill(recipe, _setting(setting), f"--set {setting}")
    for section, name, item in options():
        if flags.get(name) is not None:
            target = getattr(recipe, section) if section else recipe
            setattr(target, name, _typed(item.type, name, flags[name], flag_of(item)))
    if recipe.model == named:
        given = recipe.checkpoint
        recipe.checkpoint = Checkpoint(given.revision or pinned.revision, given.license or pinned.license)
    return recipe


def _setting(text: str) -> dict[str, Any]:
    """{"request": {"steps": 20}} from "request.steps=20"; what a text field gets is taken as it stands."""
    from omegaconf import OmegaConf

    path, equals, value = text.partition("=")
    if not equals:
        raise RequestError.told("recipe-key", f"--set {text} is not KEY=VALUE; write it as in --set request.steps=20")
    kinds = {f"{section}.{name}" if section else name: str(item.type) for section, name, item in options()}
    try:
        is_text = "str" in kinds.get(path, "") and "list" not in kinds.get(path, "")
        parsed = OmegaConf.create({"value": value}) if is_text else OmegaConf.from_dotlist([f"value={value}"])
        found = OmegaConf.to_container(parsed)
    except Exception as error:  # noqa: BLE001 - whatever the parser makes of a user's text
        raise RequestError.told("recipe-value", f"--set {text}: the value is not YAML") from error
    assert isinstance(found, dict)
    nested: Any = found["value"]
    for key in reversed(path.split(".")):
        nested = {key: nested}
    assert isinstance(nested, dict)
    return nested


def read(file: Path) -> dict[str, Any]:
    """What a recipe file holds, with every key known. Raises RequestError."""
    try:
        document = yaml_file.read(file)
    except yaml_file.Unreadable as error:
        raise RequestError.told("recipe-unreadable", f"--recipe {file}{error.at} {error.problem}") from error
    found = document.content
    if not isinstance(found, dict):
        raise RequestError.told("recipe-unreadable", f"--recipe {file} holds no keys; it starts with model: NAME")
    if found.get("schema", SCHEMA) != SCHEMA:
        raise RequestError.told("recipe-schema", f"{file} has schema {found['schema']}; this version reads {SCHEMA}")
    for line, column, fault in wrong_keys(document.node, Recipe):
        raise RequestError.told("recipe-key", f"{file}:{line}:{column}: {fault}")
    return found


def wrong_keys(node: Any, kind: Any) -> Iterator[tuple[int, int, str]]:
    """(line, column, fault) of every key of a YAML node that is unknown, with the nearest, or given twice."""
    yield from sorted([*_unknown_keys(node, kind), *((*at, f"{key} is given twice") for key, at in doubled(node))])


def _unknown_keys(node: Any, kind: Any, path: str = "") -> Iterator[tuple[int, int, str]]:
    known = {f.name: f for f in fields(kind)}
    for key, value in node.value:
        name = str(key.value)
        if name not in known:
            yield key.start_mark.line + 1, key.start_mark.column + 1, _unknown_key(path + name, list(known))
        elif (inner := held_by(known[name])) is not None:
            for part in value.value if value.id == "sequence" else [value]:
                if part.id == "mapping":
                    yield from _unknown_keys(part, inner, f"{path}{name}.")


def _unknown_key(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name.split(".")[-1], known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
    return f"unknown key {name}; {hint}"


def fill(target: Any, values: dict[str, Any], where: str, path: str = "") -> None:
    """Set fields from a mapping, checking names and types; `path` are the keys that lead to the target, with dots.

    Raises RequestError: recipe-key, recipe-value.
    """
    known = {f.name: f for f in fields(target)}
    for name, value in values.items():
        key = f"{path}{name}"
        if name not in known:
            raise RequestError.told("recipe-key", f"{where}: {_unknown_key(key, list(known))}")
        current, inner = getattr(target, name), held_by(known[name])
        if is_dataclass(current):
            if not isinstance(value, dict):
                raise RequestError.told("recipe-value", f"{where}: {key} is {value!r} and must hold keys of its own")
            fill(current, value, where, f"{key}.")
        elif inner is not None:
            if not (isinstance(value, list) and all(isinstance(part, dict) for part in value)):
                raise RequestError.told("recipe-value", f"{where}: {key} is {value!r} and must be a list of entries")
            setattr(target, name, [inner() for _ in value])
            for number, given in enumerate(value):
                fill(getattr(target, name)[number], given, where, f"{key}.{number}.")
        else:
            setattr(target, name, _typed(known[name].type, key, value, where))


def _typed(kind: Any, name: str, value: Any, where: str) -> Any:
    """The value if it has the field's type; numbers convert only without loss."""
    kind = str(kind)
    if value is None:
        return {} if "dict" in kind else None
    if "dict" in kind:
        if not (isinstance(value, dict) and all(isinstance(v, str) for v in value.values())):
            raise RequestError.told("recipe-value", f"{where}: {name} must hold names and text; put numbers in quotes")
        return {str(k): v for k, v in value.items()}
    if "list" in kind:
        if not isinstance(value, str | list):
            raise RequestError.told(
                "recipe-value", f"{where}: {name} is {value!r} and must be names separated by commas"
            )
        return value.split(",") if isinstance(value, str) else [str(v) for v in value]
    if "int | str" in kind and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    wanted = float if "float" in kind else str if "str" in kind else int
    if wanted is str and isinstance(value, datetime.date):  # YAML reads 2026-11-30 as one
        value = value.isoformat()
    fits = isinstance(value, int | float) if wanted is float else isinstance(value, wanted)
    if isinstance(value, bool) or not fits:
        raise RequestError.told("recipe-value", f"{where}: {name} is {value!r} and must be {_KINDS[wanted]}")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise RequestError.told(
            "recipe-value", f"{where}: {name} has {len(str(abs(value)))} digits; nearest: {LARGEST}"
        )
    return wanted(value)


LARGEST = 2**64
"""Above any number that a field takes, seeds included; larger ones would not fit into a float."""
_KINDS: dict[type, str] = {int: "a whole number", float: "a number", str: "text"}
