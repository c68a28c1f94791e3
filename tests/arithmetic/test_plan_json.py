"""The plan as JSON, and models of one's own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hybridgen.cli.explanations import rules
from hybridgen.strategies.registry import AXES

ROOT = Path(__file__).parents[2]
PUBLISHED = "--cfg 2 --ulysses 4 --attn2d 3x3 --vae 8"


def test_json_has_the_documented_form(plan: Any) -> None:
    found = json.loads(plan("--gpus 72 --heads 40 --frames 80 --json"))
    assert list(found) == [
        "schema", "request", "model", "hardware", "world_size", "one_gpu_denoise_s", "candidates", "rejected",
    ]  # fmt: skip
    assert found["world_size"] == 72 and found["model"] == "wan2.2-t2v-a14b"
    assert found["request"]["frames"] == 80 and found["request"]["latent_frames"] == 20
    first = found["candidates"][0]
    assert first["config"] == "cfg2 ulysses4 attn2d3x3 vae8" and first["exact"] is True and first["tie"] is False
    degrees = {"cfg": 2, "pipefusion": 1, "tp": 1, "ring": 1, "attn2d": [3, 3], "ulysses": 4, "vae": 8}
    assert first["degrees"] == degrees and first["order"] == ["cfg", "row", "col", "ulysses"]
    low, high = first["range_s"]
    assert low < first["denoise_s"] < high and first["denoise_s"] == pytest.approx(7.04, rel=0.05)
    assert first["end_to_end_s"] == pytest.approx(9.20, rel=0.05)
    assert first["speedup"] == pytest.approx(found["one_gpu_denoise_s"] / first["denoise_s"], rel=1e-3)
    assert first["efficiency"] == pytest.approx(first["speedup"] / 72, rel=1e-3)
    assert 57 < first["memory_gb"]["weights"] < first["memory_gb"]["peak"] < 80
    assert set(first["bytes_per_step"]) == {"cfg", "row", "col", "ulysses"} <= set(AXES)
    assert sum(first["seconds"].values()) == pytest.approx(first["denoise_s"], rel=1e-3)
    assert all(isinstance(why, str) for c in found["candidates"] for why in c["why"])
    rejected = found["rejected"][0]
    assert set(rejected) == {"config", "rule", "message", "nearest"} and rejected["rule"] in rules()
    configs = [c["config"] for c in found["candidates"]]
    assert rejected["nearest"] in configs and len(configs) == len(set(configs)) == 106


def test_docs_name_every_key_of_the_json(plan: Any) -> None:
    text = (ROOT / "docs" / "planner-reference.md").read_text()
    found = json.loads(plan("--gpus 8 --json"))
    keys = {
        *found,
        *found["request"],
        *found["candidates"][0],
        *found["rejected"][0],
        *found["candidates"][0]["degrees"],
    }
    assert not [key for key in keys if f"`{key}`" not in text]


def test_heads_change_legality_and_not_the_hidden_size(plan: Any) -> None:
    sent = {}
    for heads in (40, 32):
        found = json.loads(plan(f"--gpus 8 --heads {heads} --json"))["candidates"]
        sent[heads] = {c["config"]: c["bytes_per_step"] for c in found}
        wide = json.loads(plan(f"--gpus 64 --heads {heads} --json"))["candidates"]
        assert max(c["degrees"]["ulysses"] for c in wide) == {40: 8, 32: 32}[heads]
    assert sent[40]["cfg2 ulysses4 vae8"] == sent[32]["cfg2 ulysses4 vae8"]


def test_all_axes_fixed_price_exactly_that_plan(plan: Any) -> None:
    for flags in (f"--gpus 72 {PUBLISHED}", PUBLISHED, "--gpus 16 --tp 2 --ulysses 4 --ring 2 --vae 4"):
        found = json.loads(plan(f"{flags} --json"))
        assert len(found["candidates"]) == 1
        degrees = found["candidates"][0]["degrees"]
        assert all(
            str(degrees[name]) == value for name, value in re.findall(r"--(cfg|ulysses|tp|ring|vae) (\d+)", flags)
        )
    assert "error[ulysses-heads]" in plan("--gpus 72 --cfg 2 --ulysses 36", code=2)
    assert "error[cfg-guidance]" in plan("--gpus 8 --cfg 2 --ulysses 4 --guidance 1", code=2)


def test_one_gpu_takes_as_long_whatever_the_stages(plan: Any) -> None:
    alone = {
        json.loads(plan(f"--gpus 16 --model wan2.1 --pipefusion {stages} --json"))["one_gpu_denoise_s"]
        for stages in ("4", "4:8,10,12,10")
    }
    assert len(alone) == 1


def test_a_model_of_one_s_own(plan: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\nlayers: 48\nheads: 32\nkv_heads: 8\nhead_dim: 128\nffn: 14336\ngated: true\nparams: 14e9\n"
        "text_tokens: 256\nsize: 832x480\nstride_time: 4\npatch: [1, 2, 2]\n"
    )
    found = json.loads(plan(f"--model-facts {file} --gpus 8 --hardware h100 --json"))
    assert found["model"] == "mine" and found["request"]["tokens"] == 21 * 30 * 52
    assert found["candidates"][0]["memory_gb"]["weights"] == 28.0
    assert all(8 % c["degrees"]["ulysses"] == 0 for c in found["candidates"])
    assert "run      nothing: mine is known from" in plan(f"--model-facts {file} --gpus 8")
    file.write_text("layers: 4\nhead: 8\n")
    assert "head: is not known; nearest: heads" in plan(f"--model-facts {file} --gpus 8", code=2)
    file.write_text("layers: 4\nheads: 8\n")
    assert "head_dim: is missing" in plan(f"--model-facts {file} --gpus 8", code=2)


def test_an_example_of_such_a_model(plan: Any) -> None:
    out = plan(f"--model-facts {ROOT}/examples/hunyuanvideo.yaml --gpus 8 --hardware h100")
    assert "hunyuanvideo  1280x720, 129 frames, 50 steps, no guidance" in out and "1  ulysses8 vae8" in out


def test_a_mixture_of_transformers(plan: Any) -> None:
    """Cosmos3-Super on 72 GPUs: published 6.79 s with a 3x3 grid, and 11.78 s end to end."""
    flags = "--model cosmos3-super --gpus 72 --hardware gb200-nvl72"
    published = json.loads(plan(f"{flags} {PUBLISHED} --json"))["candidates"][0]
    assert published["denoise_s"] == pytest.approx(6.79, rel=0.10)
    assert published["end_to_end_s"] == pytest.approx(11.78, rel=0.15)
    assert published["memory_gb"]["weights"] == pytest.approx(128 / 2, rel=0.05)  # of 64 B parameters, the video's
    best = json.loads(plan(f"{flags} --json"))["candidates"][0]
    rows, cols = best["degrees"]["attn2d"]
    assert rows > cols  # 8 K/V heads of 64: gathering them costs an eighth of gathering queries
    assert (best["degrees"]["cfg"], best["degrees"]["ulysses"]) == (2, 4)
    assert best["denoise_s"] < published["denoise_s"]
    assert "taller than square: 8 K/V heads against 64" in best["why"][1]
    assert "taller than square" not in plan("--gpus 32 --cfg 2 --ulysses 8 --attn2d 2x1")  # Wan's heads all have K/V
