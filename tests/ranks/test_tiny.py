"""Tiny checkpoints: small, the same every time, what diffusers itself reads and runs, and sensitive to their input."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hybridgen.errors import RequestError
from hybridgen.models import catalogue
from hybridgen.models.registry import KINDS
from hybridgen.models.tiny import cache
from hybridgen.models.tiny.build import build
from tests.support import stock
from tests.support.command import hybridgen

PROMPT, OTHER = "a robot arm lifts a cup", "snow falls"
SIZE = 5.5e6
WITH_PICTURE = {
    "wan2.1-i2v": ("image",),
    "wan2.1-flf2v": ("image", "last_image"),
    "wan2.2-i2v": ("image",),
    "cosmos2-v2w": ("image",),
}
"""Kinds that are conditioned on pictures, by the stock argument."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every kind, built."""
    root = tmp_path_factory.mktemp("tiny")
    return {name: build(name, root / name) for name in KINDS}


load = lru_cache(stock.load)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "transformer" / "config.json").read_text())
    return found


def moved(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("name", KINDS)
def test_small_and_the_same_every_time(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    torch.manual_seed(12345)  # what torch would draw is nobody's business here
    first, again = contents(folders[name]), contents(build(name, tmp_path / "again"))
    assert first == again
    assert sum(map(len, first.values())) < SIZE


@pytest.mark.parametrize(
    "name", ["wan2.1-flf2v", "wan2.2-ti2v", "cosmos2.5", "cosmos3"]
)  # all: tests/ranks/test_classes.py
def test_the_stock_pipeline_runs_it(name: str, folders: dict[str, Path]) -> None:
    """Every input that the checkpoint takes moves the result far."""
    pipe = load(folders[name])
    pictures: dict[str, Any] = {word: stock.picture(seed) for seed, word in enumerate(WITH_PICTURE.get(name, ()))}
    video = stock.run(pipe, PROMPT, output_type="pt", **pictures)
    assert torch.isfinite(video).all() and video.std() > 0.05
    latents = stock.run(pipe, PROMPT, **pictures)
    assert moved(stock.run(pipe, OTHER, **pictures), latents) > 0.02
    for word in pictures:
        assert moved(stock.run(pipe, PROMPT, **{**pictures, word: stock.picture(9)}), latents) > 0.02, word


@pytest.mark.parametrize("name", KINDS)
def test_the_index_is_what_diffusers_writes(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    pipe = load(folders[name])
    pipe.save_pretrained(tmp_path)
    ours, theirs = (json.loads((path / "model_index.json").read_text()) for path in (folders[name], tmp_path))
    del theirs["_name_or_path"]
    if isinstance(getattr(pipe, "safety_checker", None), stock.NoSafetyChecker):
        del theirs["safety_checker"]
    if theirs.get("image_processor", [None])[0]:  # without torchvision the class has another name
        theirs["image_processor"][1] = theirs["image_processor"][1].removesuffix("Pil")
    assert ours == theirs
    assert {path.name for path in folders[name].iterdir()} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("name", KINDS)
def test_four_ranks_can_share_it_in_every_way(name: str, folders: dict[str, Path]) -> None:
    found = config(folders[name])
    layers = found.get("num_layers") or found["num_hidden_layers"]
    assert found["num_attention_heads"] == 8 and layers in (2, 4)
    ffn = found.get("ffn_dim") or found.get("intermediate_size") or found["mlp_ratio"] * 128
    assert ffn % 4 == 0


def test_the_transformer_can_have_another_shape(tmp_path: Path) -> None:
    found = config(build("cosmos3", tmp_path / "a", heads=64, kv_heads=8, layers=2))
    shape = [found[key] for key in ("num_attention_heads", "num_key_value_heads", "num_hidden_layers", "head_dim")]
    assert shape == [64, 8, 2, 16]
    found = config(build("wan2.1-i2v", tmp_path / "b", heads=4, rope_max_seq_len=128))
    assert (found["added_kv_proj_dim"], found["rope_max_seq_len"]) == (64, 128)
    found = config(build("cosmos2-v2w", tmp_path / "c", ffn=512))
    assert found["mlp_ratio"] * found["num_attention_heads"] * found["attention_head_dim"] == 512
    with pytest.raises(TypeError, match="stages"):
        build("cosmos3", tmp_path / "d", stages=2)


@pytest.mark.parametrize("name", ["wan2.1-t2v", "cosmos3"])
def test_any_text_has_tokens(name: str, folders: dict[str, Path]) -> None:
    from transformers import AutoTokenizer

    folder = folders[name]
    tokenizer = AutoTokenizer.from_pretrained(folder / ("tokenizer" if name != "cosmos3" else "text_tokenizer"))
    text = "Füchse jagen 狐 🎬\n\x00<|nothing|>"
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    if name == "wan2.1-t2v":
        assert tokenizer(text).input_ids[-1] == tokenizer.eos_token_id
        assert len(tokenizer(text * 100, truncation=True).input_ids) == 512
    else:
        chat = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
        marked = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == marked
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True).input_ids
        assert len(ids) == len(marked) - len("<|im_start|>") * 2 - len("<|im_end|>") + 3
        assert len(tokenizer.encode("<|vision_start|>")) == 1


def test_the_command_runs_one(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built in another process, it is the same checkpoint."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ["--model", "tiny:wan2.2-t2v", "-p", PROMPT, "--cfg", "2", "--out", "clip.mp4", "--seed", "1"]
    done = hybridgen(tmp_path, "run", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "clip.mp4\n" and (tmp_path / "clip.mp4").exists()
    assert "--model tiny:wan2.2-t2v" in done.stderr and str(tmp_path) not in done.stderr
    (kept,) = (tmp_path / "cache" / "hybridgen" / "tiny").iterdir()
    assert contents(kept) == contents(folders["wan2.2-t2v"])


def test_a_name_is_found_or_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "_build", build)
    facts = catalogue.find("tiny:wan2.2-t2v")
    assert (facts.name, facts.experts, facts.transformer.heads) == ("tiny:wan2.2-t2v", 2, 8)
    assert (facts.defaults.width, facts.defaults.frames, facts.defaults.dtype) == (64, 17, "float32")
    monkeypatch.setattr(cache, "_build", None)  # kept: it is not built again
    assert catalogue.find("tiny:wan2.2-t2v") == facts
    with pytest.raises(RequestError, match="tiny:cosmos3"):
        catalogue.find("tiny:cosmos4")
    with pytest.raises(RequestError, match="--revision"):
        catalogue.find("tiny:wan2.2-t2v", revision="1234")


def test_of_two_that_build_at_once_the_first_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def overtaken(name: str, folder: Path) -> None:
        for made, text in ((folder, "slow"), (folder.parent.parent / folder.parent.name.rsplit(".", 1)[0], "fast")):
            made.mkdir()
            (made / "model_index.json").write_text(text)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "_build", overtaken)
    found = cache.checkpoint("wan2.1-t2v")
    assert contents(found) == {"model_index.json": b"fast"}
    assert list(found.parent.iterdir()) == [found]


def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "hybridgen").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(RequestError, match="XDG_CACHE_HOME") as caught:
        cache.checkpoint("wan2.1-t2v")
    assert caught.value.rule == "model-unavailable"
