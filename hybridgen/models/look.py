"""One look at all files of a checkpoint before anything starts, by headers only. No torch.

What the classes of diffusers and transformers alone can tell is checked in load.py, before ranks start.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from hybridgen.errors import RequestError
from hybridgen.models import headers, schedulers
from hybridgen.models.family import Family
from hybridgen.models.files import LARGEST_JSON, STEM, Config, Folder
from hybridgen.models.headers import Stored, Unreadable
from hybridgen.models.keys import checked
from hybridgen.models.parts import Part
from hybridgen.models.shapes import Shape

RULES = {
    "quantised-model": "Weights are read as plain floats (fp64, fp32, fp16, bf16). Quantised ones need scales that are "
    "stored beside them, and without these every clip is noise.",
    "incomplete-model": "A model with a missing tensor would run, with random numbers in its place.",
}
FLOATS = ("F64", "F32", "F16", "BF16")
BUFFERS = ("position_ids", "inv_freq", "num_batches_tracked")
"""Ends of tensors' names that hold no weights, and may be of any type."""
SCALES = re.compile(
    r"(^|\.)(weight_scale(_inv|_2)?|input_scale|scale_(weight|input)|scaled_fp8|scb|absmax|nested_absmax|quant_map"
    r"|nested_quant_map|qweight|qzeros|qscales|g_idx|weight_packed|weight_zero_point|weight_shape|comfy_quant"
    r"|_amax|_pre_quant_scale|_data|_scale|_zero_point|activation_scale)$|quant_state|weight\._(data|scale)",
    re.IGNORECASE,
)
"""Names of tensors that stand beside quantised weights."""
MARKS = ("quantization_config", "quantization", "quant_method", "quant_config", "compression_config")
"""Keys of a configuration that tell of quantised weights."""
MARK_FILES = ("hf_quant_config.json", "quantization_config.json", "quant_config.json", "quantize_config.json")
"""Files that tell of them."""
VOCABULARIES = ("tokenizer.json", "vocab.json")
"""Files whose content tokenizers.py looks at."""
SMALL = (".json", ".jinja", ".model", ".txt")
"""Endings of the files beside the weights that loaders read."""
UNUSED = {"safety_checker", "sound_tokenizer"}
"""Components of which nothing is loaded, whatever they are."""


def look(folder: Folder, family: Family, index: Config) -> None:
    """Look at every file of a checkpoint of this family.

    index: content of model_index.json.

    Raises RequestError: unreadable-model, unsupported-pipeline, unsupported-scheduler, quantised-model,
    incomplete-model.
    """
    _check_marks(folder, index, "model_index.json")
    library, scheduler = _pair(folder, "scheduler", index.get("scheduler"))
    if library is None:
        raise folder.refused("model_index.json names no scheduler")
    if library != "diffusers":
        problem = f"its scheduler is {ascii(library)[:80]}'s, and only those of diffusers can be run"
        raise folder.refused(problem, rule="unsupported-scheduler")
    schedulers.look(folder, scheduler)
    named = _components(folder, family, index)
    for name, part in named.items():
        _look_at_part(folder, name, part)


def _components(folder: Folder, family: Family, index: Config) -> dict[str, Part]:
    """The components that model_index.json names, but for the scheduler. Nothing is imported by these names."""
    found, known = dict[str, Part](), family.parts(index["_class_name"])
    for name, value in index.items():
        if name.startswith("_") or name in family.switches or name == "scheduler":
            continue
        if not isinstance(value, list) and name not in known:
            continue  # diffusers ignores switches that the pipeline does not have
        library, kind = _pair(folder, name, value)
        if library is None or name in UNUSED:
            continue
        if name not in known:
            problem = f"model_index.json names a component {ascii(name)[1:-1]}, which no model of its family has"
            raise folder.refused(problem, rule="unsupported-pipeline")
        part = _part(known[name], library, kind)
        if part is None:
            classes = ", ".join(cls for part in known[name] for cls in part.classes)
            problem = f"its {name} is a {ascii(library)[1:-1]}.{ascii(kind)[1:-1]}, and it must be one of: {classes}"
            raise folder.refused(problem, rule="unsupported-pipeline")
        found[name] = replace(part, classes=(kind,))
    for name in family.needed:
        if name not in found:
            raise folder.refused(f"model_index.json names no {name}")
    return found


def _pair(folder: Folder, name: str, value: Any) -> tuple[str | None, str]:
    """Library and class of a component as model_index.json has them, or None for one that is absent."""
    if value == [None, None] or value is None:
        return None, ""
    if isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value):
        return value[0], value[1]
    raise folder.refused(f"model_index.json: {ascii(name)[1:-1][:80]} is not a library and a class")


def _part(parts: Iterable[Part], library: str, kind: str) -> Part | None:
    return next((part for part in parts if part.package == library and kind in part.classes), None)


def _look_at_part(folder: Folder, name: str, part: Part) -> None:
    """Look at one component: its configuration and the headers of its weights."""
    for file in MARK_FILES:
        if (folder.path / name / file).exists() or (folder.path / file).exists():
            raise _quantised(folder, f"{name} has a {file}")
    file = f"{name}/{part.config}"
    config = folder.json(file)
    _check_marks(folder, config, file)
    if part.nested and config.get(part.nested) is None:
        config = {**config, part.nested: config}
    config = checked(config, part.keys, file, folder.path)
    _check_files(folder, name, part, config)
    if part.look is not None:
        part.look(folder, name, config, part.classes[0])
    if not part.weighted:
        return
    if config.get("_class_name", part.classes[0]) not in part.classes:
        problem = f"{file}: _class_name is {ascii(config['_class_name'])[:80]}, not {part.classes[0]}"
        raise folder.refused(problem, rule="unsupported-pipeline")
    tensors = folder.tensors(name, (STEM[part.package],))
    _check_types(folder, name, tensors)
    if part.shapes is not None:
        named = {_renamed(part, key): stored for key, stored in tensors.items()}
        check_tensors(folder, name, named, part.shapes(config), part.also)


def _check_files(folder: Folder, component: str, part: Part, config: Config) -> None:
    """Refuse files beside the weights that are missing, broken, or pointers to what was not fetched."""
    files = [path for path in (folder.path / component).iterdir() if path.suffix in SMALL and not path.is_dir()]
    for path in files:
        try:
            size, changed = headers.check_fetched(path), path.stat().st_mtime_ns
            if path.suffix == ".json" and path.name not in VOCABULARIES and not is_json(path, size, changed):
                raise Unreadable("is not JSON")
            if path.suffix == ".jinja":
                path.read_text(encoding="utf-8")
        except (Unreadable, OSError, UnicodeDecodeError) as fault:
            raise folder.refused(f"{component}/{ascii(path.name)[1:-1]} {fault}") from fault
    names = {path.name for path in files}
    for group in part.files:
        if not names.intersection(group) and not any(config.get(name.partition(".")[0]) for name in group):
            raise folder.refused(f"{component} has none of {', '.join(group)}")


@lru_cache(maxsize=256)
def is_json(path: Path, size: int, changed: int) -> bool:
    """Whether a file holds a JSON object or list; the same size and time of change mean the same file."""
    try:
        return size <= LARGEST_JSON and isinstance(json.loads(path.read_bytes()), dict | list)
    except (ValueError, RecursionError, MemoryError):
        return False


def _renamed(part: Part, name: str) -> str:
    """A tensor's name as Part.shapes() has it."""
    for start, known in part.renamed.items():
        if name.startswith(start):
            return known + name.removeprefix(start)
    return name


def _check_marks(folder: Folder, config: Mapping[str, Any], file: str) -> None:
    """Refuse a configuration that tells of quantised weights, also in its parts."""
    for key, value in config.items():
        if key in MARKS and value is not None and (value or key == MARKS[0]):  # which transformers reads, also if empty
            method = value.get("quant_method", value.get("quant_type")) if isinstance(value, dict) else value
            raise _quantised(folder, f"{file} has {key}" + (f" ({ascii(method)[1:-1][:40]})" if method else ""))
        if isinstance(value, dict) and key.endswith("config"):
            _check_marks(folder, value, file)


def _check_types(folder: Folder, component: str, tensors: Mapping[str, Stored]) -> None:
    """Refuse weights that are stored otherwise than as plain floats."""
    for name, stored in tensors.items():
        if SCALES.search(name):
            raise _quantised(folder, f"{component} has {name!a}, which scales quantised weights")
        if stored.dtype not in FLOATS and not name.endswith(BUFFERS):
            raise _quantised(folder, f"{component} has {name!a} stored as {ascii(stored.dtype)[1:-1][:20]}")


def _quantised(folder: Folder, what: str) -> RequestError:
    return folder.refused(f"{what}, and only plain floats are read", "the checkpoint in bf16", "quantised-model")


def check_tensors(
    folder: Folder, component: str, found: Mapping[str, Stored], wanted: Mapping[str, Shape], also: Iterable[str] = ()
) -> None:
    """Raise RequestError (incomplete-model) where tensors are missing, of other shapes, or not of this class.

    also: how the names of tensors begin, or patterns of them, that may be there as well.
    """
    missing = [name for name in wanted if name not in found]
    if missing:
        raise _incomplete(folder, component, "lacks", missing)
    for name, shape in wanted.items():
        if found[name].shape != tuple(shape):
            have, want = ("x".join(map(str, one)) or "one number" for one in (found[name].shape, shape))
            problem = f"{component}: {name!a} has the shape {have}, and its configuration makes it {want}"
            raise folder.refused(problem, rule="incomplete-model")
    patterns = [f"{start}*" for start in also]
    extra = [
        name
        for name in found
        if name not in wanted and not name.endswith(BUFFERS) and not any(fnmatch.fnmatchcase(name, p) for p in patterns)
    ]
    if extra:
        raise _incomplete(folder, component, "has tensors that its class does not:", extra)


def _incomplete(folder: Folder, component: str, verb: str, names: list[str]) -> RequestError:
    """The error that names the first of some tensors, and counts the others."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return folder.refused(f"{component} {verb} {ascii(names[0])[:120]}{more}", rule="incomplete-model")
