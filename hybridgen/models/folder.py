"""Facts of a checkpoint folder in diffusers layout, from its JSON files and safetensors headers. No torch."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hybridgen.errors import RequestError
from hybridgen.models import cosmos_facts
from hybridgen.models.facts import ModelFacts, RequestDefaults, TransformerFacts, VaeFacts

SCHEDULERS = ("UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler")

Config = dict[str, Any]


def wan_transformer(config: Config) -> TransformerFacts:
    """WanTransformer3DModel."""
    return TransformerFacts(
        layers=config["num_layers"],
        heads=config["num_attention_heads"],
        head_dim=config["attention_head_dim"],
        ffn=config["ffn_dim"],
        text_dim=config["text_dim"],
        in_channels=config["in_channels"],
        out_channels=config["out_channels"],
        patch=_patch(config),
        freq_dim=config["freq_dim"],
        max_positions=config["rope_max_seq_len"],
        image_dim=config.get("image_dim") or 0,
    )


PIPELINES: dict[str, Callable[[Config], TransformerFacts]] = {
    "WanPipeline": wan_transformer,
    **{name: partial(cosmos_facts.transformer, pipeline=name) for name in cosmos_facts.TRAITS},
}
"""By diffusers' pipeline class, how the facts of its transformer are read."""


@dataclass(frozen=True)
class Folder:
    """A checkpoint folder."""

    path: Path

    def json(self, name: str) -> Config:
        """One of its files. Raises RequestError (unreadable-model)."""
        try:
            content = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RequestError(
                "unreadable-model",
                f"--model {self.path}: cannot read {name} ({type(error).__name__}); "
                "a folder in diffusers layout with model_index.json is needed",
            ) from error
        assert isinstance(content, dict)
        return content

    def params(self, component: str) -> int:
        """Parameters in the safetensors files of a component, from their headers."""
        total = 0
        for path in sorted((self.path / component).glob("*.safetensors")):
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(length))
            total += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
        return total


def from_folder(path: Path) -> ModelFacts:
    """Read a checkpoint. Raises RequestError: unreadable-model, unsupported-pipeline, unsupported-scheduler."""
    folder = Folder(path)
    index = folder.json("model_index.json")
    pipeline = str(index.get("_class_name"))
    if pipeline in cosmos_facts.NOT_RUN:
        reason = cosmos_facts.NOT_RUN[pipeline]
        raise RequestError("unsupported-pipeline", f"--model {path} holds a {pipeline}, which cannot be run: {reason}")
    if pipeline not in PIPELINES or index.get("expand_timesteps"):
        kind = f"{pipeline} with expand_timesteps" if index.get("expand_timesteps") else pipeline
        raise RequestError(
            "unsupported-pipeline",
            f"--model {path} holds a {kind}; this version runs {', '.join(PIPELINES)} checkpoints",
        )
    scheduler = index["scheduler"][1]
    if scheduler not in SCHEDULERS:
        raise RequestError(
            "unsupported-scheduler",
            f"--model {path} steps with {scheduler}; this version knows {' and '.join(SCHEDULERS)}",
            "A scheduler must act on every number alone, since each rank steps its own part of the latents.",
        )
    two_experts = index.get("transformer_2", [None])[0] is not None
    transformer = PIPELINES[pipeline](folder.json("transformer/config.json"))
    if pipeline in cosmos_facts.TRAITS:
        transformer = replace(transformer, given_params=folder.params("transformer"))
    traits: Config = {"defaults": RequestDefaults(width=832, height=480), **cosmos_facts.TRAITS.get(pipeline, {})}
    return ModelFacts(
        name=path.name,
        pipeline=pipeline,
        source=str(path),
        transformer=transformer,
        vae=vae_facts(folder.json("vae/config.json"), folder.params("vae")),
        experts=2 if two_experts else 1,
        boundary=index.get("boundary_ratio") if two_experts else None,
        text_params=folder.params("text_encoder"),
        guarded=cosmos_facts.guarded(pipeline, index),
        origin=f"{path}",
        **traits,
    )


def vae_facts(config: Config, params: int) -> VaeFacts:
    """AutoencoderKLWan."""
    return VaeFacts(
        base_dim=config.get("decoder_base_dim") or config["base_dim"],
        encoder_base_dim=config["base_dim"],
        dim_mult=tuple(config["dim_mult"]),
        res_blocks=config["num_res_blocks"],
        latent_channels=config["z_dim"],
        stride_space=config.get("scale_factor_spatial", 8),
        stride_time=config.get("scale_factor_temporal", 4),
        params=params,
        time_upsample=tuple(reversed(config["temperal_downsample"])),
        residual=bool(config.get("is_residual")),
        patch=config.get("patch_size") or 1,
    )


def _patch(config: Config) -> tuple[int, int, int]:
    patch = config["patch_size"]
    return patch[0], patch[1], patch[2]
