"""Write a tiny checkpoint in diffusers' folder layout, offline; the same bytes every time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import diffusers

from hybridgen.models.registry import KINDS
from hybridgen.models.tiny import parts
from hybridgen.models.tiny.kinds import Kind


def build(name: str, folder: Path, **changes: Any) -> Path:
    """Write the checkpoint of this name (a key of KINDS) into a folder, which is made, and return it.

    `changes` are the transformer's: heads, head_dim, kv_heads (of cosmos3), layers, ffn, or any field of its
    configuration. Raises TypeError for a field that it does not have.
    """
    kind = KINDS[name]
    made = components(kind, changes)
    for part, component in made.items():
        component.save_pretrained(folder / part)
    absent = {part: [None, None] for part in kind.optional}
    index = {**absent, **kind.index, **{part: _origin(component) for part, component in made.items()}}
    first = {"_class_name": kind.pipeline, "_diffusers_version": diffusers.__version__}
    text = json.dumps(first | dict(sorted(index.items())), indent=2)
    (folder / "model_index.json").write_text(text + "\n", encoding="utf-8")
    return folder


def components(kind: Kind, changes: dict[str, Any]) -> dict[str, Any]:
    """All components by the names of their subfolders."""
    if kind.text in ("umt5", "t5"):
        tokenizer = parts.t5_tokenizer()
        made = {"tokenizer": tokenizer, "text_encoder": parts.t5_encoder(tokenizer, kind.text == "umt5")}
    elif kind.text:
        tokenizer = parts.qwen_tokenizer()
        made = {"tokenizer": tokenizer, "text_encoder": parts.qwen_encoder(tokenizer)}
    else:
        tokenizer = parts.qwen_tokenizer()
        made = {"text_tokenizer": tokenizer}
        changes = {"vocab_size": len(tokenizer), **changes}
    config = kind.transformer(**{**kind.fields, **changes})
    for seed, part in enumerate(("transformer", "transformer_2")[: kind.experts], start=1):
        made[part] = parts.from_config(config, seed)
    if kind.image_encoder:
        made |= {"image_encoder": parts.image_encoder(), "image_processor": parts.image_processor()}
    return made | {"vae": parts.autoencoder(kind.vae), "scheduler": parts.from_config(kind.scheduler)}


def _origin(component: Any) -> list[str]:
    """Library and class as model_index.json names them; without torchvision an image class has another name."""
    kind = type(component)
    return [kind.__module__.split(".")[0], kind.__name__.removesuffix("Pil")]


if __name__ == "__main__":
    build(sys.argv[1], Path(sys.argv[2]))
