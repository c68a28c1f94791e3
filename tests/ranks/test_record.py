"""A clip's own record: shown, and made again; what has none, or a broken one, is refused in one line."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from hybridgen.cli.main import call
from hybridgen.engine import record
from hybridgen.engine.report import RequestSummary
from hybridgen.engine.video import VideoWriter
from hybridgen.errors import RequestError
from hybridgen.recipe.compose import compose
from hybridgen.recipe.fields import Request, Runtime
from hybridgen.recipe.resolve import resolve
from tests.support.command import hybridgen

REQUEST: dict[str, Any] = {
    "model": "demo", "revision": None, "prompt": "a = b; # \\ ü\nnext", "negative_prompt": "", "image": None,
    "last_image": None, "video": None, "size": "64x64", "frames": 5, "steps": 2, "guidance": 3.0, "guidance_2": 3.0,
    "seed": 5, "fps": 8, "dtype": "float32", "attention": "sdpa", "device": "cpu", "weights": None, "compile": None,
    "cache": None, "timesteps": None,
}  # fmt: skip
PLAN: dict[str, Any] = {
    "config": "", "order": ["tp", "cfg", "pipefusion", "ring", "row", "col", "ulysses"], "stages": [1, 3],
    "patches": 3, "warmup": 2, "degrees": {"cfg": 2, "pipefusion": 2, "attn2d": [2, 1], "vae": 4},
}  # fmt: skip


def written(path: Path, said: Any) -> Path:
    """A video that carries this JSON."""
    import numpy as np

    writer = VideoWriter(path, path.with_suffix(".part"), (16, 16), 8, {"comment": json.dumps(said)})
    writer.add(np.zeros((1, 16, 16, 3), np.uint8))
    writer.close()
    return path


def test_a_clip_is_made_again_from_its_record(tmp_path: Path) -> None:
    first = (
        "run --model demo --size 64x64 --frames 5 --steps 2 --usp 2x1 --cfg 2 --seed 5 --device cpu -q --out a.mp4 -p"
    )
    assert hybridgen(tmp_path, *first.split(), "a red = circle;\nnext").returncode == 0
    again = hybridgen(tmp_path, "run", "--like", "a.mp4", "--out", "b.mp4")
    assert again.returncode == 0 and "like    a.mp4: the same latents, bit for bit" in again.stderr
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()
    other = hybridgen(tmp_path, "run", "--like", "a.mp4", "--seed", "6", "--out", "c.mp4")
    assert other.returncode == 0 and "latents" not in other.stderr and "plan    cfg2 ulysses2 " in other.stderr
    shown = hybridgen(tmp_path, "show", "a.mp4").stdout
    assert "cfg 2, ulysses 2" in shown and "seed 5" in shown and "hybridgen run --like a.mp4" in shown


def test_every_key_of_a_record_is_read(tmp_path: Path) -> None:
    clip = written(tmp_path / "a.mp4", {"request": REQUEST, "plan": PLAN, "latents_sha256": "0", "more": 1})
    recipe = compose(None, [], {}, record.read(clip).recipe)
    assert recipe.request.prompt == REQUEST["prompt"] and recipe.request.guidance_2 is None
    held = {item.name: item for section in (Request, Runtime) for item in fields(section)}
    assert not held.keys() - REQUEST.keys() and not held.keys() - {item.name for item in fields(RequestSummary)}
    settings = {"weights": "fp8", "compile": True, "cache": "mag:0.06", "timesteps": "999,500"}
    full = {**REQUEST, **settings, "guidance_2": 2.0, "image": "a.png", "last_image": "b.png", "video": "c.mp4"}
    read = record.read(written(tmp_path / "b.mp4", {"request": full, "plan": PLAN, "latents_sha256": "0"})).recipe
    assert {**read["request"], **read["runtime"]}.keys() == held.keys()
    plan = resolve(recipe)
    assert (plan.stages, plan.options) == ((1, 3), {"patches": 3, "warmup": 2})
    assert str(plan.degrees) == "cfg2 pipefusion2 attn2d2x1 vae4" and plan.order == tuple(PLAN["order"])


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"request": REQUEST},
        {"request": REQUEST, "plan": {**PLAN, "degrees": 3}},
        {"request": {**REQUEST, "steps": "x"}, "plan": PLAN},
        {"request": {**REQUEST, "image": {}}, "plan": PLAN},
        [1],
        3,
    ],
)
def test_a_broken_record_is_refused(said: Any, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as error:
        record.read(written(tmp_path / "a.mp4", said), "like")
    assert error.value.rule == "clip-record"


def test_what_is_no_clip_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "a.mp4").write_text("no video")
    (tmp_path / "a.png").write_text("no image")
    for name in ("pipe.mp4", "a.mp4", "a.png", "none.mp4", ""):
        assert call(["show", str(tmp_path / name)]) == 2
        assert capsys.readouterr().err.startswith("error[clip-record]: ")
