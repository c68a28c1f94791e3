"""A recipe: everything one run needs, as one typed object. Flags, YAML keys and these fields are one list.

Precedence: flag, then --set, then the recipe file, then the model's defaults. None means open. No torch.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Optional

from hybridgen.errors import RequestError

SCHEMA = 1
"""Version of the recipe format."""


def option(help: str, *flags: str, metavar: str | None = None) -> Any:
    """A field that is also a flag (--name unless flags are given) and a key; `help` explains all three."""
    return field(default=None, metadata={"help": help, "flags": flags, "metavar": metavar})


@dataclass
class Request:
    """What is to be made."""

    prompt: Optional[str] = option("What the clip shows.", "--prompt", "-p", metavar="TEXT")
    negative_prompt: Optional[str] = option("What the clip should not show.", metavar="TEXT")
    size: Optional[str] = option("Width x height in pixels.", metavar="WxH")
    frames: Optional[int] = option("Number of frames; Wan makes 4k + 1.", metavar="N")
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
    vae: Optional[int] = option("Ranks that decode, laid over the others.", metavar="N")
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
class Recipe:
    """One run. `hardware`, `measured` and `notes` are evidence that a file carries; they change nothing."""

    schema: int = SCHEMA
    model: Optional[str] = option(
        "demo, wan2.2 (default), wan2.1-14b, wan2.1-1.3b, a hub id or a folder.", metavar="NAME"
    )
    request: Request = field(default_factory=Request)
    parallel: Parallel = field(default_factory=Parallel)
    runtime: Runtime = field(default_factory=Runtime)
    hardware: Any = None
    measured: Any = None
    license: Any = None
    notes: Any = None


SECTIONS = {"request": Request, "parallel": Parallel, "runtime": Runtime}


def options() -> Iterator[tuple[str, str, Any]]:
    """(section, field name, field) of everything that is a flag; the section of `model` is ""."""
    yield "", "model", next(f for f in fields(Recipe) if f.name == "model")
    for section, kind in SECTIONS.items():
        for item in fields(kind):
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
        _fill(recipe, _read(file), str(file))
        if recipe.schema != SCHEMA:
            raise RequestError("recipe-schema", f"{file} has schema {recipe.schema}; this version reads {SCHEMA}")
    for setting in settings:
        _fill(recipe, _setting(setting), f"--set {setting}")
    for section, name, item in options():
        if flags.get(name) is not None:
            target = getattr(recipe, section) if section else recipe
            setattr(target, name, _typed(item.type, name, flags[name], flag_of(item)))
    return recipe


def _setting(text: str) -> dict[str, Any]:
    """{"request": {"steps": 20}} from "request.steps=20"; what a text field gets is taken as it stands."""
    from omegaconf import OmegaConf

    path, equals, value = text.partition("=")
    if not equals:
        raise RequestError("recipe-key", f"--set {text} is not KEY=VALUE; write it as in --set request.steps=20")
    kinds = {f"{section}.{name}" if section else name: str(item.type) for section, name, item in options()}
    try:
        is_text = "str" in kinds.get(path, "") and "list" not in kinds.get(path, "")
        parsed = OmegaConf.create({"value": value}) if is_text else OmegaConf.from_dotlist([f"value={value}"])
        found = OmegaConf.to_container(parsed)
    except Exception as error:  # noqa: BLE001 - whatever the parser makes of a user's text
        raise RequestError("recipe-value", f"--set {text}: the value is not YAML") from error
    assert isinstance(found, dict)
    nested: Any = found["value"]
    for key in reversed(path.split(".")):
        nested = {key: nested}
    assert isinstance(nested, dict)
    return nested


def _read(file: Path) -> dict[str, Any]:
    import yaml

    try:
        text = file.read_text(encoding="utf-8")
        node = yaml.compose(text)
        found = yaml.safe_load(text)
    except OSError as error:
        raise RequestError("recipe-unreadable", f"--recipe {file} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not text"
        raise RequestError("recipe-unreadable", f"--recipe {file}{where} is not YAML: {problem}") from error
    if not isinstance(found, dict):
        raise RequestError("recipe-unreadable", f"--recipe {file} holds no keys; it starts with model: NAME")
    _check_keys(node, Recipe, str(file), "")
    return found


def _check_keys(node: Any, kind: Any, file: str, path: str) -> None:
    """Refuse unknown keys with line, column and the nearest known one."""
    known = {f.name: f for f in fields(kind)}
    for key, value in node.value:
        name = str(key.value)
        if name not in known:
            _unknown_key(f"{file}:{key.start_mark.line + 1}:{key.start_mark.column + 1}", path + name, list(known))
        if name in SECTIONS and kind is Recipe and value.id == "mapping":
            _check_keys(value, SECTIONS[name], file, f"{name}.")


def _unknown_key(where: str, name: str, known: list[str]) -> None:
    close = difflib.get_close_matches(name.split(".")[-1], known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
    raise RequestError("recipe-key", f"{where}: unknown key {name}; {hint}")


def _fill(target: Any, values: dict[str, Any], where: str) -> None:
    """Set fields from a mapping, checking names and types."""
    known = {f.name: f for f in fields(target)}
    for name, value in values.items():
        if name not in known:
            _unknown_key(where, name, list(known))
        current = getattr(target, name)
        if is_dataclass(current):
            if not isinstance(value, dict):
                raise RequestError("recipe-value", f"{where}: {name} is {value!r} and must hold keys of its own")
            _fill(current, value, where)
        else:
            setattr(target, name, _typed(known[name].type, name, value, where))


def _typed(kind: Any, name: str, value: Any, where: str) -> Any:
    """The value if it has the field's type; numbers convert only without loss."""
    kind = str(kind)
    if value is None or "Any" in kind:
        return value
    if "list" in kind:
        if not isinstance(value, str | list):
            raise RequestError("recipe-value", f"{where}: {name} is {value!r} and must be names separated by commas")
        return value.split(",") if isinstance(value, str) else [str(v) for v in value]
    if "int | str" in kind and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    wanted = float if "float" in kind else str if "str" in kind else int
    fits = isinstance(value, int | float) if wanted is float else isinstance(value, wanted)
    if isinstance(value, bool) or not fits:
        raise RequestError("recipe-value", f"{where}: {name} is {value!r} and must be {_KINDS[wanted]}")
    return wanted(value)


_KINDS: dict[type, str] = {int: "a whole number", float: "a number", str: "text"}
