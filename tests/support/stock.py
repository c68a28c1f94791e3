"""diffusers' own pipelines on a checkpoint in a folder: what they make of a request, in this process."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import diffusers
import numpy as np
import torch
import torch.nn.functional as F
from diffusers.models.transformers import transformer_cosmos
from diffusers.pipelines.cosmos import pipeline_cosmos2_5_predict
from diffusers.utils import load_image
from PIL import Image
from torch import Tensor


class NoSafetyChecker:
    """In place of Cosmos' guardrail, a download of its own: random test models are let through."""

    def to(self, *_: Any) -> NoSafetyChecker:
        return self

    def check_text_safety(self, prompt: str) -> bool:
        return True

    def check_video_safety(self, frames: Any) -> Any:
        return frames


def _resize(x: Tensor, size: list[int], interpolation: str) -> Tensor:
    return F.interpolate(x, size=size, mode=interpolation)


def _to_tensor(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous().to(torch.float32).div(255)


TORCHVISION = SimpleNamespace(
    functional=SimpleNamespace(resize=_resize, to_tensor=_to_tensor),
    InterpolationMode=SimpleNamespace(NEAREST="nearest"),
)
PLACES = (
    (transformer_cosmos, "transforms", TORCHVISION),
    (pipeline_cosmos2_5_predict, "torchvision", SimpleNamespace(transforms=TORCHVISION)),
)
"""Where the stock Cosmos code calls torchvision: module, name, what stands there."""


@contextmanager
def torchvision_calls() -> Iterator[None]:
    """The stock Cosmos code resizes a mask and reads a picture with torchvision: a stand-in for the two calls."""
    missing = [place for place in PLACES if not hasattr(place[0], place[1])]
    for module, name, stand_in in missing:
        setattr(module, name, stand_in)
    try:
        yield
    finally:
        for module, name, _ in missing:
            delattr(module, name)


def load(folder: Path, dtype: torch.dtype = torch.float32, pictures: bool = False) -> Any:
    """The pipeline that the folder names; Cosmos without its guardrail, autoencoder and image encoder in fp32.

    `pictures`: to run from pictures, for which Wan's 5B has a pipeline that the folder does not name.
    """
    index = json.loads((folder / "model_index.json").read_text())
    name = index["_class_name"]
    kind = getattr(diffusers, "WanImageToVideoPipeline" if pictures and name == "WanPipeline" else name)
    checked = "safety_checker" in inspect.signature(kind).parameters and index.get("enable_safety_checker", True)
    dtypes = {"default": dtype, "vae": torch.float32, "image_encoder": torch.float32}
    pipe = kind.from_pretrained(folder, dtype=dtypes, **({"safety_checker": NoSafetyChecker()} if checked else {}))
    pipe.set_progress_bar_config(disable=True)
    return pipe


def run(pipe: Any, prompt: str, seed: int = 0, **request: Any) -> Tensor:
    """What its __call__ gives for a 64x64 request, by default latents [1, C, T, H, W].

    `request` are further arguments; num_frames and fps are left out where a pipeline does not know them.
    """
    given = {"width": 64, "height": 64, "num_frames": 5, "num_inference_steps": 2, "output_type": "latent", **request}
    known = inspect.signature(pipe.__call__).parameters
    for name in {"num_frames", "fps"} - known.keys():
        given.pop(name, None)
    with torchvision_calls():
        found = pipe(prompt=prompt, generator=torch.Generator().manual_seed(seed), **given)
    return torch.as_tensor(next(found[name] for name in ("frames", "images", "video") if name in found))


def picture(seed: int, width: int = 64, height: int = 64) -> Image.Image:
    """Smooth random colors, as a first or last frame."""
    coarse = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    pixels = F.interpolate(coarse, size=(height, width), mode="bilinear")[0]
    return Image.fromarray((pixels * 255).byte().permute(1, 2, 0).numpy())


def opened(path: Path) -> Image.Image:
    """A picture from its file."""
    image: Image.Image = load_image(str(path))
    return image
