"""Facts of a checkpoint folder in diffusers layout, from its JSON files and safetensors headers. No torch."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hybridgen.errors import RequestError
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
        image_positions=config.get("pos_embed_seq_len") or 0,
    )


def cosmos3_transformer(config: Config) -> TransformerFacts:
    """Cosmos3OmniTransformer."""
    patch, channels = config["latent_patch_size"], config["latent_channel"]
    return TransformerFacts(
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        width=config["hidden_size"],
        ffn=config["intermediate_size"],
        gated=config.get("hidden_act", "silu") == "silu",
        text_dim=config["hidden_size"],
        vocabulary=config["vocab_size"],
        biases=config["attention_bias"],
        in_channels=channels,
        out_channels=channels,
        patch=(1, patch, patch),
        cross_attention=False,
        text_stream="own",
        head_norm=True,
        max_positions=2**20,
    )


def cosmos3_model(index: Config) -> Config:
    """What model_index.json of Cosmos3OmniPipeline says, as fields of ModelFacts.

    A video's text is a chat of so many tokens with a short prompt; it differs from prompt to prompt.
    """
    return {
        "image": "may",
        "encodes": "first",
        "pads": True,
        "guided_below_1": True,
        "text_tokens": 300,
        "native_flow": bool(index.get("use_native_flow_schedule")),
        "guarded": bool(index.get("enable_safety_checker", True)),
    }


PIPELINES: dict[str, Callable[[Config], TransformerFacts]] = {
    "WanPipeline": wan_transformer,
    "Cosmos3OmniPipeline": cosmos3_transformer,
    "WanImageToVideoPipeline": wan_transformer,
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
    if pipeline not in PIPELINES:
        raise RequestError(
            "unsupported-pipeline",
            f"--model {path} holds a {pipeline}; this version runs {', '.join(PIPELINES)} checkpoints",
        )
    scheduler = index["scheduler"][1]
    if scheduler not in SCHEDULERS:
        raise RequestError(
            "unsupported-scheduler",
            f"--model {path} steps with {scheduler}; this version knows {' and '.join(SCHEDULERS)}",
            "A scheduler must act on every number alone, since each rank steps its own part of the latents.",
        )
    transformer = PIPELINES[pipeline](folder.json("transformer/config.json"))
    if index.get("expand_timesteps"):
        transformer = replace(transformer, token_time=True)
    two_experts = index.get("transformer_2", [None])[0] is not None
    return ModelFacts(
        name=path.name,
        pipeline=pipeline,
        source=str(path),
        transformer=transformer,
        vae=vae_facts(folder.json("vae/config.json"), folder.params("vae")),
        experts=2 if two_experts else 1,
        boundary=index.get("boundary_ratio") if two_experts else None,
        text_params=folder.params("text_encoder"),
        defaults=RequestDefaults(width=832, height=480),
        origin=f"{path}",
        **(cosmos3_model(index) if pipeline == "Cosmos3OmniPipeline" else wan_pictures(folder, index)),
    )


def wan_pictures(folder: Folder, index: Config) -> Config:
    """What a Wan checkpoint does with pictures, as fields of ModelFacts.

    With expand_timesteps (Wan 2.2 5B) either pipeline runs it, with a picture or without. Otherwise the transformer
    may read an embedding of the picture: of the first and the last where it has positions for both, else of one.
    """
    if index.get("expand_timesteps"):
        return {"image": "may", "encodes": "first"}
    if index["_class_name"] != "WanImageToVideoPipeline":
        return {}
    config = folder.json("transformer/config.json")
    found: Config = {"image": "must", "encodes": "all"}
    if not config.get("image_dim"):
        return found | {"last_image": "may"}
    vision = folder.json("image_encoder/config.json")
    return found | {
        "last_image": "must" if config.get("pos_embed_seq_len") else "",
        "image_tokens": (vision["image_size"] // vision["patch_size"]) ** 2 + 1,
        "image_params": folder.params("image_encoder"),
    }


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
