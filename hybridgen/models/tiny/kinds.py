"""The description of a tiny checkpoint; each family has a list of its own. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hybridgen.plan.facts import RequestDefaults

Config = dict[str, Any]
TEXT_WIDTH = 32
IMAGE_WIDTH = 32
IMAGE_TOKENS = 17
"""Tokens of one image for the image encoder: 4 x 4 patches and the class token."""
QWEN_LAYERS = 2
QWEN_WIDTH = 16
DEFAULTS = RequestDefaults(width=64, height=64, frames=17, steps=4, guidance=4.0, fps=8, dtype="float32")


@dataclass(frozen=True)
class Kind:
    """One kind of checkpoint."""

    name: str
    pipeline: str
    """diffusers' pipeline class."""
    transformer: Callable[..., Config]
    fields: Config = field(default_factory=dict)
    """Arguments of the function above."""
    experts: int = 1
    text: str = "umt5"
    """Text encoder: umt5, t5, qwen2.5-vl, or "" where token ids go into the transformer."""
    image_encoder: bool = False
    vae: Config = field(default_factory=dict)
    """Configuration of the autoencoder."""
    scheduler: Config = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    """Optional components of the pipeline; model_index.json lists those that this kind lacks as absent."""
    index: Config = field(default_factory=dict)
    """Entries of model_index.json besides the components."""
    defaults: RequestDefaults = DEFAULTS


def unipc(**more: Any) -> Config:
    """Configuration of UniPC for flow matching."""
    flow = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
    return {"_class_name": "UniPCMultistepScheduler", **flow, **more}
