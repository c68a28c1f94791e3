"""The models known by name, and how a name, hub id or folder becomes facts. No torch."""

from __future__ import annotations

import difflib
import json
import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from hybridgen.errors import RequestError
from hybridgen.models.facts import ModelFacts, RequestDefaults, TransformerFacts, VaeFacts
from hybridgen.models.tiny import cache
from hybridgen.models.tiny.kinds import KINDS

DEMO_FOLDER = Path(__file__).parent.parent / "demo" / "checkpoint"
SCHEDULERS = ("UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler")
DEFAULT_MODEL = "wan2.2-t2v-a14b"
TINY = "tiny:"
"""How the name of a tiny random checkpoint begins."""

WAN_14B = TransformerFacts(layers=40, heads=40, head_dim=128, ffn=13824, text_dim=4096)
WAN_1_3B = TransformerFacts(layers=30, heads=12, head_dim=128, ffn=8960, text_dim=4096)
WAN_ORIGIN = "configuration files of the checkpoint on the model hub"

# The Wan authors' recommended negative prompt is long and in Chinese; like diffusers, none is assumed.
MODELS = (
    ModelFacts(
        name="wan2.1-t2v-1.3b",
        family="wan",
        source="Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
        transformer=WAN_1_3B,
        defaults=RequestDefaults(width=832, height=480, steps=50),
        aliases=("wan2.1-1.3b",),
        licence="Apache-2.0",
        origin=WAN_ORIGIN,
    ),
    ModelFacts(
        name="wan2.1-t2v-14b",
        family="wan",
        source="Wan-AI/Wan2.1-T2V-14B-Diffusers",
        transformer=WAN_14B,
        defaults=RequestDefaults(steps=50),
        aliases=("wan2.1", "wan2.1-14b"),
        licence="Apache-2.0",
        origin=WAN_ORIGIN,
    ),
    ModelFacts(
        name="wan2.2-t2v-a14b",
        family="wan",
        source="Wan-AI/Wan2.2-T2V-A14B-Diffusers",
        transformer=WAN_14B,
        experts=2,
        boundary=0.875,
        defaults=RequestDefaults(guidance=4.0, guidance_2=3.0),
        aliases=("wan2.2", "wan2.2-a14b", "wan2.2-14b"),
        licence="Apache-2.0",
        origin=WAN_ORIGIN,
    ),
)

DEMO_DEFAULTS = RequestDefaults(
    width=64, height=64, frames=17, steps=20, guidance=3.0, fps=8, dtype="float32", example="a red circle moves right"
)


def names() -> list[str]:
    """Every name that --model understands, full names first."""
    aliases = (alias for m in MODELS for alias in m.aliases)
    return ["demo", *(m.name for m in MODELS), *aliases, *(TINY + name for name in KINDS)]


def find(name: str, revision: str | None = None) -> ModelFacts:
    """Facts of a model given by short name, hub id or local folder, at a commit of the hub if one is given.

    Raises RequestError: unknown-model, which lists what exists, or revision, where there is no hub. Never touches
    the network: an unknown hub id is looked for in the local hub cache only.
    """
    if revision is not None and (name == "demo" or name.startswith(TINY) or Path(name).is_dir()):
        raise RequestError(
            "revision",
            f"--revision {revision} is a commit of the hub, and --model {name} is a folder here",
            tries=[{"revision": None}],
        )
    if name == "demo":
        return replace(from_folder(DEMO_FOLDER), name="demo", defaults=DEMO_DEFAULTS, licence="Apache-2.0")
    if name.startswith(TINY):
        return _tiny(name)
    for model in MODELS:
        if name.lower() in (model.name, model.source.lower(), *model.aliases):
            return replace(model, revision=revision) if revision else model
    if Path(name).is_dir():
        return from_folder(Path(name))
    if name.count("/") == 1 and (cached := _cached_snapshot(name, revision)):
        return replace(from_folder(cached), name=name, source=name, revision=revision)
    close = difflib.get_close_matches(name, names(), n=2)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names()[:4])}"
    raise RequestError(
        "unknown-model",
        f"--model {name} is no known model, downloaded hub id, or folder in diffusers layout; {hint}",
        tries=(f"hybridgen run --model {close[0] if close else 'demo'} --dry-run",),
    )


def _tiny(name: str) -> ModelFacts:
    """A tiny checkpoint, built if it is not there yet."""
    kind = KINDS.get(name.removeprefix(TINY))
    if kind is None:
        known = [TINY + kind for kind in KINDS]
        raise RequestError(
            "unknown-model",
            f"--model {name} is no tiny checkpoint; there are {', '.join(known)}",
            tries=[{"model": (difflib.get_close_matches(name, known, n=1) or known)[0]}],
        )
    return replace(from_folder(cache.checkpoint(kind.name)), name=name, defaults=kind.defaults)


def _cached_snapshot(hub_id: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(hub_id, "model_index.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None


def from_folder(folder: Path) -> ModelFacts:
    """Read a checkpoint folder in diffusers layout: its JSON files and the headers of its safetensors."""
    index = _json(folder / "model_index.json", folder)
    if index.get("_class_name") != "WanPipeline" or index.get("expand_timesteps"):
        kind = "WanPipeline with expand_timesteps" if index.get("expand_timesteps") else index.get("_class_name")
        raise RequestError(
            "unsupported-pipeline",
            f"--model {folder} holds a {kind}; this version runs WanPipeline text-to-video checkpoints "
            "(Wan 2.1 1.3B and 14B, Wan 2.2 T2V A14B)",
        )
    scheduler = index["scheduler"][1]
    if scheduler not in SCHEDULERS:
        raise RequestError(
            "unsupported-scheduler",
            f"--model {folder} steps with {scheduler}; this version knows {' and '.join(SCHEDULERS)}",
            "A scheduler must act on every number alone, since each rank steps its own part of the latents.",
        )
    config = _json(folder / "transformer" / "config.json", folder)
    vae = _json(folder / "vae" / "config.json", folder)
    patch = config["patch_size"]
    two_experts = index.get("transformer_2", [None])[0] is not None
    return ModelFacts(
        name=folder.name,
        family="wan",
        source=str(folder),
        transformer=TransformerFacts(
            layers=config["num_layers"],
            heads=config["num_attention_heads"],
            head_dim=config["attention_head_dim"],
            ffn=config["ffn_dim"],
            text_dim=config["text_dim"],
            in_channels=config["in_channels"],
            out_channels=config["out_channels"],
            patch=(patch[0], patch[1], patch[2]),
            freq_dim=config["freq_dim"],
            max_positions=config["rope_max_seq_len"],
        ),
        vae=_vae_facts(vae, folder),
        experts=2 if two_experts else 1,
        boundary=index.get("boundary_ratio") if two_experts else None,
        text_params=_param_count(folder / "text_encoder"),
        defaults=RequestDefaults(width=832, height=480),
        origin=f"{folder}",
    )


def _vae_facts(config: dict[str, Any], folder: Path) -> VaeFacts:
    return VaeFacts(
        base_dim=config.get("decoder_base_dim") or config["base_dim"],
        dim_mult=tuple(config["dim_mult"]),
        res_blocks=config["num_res_blocks"],
        latent_channels=config["z_dim"],
        stride_space=config.get("scale_factor_spatial", 8),
        stride_time=config.get("scale_factor_temporal", 4),
        params=_param_count(folder / "vae"),
        time_upsample=tuple(reversed(config["temperal_downsample"])),
        residual=bool(config.get("is_residual")),
        patch=config.get("patch_size") or 1,
    )


def _json(path: Path, folder: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(
            "unreadable-model",
            f"--model {folder}: cannot read {path.relative_to(folder)} ({type(error).__name__}); "
            "a folder in diffusers layout with model_index.json is needed",
        ) from error
    assert isinstance(content, dict)
    return content


def _param_count(folder: Path) -> int:
    """Parameters in the safetensors files of a component, from their headers."""
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                total += math.prod(entry["shape"])
    return total
