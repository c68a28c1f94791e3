"""A configuration file of TensorRT-LLM VisualGen, of either generation of keys, as a recipe. No torch.

Current keys: parallel_config{cfg_size}, attention_config. Older ones: parallel{dit_cfg_size}, attention. Settings that
change the clip or the speed there and have no counterpart here are named in the warnings and in the recipe's notes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from hybridgen.errors import RequestError, did_you_mean
from hybridgen.interop.trtllm import BACKENDS, DEGREES
from hybridgen.models import catalogue
from hybridgen.recipe import source
from hybridgen.recipe.fields import WRITTEN, Checkpoint, Parallel, Recipe, Request, Runtime
from hybridgen.recipe.source import Source
from hybridgen.recipe.typed import Keys, dotted, shown
from hybridgen.strategies.registry import AXES, Degrees

FILE = source.Kind("", "parallel_config or parallel", "import-unreadable", "import-key", "import-value")
SECTIONS = {
    "parallel": "parallel_config",
    "attention": "attention_config",
    "compilation": "compilation_config",
    "torch_compile": "torch_compile_config",
    "cuda_graph": "cuda_graph_config",
    "pipeline": "pipeline_config",
    "teacache": "cache_config",
    "cache": "cache_config",
    "checkpoint_path": "model",
}
"""Older names of top-level sections, and the current ones."""
TOP = {
    *SECTIONS.values(),
    "revision",
    "quant_config",
    "cpu_offload_config",
    "runtime_lora_config",
    "enable_layerwise_nvtx_marker",
}
OLDER_TOP = {"dtype", "device", "linear", "skip_warmup", "skip_components", "text_encoder_path"}
OTHER_PARALLEL = {
    "attn2d_size",
    "attn2d_row_size",
    "attn2d_col_size",
    "enable_parallel_vae",
    "async_ulysses",
    "parallel_vae_split_dim",
    "dim_order",
}
FOREIGN = ("dp_size", "fsdp_size", "cp_size", "refiner_", "t5_fsdp_size")
"""Splits that hybridgen does not have (names or beginnings); refused unless they are 1."""
KERNELS = {there: here for here, there in BACKENDS.items()}
ORDER = {"cp": [axis for axis in AXES if Degrees.axes[axis].divides == "keys"]}
"""Parts of TensorRT-LLM's dim_order with other names here."""
SPLITS = re.compile("size|degree|parallel")
"""Parts of the names of keys that split the work."""
SWITCHES = ("enable", "enable_cuda_graph", "enable_torch_compile")


@dataclass
class Compilation:
    """Shapes that are warmed up: rows and columns of pixels, and frames."""

    resolutions: Optional[list[tuple[int, int]]] = None
    num_frames: Optional[list[int]] = None


@dataclass
class Read:
    """The types of what is read, under the names of either generation. Other keys may hold anything."""

    model: Optional[str] = None
    checkpoint_path: Optional[str] = None
    revision: Optional[str] = None
    dtype: Optional[str] = None
    skip_components: Optional[list[str]] = None
    compilation: Optional[Compilation] = None
    compilation_config: Optional[Compilation] = None


def load(file: Path, model: str | None = None, strict: bool = False) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe that a file describes, and what was left out.

    `model` names the checkpoint where the file does not (there it is given on the command line). Keys that neither
    generation has are left out, unless they name a split or `strict` is set. Raises
    RequestError: import-unreadable, import-key, import-value, import-model, import-foreign.
    """
    given = source.read(file, FILE)
    content, unknown = _sections(given, strict)
    given.as_(Read)
    name = model or content.get("model")
    if not name:
        raise RequestError(
            "import-model", "", file, "does not name a model", "--model NAME", [{"model": catalogue.DEFAULT_MODEL}]
        )
    parallel, left_out = _parallel(given)
    request, more = _request(content.get("compilation_config") or {})
    backend = str((content.get("attention_config") or {}).get("backend", "")).upper()
    left_out += [*more, *_left_out(content, backend), *unknown]
    facts, revision = catalogue.find(str(name)), None if model else content.get("revision")
    if revision is not None and not re.fullmatch("[0-9a-f]{40}", revision):
        left_out += [f"revision {revision}, which is not a commit of 40 hex digits"] * (revision != facts.revision)
        revision = None
    recipe = Recipe(
        license=WRITTEN,
        model=str(name),
        checkpoint=Checkpoint(revision=revision),
        request=request,
        parallel=parallel,
        runtime=Runtime(dtype=content.get("dtype", "bfloat16"), attention=KERNELS.get(backend)),
    )
    frames, stride = request.frames, facts.vae.stride_time
    if frames and frames % stride == 0:
        request.frames = frames - stride + 1
        left_out.append(f"{frames} frames are {request.frames} here: as many latent frames")
    notes = "Imported from a configuration of TensorRT-LLM VisualGen."
    notes += f" Left out or changed: {'; '.join(left_out)}." if left_out else ""
    return replace(recipe, notes=notes), tuple(left_out)


def _sections(given: Source, strict: bool) -> tuple[dict[str, Any], list[str]]:
    """Top-level sections under their current names, and the keys that are left out. Raises RequestError."""
    found = given.content
    left_out = _unknown(found, {*SECTIONS, *TOP, *OLDER_TOP}, (), given, strict)
    for name, value in found.items():
        if SECTIONS.get(name, name).endswith("_config") and not isinstance(value or {}, dict):
            raise given.fault((name,), "must hold keys of its own", shown(value))
    known = {*DEGREES, *OTHER_PARALLEL}
    known |= {f"dit_{name}" for name in known}
    for section in sorted({"parallel", "parallel_config"} & found.keys()):
        held = {name: value for name, value in (found[section] or {}).items() if not _is_foreign(name)}
        left_out += _unknown(held, known, (section,), given, strict)
    return {SECTIONS.get(name, name): value for name, value in found.items()}, left_out


def _is_foreign(name: str) -> bool:
    return name.removeprefix("dit_").startswith(FOREIGN)


def _unknown(held: dict[str, Any], known: set[str], above: Keys, given: Source, strict: bool) -> list[str]:
    """Keys that neither generation has, in words: a newer version may have them.

    Raises RequestError (import-key) for one that looks like a typing error or splits the work, and for any if `strict`.
    """
    left_out = []
    for name, value in held.items():
        if name in known:
            continue
        near = did_you_mean(name, sorted(known), cutoff=0.6 if strict else 0.8)
        if strict or near or (SPLITS.search(name) and value not in (1, None, False)):
            near = near or did_you_mean(name, sorted(known))
            raise given.fault((*above, name), "is not a key of VisualGen, old or new", None, near, "import-key")
        left_out.append(f"the key {dotted((*above, name))}, which is not known here")
    return left_out


def _parallel(file: Source) -> tuple[Parallel, list[str]]:
    """Degrees under the names of either generation, and what was left out."""
    section = next((name for name in ("parallel_config", "parallel") if file.content.get(name)), "")
    given = file.content.get(section) or {}
    for name, value in given.items():
        if _is_foreign(name) and value != 1:
            problem = "is a split that hybridgen does not have"
            raise file.fault((section, name), problem, shown(value), [1], "import-foreign")
    keys = {name.removeprefix("dit_"): (section, name) for name in given if not _is_foreign(name)}
    own = {name: given[key] for name, (_, key) in keys.items()}
    sizes = {here: _whole(own[there], keys[there], file) for there, here in DEGREES.items() if there in own}
    degrees = Degrees(**sizes, attn2d=_grid(own, keys, file))
    if own.get("enable_parallel_vae"):
        degrees = degrees.changed(vae=degrees.world)
    parallel = Parallel(order=_order(own.get("dim_order")), **degrees.fields())
    return parallel, ["async_ulysses (overlap of exchange and projection)"] if own.get("async_ulysses") else []


def _grid(own: dict[str, Any], keys: dict[str, tuple[str, str]], file: Source) -> tuple[int, int]:
    pair = own.get("attn2d_size", [own.get("attn2d_row_size", 1), own.get("attn2d_col_size", 1)])
    key = next((keys[name] for name in keys if name.startswith("attn2d")), ())
    if not isinstance(pair, list) or len(pair) != 2:
        raise file.fault(key, "must be [rows, columns]", shown(pair))
    return _whole(pair[0], key, file), _whole(pair[1], key, file)


def _whole(value: Any, key: tuple[str, ...], file: Source) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise file.fault(key, "must be a whole number above 0", shown(value))
    return value


def _order(text: str | None) -> list[str] | None:
    """Read "cfg-tp-cp-ulysses" as ["cfg", "tp", "ring", "row", "col", "ulysses"], in the same order."""
    if text in (None, "cfg-tp-cp-ulysses"):
        return None
    return [axis for part in str(text).split("-") for axis in ORDER.get(part, [part])]


def _request(given: dict[str, Any]) -> tuple[Request, list[str]]:
    """Size and frames of the request, if exactly one shape is warmed up."""
    sizes, frames = given.get("resolutions") or [], given.get("num_frames") or []
    several = [f"{len(found)} {what}" for what, found in (("sizes", sizes), ("lengths", frames)) if len(found) > 1]
    request = Request(
        size=f"{sizes[0][1]}x{sizes[0][0]}" if len(sizes) == 1 else None,
        frames=frames[0] if len(frames) == 1 else None,
    )
    return request, [f"{' and '.join(several)} to warm up for"] if several else []


def _left_out(content: dict[str, Any], backend: str) -> list[str]:
    """Settings that change the clip or the speed there and have no counterpart here."""
    quant, cache = content.get("quant_config") or {}, content.get("cache_config") or {}
    attention = content.get("attention_config") or {}
    linear, device = content.get("linear") or {}, str(content.get("device") or "cuda")
    layers = linear.get("type", "default") if isinstance(linear, dict) else linear
    skipped = content.get("skip_components") or []
    caches = cache.get("cache_backend") or ("teacache" if cache.get("enable_teacache") else None)
    changes = {
        f"quantisation ({quant.get('quant_algo')}); here it runs in bfloat16": quant.get("quant_algo"),
        f"linear layers of type {layers}; here they are the checkpoint's own": layers not in ("default", None),
        f"the device {device}; here it is the machine's own": not device.startswith("cuda"),
        f"skipped components ({', '.join(map(str, skipped))}); all are loaded here": skipped,
        "a text encoder of its own; the checkpoint's is used here": content.get("text_encoder_path"),
        f"step cache ({caches}); every step is computed here": caches,
        "sparse attention; all keys are attended to here": attention.get("sparse_attention_config"),
        "quantised attention": attention.get("quant_attention_config") or attention.get("sage_attention_config"),
        f"the kernel {backend}; one is chosen here": backend not in ("", *KERNELS),
        "offloading; nothing is offloaded here": _enabled(content.get("cpu_offload_config")),
        "a LoRA adapter, which changes the clip": content.get("runtime_lora_config"),
        "pipeline settings": content.get("pipeline_config"),
        "CUDA graphs": _enabled(content.get("cuda_graph_config")),
        "torch.compile": _enabled(content.get("torch_compile_config")),
    }
    return [change for change, is_set in changes.items() if is_set]


def _enabled(section: dict[str, Any] | None) -> bool:
    """Whether a section switches something on: `enable` now, `enable_cuda_graph` before."""
    return any(value for name, value in (section or {}).items() if name in SWITCHES)
