"""hybridgen calibrate measures every constant that it writes, and plan reads the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridgen.cli.main import call
from hybridgen.engine import calibrate
from hybridgen.models import catalogue
from hybridgen.planner.hardware.calibration import UNITS
from hybridgen.planner.hardware.lookup import find


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rounds: what is found is rough, and found all the same. Ranks are forked, so they see it."""
    for name, value in {"ROUNDS": 3, "ENOUGH": 0.05, "LARGE": 1 << 20}.items():
        monkeypatch.setattr(calibrate, name, value)


def test_a_calibrated_machine_is_one_to_plan_for(quick: None, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "machine.yaml"
    assert call(["calibrate", "--out", str(file), "--tokens", "256", "--device", "cpu"]) == 0
    out, said = capsys.readouterr()
    assert out == f"{file}\n"
    machine = dict(find(str(file)).constants())
    for name in UNITS:
        assert name in said and machine[name].origin.startswith("measured"), name
        assert machine[name].value > 0 or name in ("slowdown", "inside.latency", "inside.hop"), name
    assert 1e8 < machine["attention"].value < 1e13 and 1e8 < machine["matmul"].value < 1e13
    assert call(["plan", "--model", "demo", "--gpus", "2", "--hardware", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hardware"] == "machine"


def test_one_rank_has_nothing_to_exchange(quick: None, tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    assert call(["calibrate", "--out", str(file), "--tokens", "256", "--gpus", "1", "--device", "cpu"]) == 0
    assert find(str(file)).inside == find("cpu").inside


def test_a_calibration_follows_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that takes four times as long is found to be slower, and nothing else is. By a clock of its own."""
    settings = calibrate.Settings(catalogue.find("demo"), "float32", "cpu", 1, 1024)
    clock = 0.0

    def takes(seconds: float) -> Callable[[Any], None]:
        def work(_: Any) -> None:
            nonlocal clock
            clock += seconds

        return work

    def calibrated(attention: float) -> dict[str, float]:
        work = {"attention": attention, "matmul": 2.0, "run": attention + 4.0, "run_few": 0.1, "step": 0.1}
        for name, seconds in work.items():
            monkeypatch.setattr(calibrate.Block, name, takes(seconds))
        return {name: figure.value for name, figure in calibrate.run(settings).items()}

    monkeypatch.setattr(calibrate, "_now", lambda _: clock)
    before, after = calibrated(1.0), calibrated(4.0)
    assert after["attention"] == pytest.approx(before["attention"] / 4)
    for name in before.keys() - {"attention"}:
        assert after[name] == pytest.approx(before[name]), name


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("--out {folder}/machine.txt", "output-format"),
        ("--out {folder}/taken.yaml", "output-exists"),
        ("--out {folder}/m.yaml --gpus 0", "gpus"),
        ("--out {folder}/m.yaml --model nope", "unknown-model"),
        ("--out {folder}/m.yaml --dtype int3", "dtype"),
        ("--out {folder}/m.yaml --tokens 0", "tokens"),
        ("--out {folder}/no/m.yaml", "output-folder"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: str, rule: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "taken.yaml").write_text("base: cpu\n")
    assert call(["calibrate", *words.format(folder=tmp_path).split()]) == 2
    assert capsys.readouterr().err.startswith(f"error[{rule}]: ")
