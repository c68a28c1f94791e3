"""Facts of a checkpoint folder in diffusers layout, from its JSON files and safetensors headers. No torch."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Protocol

from hybridgen.errors import RequestError
from hybridgen.models.cosmos import facts as cosmos_facts
from hybridgen.models.cosmos3 import facts as cosmos3_facts
from hybridgen.models.files import Config, Folder
from hybridgen.models.wan import facts as wan_facts
from hybridgen.plan.facts import ModelFacts, TransformerFacts, VaeFacts

SCHEDULERS = ("UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler")


class Reader(Protocol):
    """What a family's module of facts provides; `index` is the content of model_index.json."""

    def transformer(self, folder: Folder, index: Config) -> TransformerFacts: ...

    def model(self, folder: Folder, index: Config) -> Config:
        """Further fields of ModelFacts, its defaults among them."""


PIPELINES: dict[str, Reader] = {
    "WanPipeline": wan_facts,
    "WanImageToVideoPipeline": wan_facts,
    **dict.fromkeys(cosmos_facts.TRAITS, cosmos_facts),
    "Cosmos3OmniPipeline": cosmos3_facts,
}
"""By diffusers' pipeline class, the module that reads its facts."""


def from_folder(path: Path) -> ModelFacts:
    """Read a checkpoint. Raises RequestError: unreadable-model, unsupported-pipeline, unsupported-scheduler."""
    try:
        return _read(Folder(path))
    except RequestError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, OSError, struct.error) as error:
        raise RequestError.told(
            "unreadable-model",
            f"--model {path}: its files do not hold what they should ({type(error).__name__}: {error})",
        ) from error


def _read(folder: Folder) -> ModelFacts:
    path = folder.path
    index = folder.json("model_index.json")
    pipeline = str(index.get("_class_name"))
    if pipeline in cosmos_facts.NOT_RUN:
        reason = cosmos_facts.NOT_RUN[pipeline]
        raise RequestError.told(
            "unsupported-pipeline", f"--model {path} holds a {pipeline}, which cannot be run: {reason}"
        )
    if pipeline not in PIPELINES:
        raise RequestError.told(
            "unsupported-pipeline",
            f"--model {path} holds a {pipeline}; this version runs {', '.join(PIPELINES)} checkpoints",
        )
    scheduler = index["scheduler"][1]
    if scheduler not in SCHEDULERS:
        raise RequestError.told(
            "unsupported-scheduler",
            f"--model {path} steps with {scheduler}; this version knows {' and '.join(SCHEDULERS)}",
            "A scheduler must act on every number alone, since each rank steps its own part of the latents.",
        )
    two_experts = index.get("transformer_2", [None])[0] is not None
    return ModelFacts(
        name=path.name,
        pipeline=pipeline,
        source=str(path),
        transformer=PIPELINES[pipeline].transformer(folder, index),
        vae=vae_facts(folder.json("vae/config.json"), folder.params("vae")),
        experts=2 if two_experts else 1,
        boundary=index.get("boundary_ratio") if two_experts else None,
        text_params=folder.params("text_encoder"),
        origin=f"{path}",
        **PIPELINES[pipeline].model(folder, index),
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
