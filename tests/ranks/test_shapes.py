"""The names and shapes that the look at a checkpoint expects are those of the classes that load it."""

from __future__ import annotations

import inspect
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridgen.errors import RequestError
from hybridgen.models import catalogue
from hybridgen.models.checkpoint import from_folder
from hybridgen.models.files import Folder
from hybridgen.models.keys import checked
from hybridgen.models.parts import FUNCTIONS, Part
from hybridgen.models.registry import BY_PIPELINE, KINDS
from hybridgen.models.tiny.build import components
from tests.support import stored
from tests.support.checkpoints import Case

CHANGES: dict[str, list[dict[str, Any]]] = {
    "wan2.1-t2v": [{"cross_attn_norm": False}],
    "cosmos3": [{"qk_norm_for_text": False, "use_und_k_norm_for_gen": True}, {"hidden_act": "relu2"}],
}
"""Fields of transformers that change their tensors, and that no tiny checkpoint has."""


def part_of(kind: str, name: str, component: Any) -> Part:
    """The part that a component of a tiny checkpoint is."""
    parts = BY_PIPELINE[KINDS[kind].pipeline].parts(KINDS[kind].pipeline)[name]
    return next(part for part in parts if type(component).__name__ in part.classes)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_expected_is_what_the_classes_have(kind: str) -> None:
    for changes in [{}, *CHANGES.get(kind, [])]:
        compared = 0
        for name, component in components(KINDS[kind], changes).items():
            if name == "scheduler" or not (part := part_of(kind, name, component)).weighted:
                continue
            said = component if hasattr(component, "to_json_string") else component.config
            config = json.loads(said.to_json_string())
            config = checked(config, part.keys, name, Path())
            assert part.shapes is not None
            wanted = part.shapes(config)
            have = {key: tuple(x.shape) for key, x in component.state_dict().items()}
            for start, known in part.renamed.items():
                have = {known + key.removeprefix(start) if key.startswith(start) else key: x for key, x in have.items()}
            have = {key: shape for key, shape in have.items() if not key.startswith(part.also)}
            assert {**wanted} == have, name
            compared += 1
        assert compared >= 2


SPARSE_DTYPE = "BF16"


def sparse(path: Path, shapes: dict[str, tuple[int, ...]], shards: int) -> None:
    """Files of weights in full size that take no room: headers, and a hole for the numbers."""
    path.mkdir(parents=True, exist_ok=True)
    names, index = list(shapes), dict[str, str]()
    stem = "model" if path.name == "text_encoder" else "diffusion_pytorch_model"
    for shard in range(shards):
        header, end, file = {}, 0, f"{stem}-{shard:05}-of-{shards:05}.safetensors"
        for name in names[shard::shards]:
            size = 2 * torch.Size(shapes[name]).numel()
            header[name] = {"dtype": SPARSE_DTYPE, "shape": shapes[name], "data_offsets": [end, end + size]}
            index[name], end = file, end + size
        text = json.dumps(header).encode()
        (path / file).write_bytes(struct.pack("<Q", len(text)) + text)
        os.truncate(path / file, 8 + len(text) + end)
    (path / f"{stem}.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def full_size(folder: Path, name: str) -> Path:
    """A checkpoint of a Wan model known by name, in full size, of which only the headers are there."""
    model = catalogue.find(name)
    kind = {"wan2.2-t2v-a14b": "wan2.2-t2v", "wan2.2-i2v-a14b": "wan2.2-i2v"}.get(name, "wan2.2-ti2v")
    stored.copy_of(Case(kind).folder, folder)
    own = model.transformer
    transformer = {
        "num_layers": own.layers,
        "num_attention_heads": own.heads,
        "attention_head_dim": own.head_dim,
        "ffn_dim": own.ffn,
        "text_dim": own.text_dim,
        "in_channels": own.in_channels,
        "out_channels": own.out_channels,
        "freq_dim": own.freq_dim,
        "rope_max_seq_len": own.max_positions,
    }
    text = {"d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "vocab_size": 256384}
    for component, changes in (
        *((name, transformer) for name in ("transformer", "transformer_2")[: model.experts]),
        ("text_encoder", text),
    ):
        stored.change_json(folder / component / "config.json", **changes)
        stored.weights_of(folder, component).unlink()
        part = BY_PIPELINE[model.pipeline].components[component][0]
        config = Folder(folder).json(f"{component}/config.json", part.keys)
        assert part.shapes is not None
        sparse(folder / component, dict(part.shapes(config)), 12)
    return folder


def test_keys_that_would_replace_what_a_configuration_does_are_those_of_the_class() -> None:
    from transformers import PreTrainedConfig

    def is_own(found: Any) -> bool:
        fixed = isinstance(found, property) and found.fset is None
        return fixed or callable(found) or isinstance(found, classmethod | staticmethod)

    names = [name for name in dir(PreTrainedConfig) if not name.startswith("__")]
    own = {name for name in names if is_own(inspect.getattr_static(PreTrainedConfig, name))}
    assert own | {"attribute_map"} == {*FUNCTIONS}


@pytest.mark.parametrize("name", ["wan2.2-t2v-a14b", "wan2.2-i2v-a14b", "wan2.2-ti2v-5b"])
def test_a_folder_that_is_a_known_model_has_its_defaults(name: str, tmp_path: Path) -> None:
    folder, known = full_size(tmp_path, name), catalogue.find(name)
    found = from_folder(folder)  # in 0.1 s: nothing but headers is read
    assert found.transformer == known.transformer and found.defaults == known.defaults
    assert found.text_params == pytest.approx(known.text_params, rel=0.001)
    stored.change_json(folder / "transformer/config.json", num_layers=2)
    with pytest.raises(RequestError, match="num_layers|has tensors that its class does not"):
        from_folder(folder)


def test_a_model_of_no_known_shape_has_the_defaults_of_its_family() -> None:
    assert from_folder(Case("wan2.1-t2v").folder).defaults.width == 832
