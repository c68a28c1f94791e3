"""Load what a rank runs of a checkpoint, through diffusers' own loaders, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hybridgen.errors import RequestError
from hybridgen.models import seams
from hybridgen.models.registry import denoiser
from hybridgen.plan.facts import ModelFacts
from hybridgen.plan.plan import Plan

EXPERTS = ("transformer", "transformer_2")
COMPONENTS = (
    *EXPERTS,
    "tokenizer",
    "text_tokenizer",
    "text_encoder",
    "image_encoder",
    "image_processor",
    "vae",
    "scheduler",
)


def local_folder(facts: ModelFacts) -> Path:
    """The checkpoint's folder on this machine; a hub id is downloaded to the hub's own cache if need be.

    Raises RequestError (model-unavailable) when it is neither here nor can be fetched.
    """
    source = facts.source
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = ["model_index.json", *(f"{name}/*" for name in COMPONENTS)]
    try:
        return Path(snapshot_download(source, revision=facts.revision, allow_patterns=patterns))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise RequestError.told(
            "model-unavailable",
            f"--model {source} is not on this machine and cannot be fetched from the hub ({type(error).__name__})",
            why=str(error).strip().splitlines()[0] if str(error).strip() else "",
            tries=(
                f"hf download {source}{f' --revision {facts.revision}' if facts.revision else ''}",
                "hybridgen run --model /path/to/folder ...",
            ),
        ) from error


def empty_experts(plan: Plan, folder: Path) -> list[Any]:
    """The denoising transformers without weights, in the order of the noise they serve (high first).

    Raises RequestError (diffusers-changed).
    """
    import diffusers
    from accelerate import init_empty_weights

    experts = []
    for name in EXPERTS[: plan.facts.experts]:
        config = json.loads((folder / name / "config.json").read_text(encoding="utf-8"))
        with init_empty_weights():  # buffers, such as rope tables, are made
            expert = getattr(diffusers, config["_class_name"]).from_config(config).eval()
        seams.check(plan.facts.pipeline, expert)
        expert.set_attention_backend("native")  # whatever DIFFUSERS_ATTN_BACKEND says
        denoiser(plan.facts).prune(expert)
        experts.append(expert)
    return experts


def take_slice(parameter: Tensor, dim: int, index: int, count: int) -> nn.Parameter:
    """One of `count` equal slices along `dim`; without weights it remembers which, for fill()."""
    size = parameter.shape[dim] // count
    part = nn.Parameter(parameter.detach().narrow(dim, index * size, size).clone(), requires_grad=False)
    part.slice = (dim, index * size, size)  # type: ignore[attr-defined]
    return part


def fill(
    experts: list[Any], plan: Plan, folder: Path, device: torch.device, wanted: Callable[[str], bool] = lambda key: True
) -> None:
    """Read the weights that are left in the transformers, and of cut ones only the slice, straight to the device.

    Those whose names are not wanted wait for another call. Numbers get the dtypes that from_pretrained gives them: the
    plan's, but fp32 where the class keeps that.
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
                value = weights.read(key, getattr(parameter, "slice", None))
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

    def read(self, key: str, part: tuple[int, int, int] | None) -> Tensor:
        """A tensor, or its slice (dim, start, size)."""
        from safetensors import safe_open

        file = self.where.get(key, "diffusion_pytorch_model.safetensors")
        if file not in self.open_files:
            self.open_files[file] = self.stack.enter_context(safe_open(self.folder / file, "pt"))
        if part is None:
            return self.open_files[file].get_tensor(key)  # type: ignore[no-any-return]
        dim, start, size = part
        whole = self.open_files[file].get_slice(key)
        return whole[start : start + size] if dim == 0 else whole[:, start : start + size]  # type: ignore[no-any-return]


def load_scheduler(folder: Path) -> Any:
    """The scheduler that the checkpoint names."""
    import diffusers

    kind = json.loads((folder / "model_index.json").read_text())["scheduler"][1]
    return getattr(diffusers, kind).from_pretrained(folder, subfolder="scheduler")


def load_vae(folder: Path, device: torch.device) -> Any:
    """The autoencoder, in fp32 as its authors recommend."""
    from diffusers import AutoencoderKLWan

    vae = AutoencoderKLWan.from_pretrained(folder, subfolder="vae", dtype=torch.float32).to(device).eval()
    for parameter in vae.parameters() if device.type == "cpu" else ():
        parameter.data = parameter.data.clone()  # as in fill()
    return vae
