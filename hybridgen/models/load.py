"""Load what a rank runs of a checkpoint, through diffusers' own loaders, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hybridgen.errors import RequestError
from hybridgen.models.autoencoder import Autoencoder
from hybridgen.models.checkpoint import from_folder, shape_of
from hybridgen.models.registry import family_of
from hybridgen.plan.facts import ModelFacts
from hybridgen.plan.plan import Plan

EXPERTS = ("transformer", "transformer_2")
TESTED = "0.42.1"
"""The version of diffusers that the tests ran with; tests/support/seams.py lists the names that must be there."""


def local_folder(facts: ModelFacts) -> Path:
    """The checkpoint's folder on this machine; a hub id is downloaded to the hub's cache if it is not there.

    Raises RequestError: model-unavailable when it is neither here nor can be fetched, and what
    checkpoint.from_folder() finds wrong with what was fetched.
    """
    source = Path(facts.source)
    if source.is_absolute():
        return source  # it was looked at when its facts were read
    folder = _fetched(facts)
    _look_at(folder, facts)
    return folder


def _fetched(facts: ModelFacts) -> Path:
    """The folder in the hub's cache of a model with a hub id. Raises RequestError (model-unavailable)."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    source = facts.source
    patterns = [f"{name}/*" for name in ("scheduler", *family_of(facts).components)]
    try:
        return Path(snapshot_download(source, revision=facts.revision, allow_patterns=["model_index.json", *patterns]))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        said = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
        problem = f"it is not on this machine and cannot be fetched from the hub ({said})"
        commit = f" --revision {facts.revision}" if facts.revision else ""
        tries = [f"hf download {source}{commit}", "hybridgen run --model /path/to/folder ..."]
        raise RequestError("model-unavailable", "model", source, problem, tries=tries) from error


@lru_cache(maxsize=8)
def _look_at(folder: Path, facts: ModelFacts) -> None:
    """Look once at a checkpoint that was fetched. Raises RequestError where it is not what its name is known for."""
    found = from_folder(folder)
    if shape_of(found) != shape_of(facts):
        problem = f"what was fetched to {folder} has another shape than {facts.name} is known to have"
        raise RequestError("unreadable-model", "model", facts.source, problem, tries=[{"model": str(folder)}])


def empty_experts(plan: Plan, folder: Path) -> list[Any]:
    """The denoising transformers without weights, in the order of the noise they serve (high first).

    Raises RequestError (diffusers-changed).
    """
    import diffusers
    from accelerate import init_empty_weights

    check_diffusers()
    prune = family_of(plan.facts).denoiser(plan.facts).prune
    experts = []
    for name in EXPERTS[: plan.facts.experts]:
        config = json.loads((folder / name / "config.json").read_text(encoding="utf-8"))
        with init_empty_weights():  # buffers, such as rope tables, are made
            expert = getattr(diffusers, config["_class_name"]).from_config(config).eval()
        expert.set_attention_backend("native")  # whatever DIFFUSERS_ATTN_BACKEND says
        prune(expert)
        experts.append(expert)
    return experts


def check_diffusers() -> None:
    """Raise RequestError (diffusers-changed) for another minor version than the tested one."""
    import diffusers

    if diffusers.__version__.split(".")[:2] != TESTED.split(".")[:2]:
        problem = f"diffusers {diffusers.__version__} is installed, and hybridgen builds on private names of {TESTED}"
        raise RequestError("diffusers-changed", "", None, problem, tries=[f"pip install diffusers=={TESTED}"])


class Part(NamedTuple):
    """The part of a tensor of the checkpoint that a rank keeps: `size` rows of `dim`, from `start`."""

    dim: int
    start: int
    size: int


class PartParameter(nn.Parameter):
    """A parameter that is part of the checkpoint's tensor; it remembers which part, for fill()."""

    part: Part | None = None


def take_slice(parameter: Tensor, dim: int, index: int, count: int) -> nn.Parameter:
    """One of `count` equal slices along `dim`."""
    size = parameter.shape[dim] // count
    part = Part(dim, index * size, size)
    kept = PartParameter(parameter.detach().narrow(*part).clone(), requires_grad=False)
    kept.part = part
    return kept


def fill(
    experts: list[Any], plan: Plan, folder: Path, device: torch.device, wanted: Callable[[str], bool] = lambda key: True
) -> None:
    """Read the weights that are left in the transformers straight to the device; of cut ones only the slice.

    Only parameters with wanted names are read. They get the dtypes that from_pretrained gives them: the plan's, but
    fp32 where the class keeps that.
    """
    from accelerate.utils import set_module_tensor_to_device

    dtype = getattr(torch, plan.dtype)
    for name, expert in zip(EXPERTS, experts, strict=False):
        with _Weights(folder / name) as weights:
            for key, parameter in list(expert.named_parameters()):
                if not parameter.is_meta or not wanted(key):
                    continue
                kept = any(part in key.split(".") for part in expert._keep_in_fp32_modules or ())
                # A copy: what is read on a CPU is the mapped file itself, which step by step would come off the disk.
                part = parameter.part if isinstance(parameter, PartParameter) else None
                value = weights.read(key, part)
                value = value.to(device, torch.float32 if kept else dtype, copy=True)
                set_module_tensor_to_device(expert, key, device, value=value, dtype=value.dtype)
        expert.requires_grad_(False)
        if not any(parameter.is_meta for parameter in expert.parameters()):
            expert.to(device)  # buffers


class _Weights:
    """The safetensors files of one component, one or several with an index; nothing is read before it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stack, self.open_files = folder, ExitStack(), dict[str, Any]()
        index = folder / "diffusion_pytorch_model.safetensors.index.json"
        self.where: dict[str, str] = json.loads(index.read_text())["weight_map"] if index.exists() else {}

    def __enter__(self) -> _Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def read(self, key: str, part: Part | None) -> Tensor:
        """A tensor, or a part of it."""
        from safetensors import safe_open

        file = self.where.get(key, "diffusion_pytorch_model.safetensors")
        if file not in self.open_files:
            self.open_files[file] = self.stack.enter_context(safe_open(self.folder / file, "pt"))
        if part is None:
            return self.open_files[file].get_tensor(key)  # type: ignore[no-any-return]
        whole, rows = self.open_files[file].get_slice(key), slice(part.start, part.start + part.size)
        return whole[rows] if part.dim == 0 else whole[:, rows]  # type: ignore[no-any-return]


def load_scheduler(folder: Path) -> Any:
    """The checkpoint's scheduler."""
    import diffusers

    kind = json.loads((folder / "model_index.json").read_text())["scheduler"][1]
    return getattr(diffusers, kind).from_pretrained(folder, subfolder="scheduler")


def load_autoencoder(facts: ModelFacts, folder: Path, device: torch.device) -> Autoencoder:
    """The autoencoder, in fp32 as its authors recommend."""
    autoencoder = family_of(facts).autoencoder(facts).load(folder, device)
    for parameter in autoencoder.module.parameters() if device.type == "cpu" else ():
        parameter.data = parameter.data.clone()  # as in fill()
    return autoencoder
