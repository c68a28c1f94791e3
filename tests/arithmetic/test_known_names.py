"""What is known by name: models, machines, and the values that a shell completes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hybridgen.cli.main import call
from hybridgen.errors import RequestError
from hybridgen.models.registry import MODELS
from hybridgen.planner.hardware.known import MACHINES
from hybridgen.planner.hardware.lookup import find


def test_models_are_listed_with_what_they_need(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["models", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert [*rows] == ["demo", *(model.name for model in MODELS)]
    wan = rows["wan2.2-t2v-a14b"]
    assert (
        wan["default"] and wan["size"] == "1280x720" and wan["guidance"] == [4.0, 3.0] and 60 < wan["one_gpu_gb"] < 90
    )
    assert rows["wan2.1-flf2v-14b-720p"]["needs"] == ["prompt", "image", "last_image"]
    assert call(["models", "wan2.2", "demo"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["name", "wan2.2-t2v-a14b", "demo"]
    assert call(["models", "wan22"]) == 2
    assert "  try:  hybridgen models wan2.2" in capsys.readouterr().err


def test_machines_are_listed_with_their_constants(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["hardware", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert [*rows] == [*MACHINES] and rows["gb200-nvl72"]["default"]
    assert rows["a100-40gb"]["constants"]["memory"]["value"] == 40e9
    assert call(["hardware", "h100-sxm5"]) == 2
    assert "  try:  hybridgen hardware h100\n" in capsys.readouterr().err
    assert call(["hardware", "l20"]) == 0
    assert "of the datasheet's 119.5 TFLOP/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("h100-sxm5", ["h100"]),
        ("rxt4090", ["rtx4090"]),
        ("a100-80gp", ["a100-40gb", "a100"]),
        ("a100-40g", ["a100-40gb"]),
        ("cpus", ["cpu"]),
        ("h20000", ["h20"]),
        *(
            (other, [])
            for other in ("rtx4080", "a10", "l2", "v100", "mi300a", "h100-64gb", "rtx4090-laptop", "gb200-nvl36")
        ),
    ],
)
def test_no_machine_with_more_memory_is_proposed(name: str, near: list[str]) -> None:
    with pytest.raises(RequestError) as error:
        find(name)
    assert list(error.value.nearest) == near
    assert near or error.value.tries == ("hybridgen hardware",)


def test_a_file_of_a_machine_takes_units(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "base: h100\nmemory: 94GB\nattention: {value: 520 TFLOP/s, origin: measured}\n"
        "inside: {bandwidth: 240GB/s, latency: 25us}\nreserve: 2GiB\nlaunch: 4e-6\n"
    )
    found = find(str(file))
    assert (found.memory.value, found.attention.value, found.reserve.value) == (94e9, 520e12, 2 * 2**30)
    assert (found.inside.bandwidth.value, found.launch.value) == (240e9, 4e-6)
    assert found.inside.latency.value == pytest.approx(25e-6)
    for wrong in ("94 apples", "94GB/s", "GB", "-1GB"):
        file.write_text(f"base: h100\nmemory: {wrong}\n")
        with pytest.raises(RequestError) as error:
            find(str(file))
        assert error.value.rule == "hardware-file" and error.value.flag.startswith("memory")


def test_the_memory_that_may_be_used_is_shown_and_saved(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved = tmp_path / "r.yaml"
    flags = "--gpus 4 --hardware a100 --memory 40GB --save"
    assert call(["plan", *flags.split(), str(saved)]) == 0
    assert "4 x A100 SXM 80 GB, NVLink 3, 40 GB of each" in capsys.readouterr().out
    assert "hardware: {name: a100, gpus: 4, memory_gb: 40.0}" in saved.read_text()


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("hybridgen run --model wan2.2-ti2v", "wan2.2-ti2v-5b wan2.2-ti2v"),
        ("hybridgen plan --hardware rtx5", "rtx5090"),
        ("hybridgen run --dtype b", "bfloat16"),
        ("hybridgen run --recipe wan22-i2v", "wan22-i2v-720p-8gpu"),
        ("hybridgen explain ulysses-h", "ulysses-heads"),
    ],
)
def test_values_are_completed(typed: str, offered: str) -> None:
    program = "import sys; sys.argv = ['hybridgen']; from hybridgen.cli.main import main; main()"
    shell = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_HYBRIDGEN_COMPLETE": "complete_bash"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **shell})
    assert done.stdout.split() == offered.split(), done.stderr
