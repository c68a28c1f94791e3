"""Load what a rank runs of a Wan checkpoint, through diffusers' own loaders, and nothing else."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hybridgen.errors import RequestError
from hybridgen.plan import Plan

COMPONENTS = ("tokenizer", "text_encoder", "transformer", "transformer_2", "vae", "scheduler")


def local_folder(source: str) -> Path:
    """The checkpoint's folder on this machine; a hub id is downloaded to the hub's own cache if need be.

    Raises RequestError (model-unavailable) when it is neither here nor can be fetched.
    """
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = ["model_index.json", *(f"{name}/*" for name in COMPONENTS)]
    try:
        return Path(snapshot_download(source, allow_patterns=patterns))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise RequestError(
            "model-unavailable",
            f"--model {source} is not on this machine and cannot be fetched from the hub ({type(error).__name__})",
            why=str(error).strip().splitlines()[0] if str(error).strip() else "",
            tries=(f"hf download {source}", "hybridgen run --model /path/to/folder ..."),
        ) from error


def load_experts(plan: Plan, folder: Path) -> list[Any]:
    """The denoising transformers in host memory, in the order of the noise they serve (high first)."""
    from diffusers import WanTransformer3DModel

    dtype = getattr(torch, plan.dtype)
    names = ["transformer", "transformer_2"][: plan.facts.experts]
    return [WanTransformer3DModel.from_pretrained(folder, subfolder=name, dtype=dtype).eval() for name in names]


def load_scheduler(folder: Path) -> Any:
    """The scheduler that the checkpoint names."""
    import json

    import diffusers

    kind = json.loads((folder / "model_index.json").read_text())["scheduler"][1]
    return getattr(diffusers, kind).from_pretrained(folder, subfolder="scheduler")


def load_vae(folder: Path, device: torch.device) -> Any:
    """The autoencoder, in fp32 as its authors recommend."""
    from diffusers import AutoencoderKLWan

    return AutoencoderKLWan.from_pretrained(folder, subfolder="vae", dtype=torch.float32).to(device).eval()


class TextEncoder:
    """Tokenizer and text encoder, for as long as they are needed."""

    def __init__(self, plan: Plan, folder: Path, device: torch.device) -> None:
        from diffusers import WanPipeline

        dtype = getattr(torch, plan.dtype)
        rest = dict.fromkeys(("transformer", "transformer_2", "vae"))
        self.pipe = WanPipeline.from_pretrained(folder, dtype=dtype, **rest).to(device)
        self.plan, self.device, self.dtype = plan, device, dtype

    def encode(self, prompt: str, negative_prompt: str) -> Tensor:
        """Embeddings of the branches, [branches, 1, text tokens, text_dim] in the transformer's dtype."""
        plan = self.plan
        found = self.pipe.encode_prompt(
            prompt,
            negative_prompt,
            do_classifier_free_guidance=plan.branches == 2,
            max_sequence_length=plan.facts.text_tokens,
            device=self.device,
        )
        return torch.stack([e.to(self.dtype) for e in found[: plan.branches]])

    def free(self) -> None:
        del self.pipe
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
