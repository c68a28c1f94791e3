"""NaN in a checkpoint's weights is told, and no clip is made of it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.support import stored
from tests.support.command import hybridgen

NAN = struct.pack("<H", 0x7FC0)
"""NaN in bf16, as the demo stores its weights."""


@pytest.mark.parametrize(
    ("component", "tensor", "says"),
    [
        ("transformer_2", "proj_out.bias", "numbers after step 2 are NaN or infinite"),
        ("text_encoder", "encoder.final_layer_norm.weight", "numbers after step 1 are NaN or infinite"),
        ("vae", "decoder.conv_out.bias", "pixels are NaN or infinite"),
    ],
)
@pytest.mark.parametrize("degrees", ["", "--cfg 2 --vae 2"])
def test_no_clip_is_made_of_nan(component: str, tensor: str, says: str, degrees: str, tmp_path: Path) -> None:
    folder = stored.demo(tmp_path / "model")
    with stored.changed(stored.weights_of(folder, component)) as tensors:
        entry = tensors[tensor]
        assert entry["dtype"] == "BF16"
        entry["data"] = NAN + entry["data"][2:]
    clip = "--size 64x64 --frames 5 --steps 3 --guidance 3 --dtype float32 --seed 1 -o clip.mp4"
    done = hybridgen(tmp_path, "run", "--model", "./model", "-p", "a red circle", *clip.split(), *degrees.split())
    assert done.returncode == 1
    assert "error[not-finite]" in done.stderr and says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("clip.mp4*"))
