"""A recipe: everything one run needs, as one typed object. Flags, YAML keys and these fields are one list.

Precedence: flag, then --set, then the recipe file, then the model's defaults. None means open. No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

from hybridgen.errors import did_you_mean
from hybridgen.models.catalogue import DEFAULT_MODEL, names
from hybridgen.models.registry import MODELS
from hybridgen.plan.kernels import KERNELS
from hybridgen.plan.plan import SHORT_DTYPES
from hybridgen.plan.settings import SETTINGS as PLAN_SETTINGS
from hybridgen.recipe import source
from hybridgen.recipe.flags import flag, name_of
from hybridgen.recipe.typed import Before, Declared, Keys
from hybridgen.strategies.registry import SETTINGS, SHORTHANDS

SCHEMA = 1
"""Version of the recipe format."""
WRITTEN = "CC0-1.0"
"""Licence of a recipe that a command writes, which claims nothing; whoever publishes it may choose another."""
FILE = source.Kind("recipe", "schema: 1", "recipe-unreadable", "recipe-key", "recipe-value")


DEVICES = ("cuda", "cpu")
MORE_DTYPES = {"float": "float32", "half": "float16", "f32": "float32", "f16": "float16"}
"""Names of dtypes that other tools take."""


def entry(help: str, default: Any = None, choices: tuple[str, ...] = ()) -> Any:
    """A field that is a key of the file only; a `default` that is a class is called for every recipe.

    `choices` are what the schema offers; `recipes check` holds files to them.
    """
    about: dict[str, Any] = {"description": help}
    if choices:
        about["json_schema_extra"] = {"enum": list(choices)}
    return field(default_factory=default, metadata=about) if default else field(default=None, metadata=about)


def of_setting(name: str) -> Any:
    """A flag of a setting in plan/settings.py."""
    setting = PLAN_SETTINGS[name]
    kernels = [kernel.name for kernel in KERNELS] if name == "attention" else []
    choices = [*kernels, *(choice.name for choice in setting.choices)] if setting.metavar else []
    return flag(setting.help, metavar=setting.metavar, values=(lambda: choices) if choices else None)


@dataclass
class Checkpoint(Declared):
    """Which files of the model are read; they belong to the recipe's model, and another --model drops them."""

    revision: Optional[str] = flag("Commit of the model on the hub (40 hex digits).", metavar="SHA")
    license: Optional[str] = entry("The model's licence, as an SPDX name.")


@dataclass
class Request(Declared):
    """The request: what is to be made."""

    prompt: Optional[str] = flag("What the clip shows.", "--prompt", "-p", metavar="TEXT")
    negative_prompt: Optional[str] = flag("What the clip should not show.", metavar="TEXT")
    image: Optional[str] = flag("Image that the clip starts from, or shows.", metavar="FILE")
    last_image: Optional[str] = flag("Image that the clip ends with.", metavar="FILE")
    video: Optional[str] = flag("Video that the clip continues.", metavar="FILE")
    size: Optional[str] = flag("Width x height in pixels.", metavar="WxH")
    frames: Optional[int] = flag("Number of frames: 4k + 1.", metavar="N")
    steps: Optional[int] = flag("Denoising steps.", metavar="N")
    timesteps: Optional[str] = of_setting("timesteps")
    guidance: Optional[float] = flag("Guidance scale; 1 turns guidance off.", metavar="X")
    guidance_2: Optional[float] = flag("Guidance scale of the low-noise expert.", metavar="X")
    seed: Optional[int] = flag("Seed of the noise; without it one is drawn and printed.", metavar="N")
    fps: Optional[int] = flag("Frames per second of the file; the model's own by default.", metavar="N")


def _names(value: Any) -> Any:
    """The names in a text that separates them by commas; another value as it is."""
    return value.split(",") if isinstance(value, str) else value


def _parallel() -> list[tuple[str, Any, Any]]:
    """Name, type and field of all settings of strategies, and of the order, in the order of the flags."""
    found = [(item.listed, item.name, item.type, flag(item.help, metavar=item.metavar)) for item in SETTINGS]
    order = flag("Mesh axes, slowest first, as in cfg,row,col,ulysses.", metavar="AXES")
    found.append((90, "order", Annotated[list[str], Before(_names, ("array", "string"))], order))
    return [(name, Optional[kind], item) for _, name, kind, item in sorted(found, key=lambda one: one[0])]


if TYPE_CHECKING:

    @dataclass(init=False)
    class Parallel(Declared):
        """How it is spread over ranks: one field for each setting of a strategy, and the order."""

        order: list[str] | None

        def __init__(self, **settings: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...
else:
    about = {"__doc__": "How it is spread over ranks.", "__module__": __name__}
    Parallel = make_dataclass("Parallel", _parallel(), bases=(Declared,), namespace=about)


def whole_dtype(name: str) -> str:
    """The whole name of a dtype that was given by a short one, such as bf16; another text as it is."""
    spelled = name.lower().removeprefix("torch.")
    names = {**{one: one for one in SHORT_DTYPES}, **{short: one for one, short in SHORT_DTYPES.items()}, **MORE_DTYPES}
    return names.get(spelled, name)


@dataclass
class Runtime(Declared):
    """The runtime: device, dtype, kernel, and settings that are not the model's own."""

    device: Optional[str] = flag("cuda or cpu; cuda when there is one.", metavar="NAME", values=lambda: DEVICES)
    dtype: Optional[str] = flag(
        "float32, bfloat16 or float16; the model's own by default.", metavar="NAME", values=lambda: SHORT_DTYPES
    )
    attention: Optional[str] = of_setting("attention")
    weights: Optional[str] = of_setting("weights")
    compile: Optional[bool] = of_setting("compile")
    cache: Optional[str] = of_setting("cache")

    def __post_init__(self) -> None:
        """Write out the short name of a dtype."""
        if self.dtype is not None:
            self.dtype = whole_dtype(self.dtype)


@dataclass
class Hardware(Declared):
    """The machine a recipe is for."""

    name: Optional[str] = entry("GPU, and system where it matters, as in gb200-nvl72 or rtx-4090; or cpu.")
    gpus: Optional[int] = entry("Number of GPUs (on cpu: of ranks).")
    memory_gb: Optional[float] = entry("Memory of a GPU that may be used, in 10^9 bytes, where it is not all.")
    per_node: Optional[int] = entry("GPUs of one machine.")
    link: Optional[str] = entry("What connects them, as in nvlink or pcie.")


STATUSES = ("verified", "published", "planned")


@dataclass
class Measured(Declared):
    """One result: what this repository ran, what somebody else published, or what the planner says."""

    status: Optional[str] = entry(
        "verified: run end to end with hybridgen; published: by somebody else; planned: by the planner.", None, STATUSES
    )
    engine: Optional[str] = entry("Engine that ran it, if not hybridgen.")
    hardware: Optional[str] = entry("The GPU, if the recipe's hardware does not name it.")
    request: Request = entry("Keys of the request that differed from the recipe's.", Request)
    denoise_s: Optional[float] = entry("Seconds of the denoising steps (median).")
    end_to_end_s: Optional[float] = entry("Seconds from request to file (median).")
    peak_gb: Optional[float] = entry("Most memory on one GPU, in 10^9 bytes.")
    n: Optional[int] = entry("Number of runs.")
    date: Optional[str] = entry("Day of the run, or on which the source was read: YYYY-MM-DD.")
    source: Optional[str] = entry("Address of the publication.")
    software: Optional[dict[str, str]] = entry("Versions of what ran it: package to version.")
    kernel: Optional[str] = entry("Attention kernel.")
    notes: Optional[str] = entry("Remarks that are needed to compare.")


def _models() -> str:
    """The shortest name of every known model, demo first."""
    names = [
        min((model.name, *model.aliases), key=len) + " (default)" * (model.name == DEFAULT_MODEL) for model in MODELS
    ]
    return ", ".join(["demo", *names])


@dataclass
class Recipe(Declared):
    """One run. `license`, `notes`, `hardware` and `measured` record where it comes from and change nothing."""

    schema: int = field(default=SCHEMA, metadata={"description": "Version of the recipe format."})
    license: Optional[str] = entry("Licence of this file, as an SPDX name.")
    model: Optional[str] = flag(f"{_models()}, tiny:NAME, a hub id or a folder.", metavar="NAME", values=names)
    checkpoint: Checkpoint = entry("Which files of the model.", Checkpoint)
    notes: Optional[str] = entry("What the recipe is for.")
    request: Request = entry("What is to be made.", Request)
    parallel: Parallel = entry("How it is spread over ranks.", Parallel)
    runtime: Runtime = entry("What it is computed with.", Runtime)
    hardware: Hardware = entry("The machine it is for.", Hardware)
    measured: list[Measured] = entry("Results, each with its origin.", list)


SECTIONS = {"checkpoint": Checkpoint, "request": Request, "parallel": Parallel, "runtime": Runtime}
"""Sections with options that are flags as well."""


def options() -> Iterator[tuple[str, str, Any]]:
    """Section, field name and field of every flag; the section of `model` is ""."""
    yield "", "model", next(f for f in fields(Recipe) if f.name == "model")
    for section, kind in SECTIONS.items():
        for item in fields(kind):
            if "flags" in item.metadata:
                yield section, item.name, item


PARTS = {name for shorthand in SHORTHANDS for name in (shorthand.name, *shorthand.sets)}
"""Shorthands, and the degrees that they set."""


def keys_of(name: str) -> Keys:
    """The keys that lead to the field of a flag without dashes; () if it is not a field of a recipe."""
    fields_by_flag = {name_of(item): (section, name) if section else (name,) for section, name, item in options()}
    return fields_by_flag.get(f"--{name}", ())


def as_flags(function: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords in the form of the flags with their names. Raises TypeError for unknown names."""
    names = [name for _, name, _ in options()]
    for name in given:
        if name not in names:
            close = did_you_mean(name, names)
            hint = f"did you mean {close[0]}?" if close else f"options are: {', '.join(sorted(names))}"
            raise TypeError(f"{function}() has no option {name}; {hint}")
    return {name: _as_flag(name, value) for name, value in given.items()}


def _as_flag(name: str, value: Any) -> Any:
    """A tuple in the form of a flag: 64x64, or names in a list."""
    if not isinstance(value, tuple):
        return str(value) if isinstance(value, Path) else value
    return list(value) if name == "order" else "x".join(map(str, value))
