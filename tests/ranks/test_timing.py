"""Where the time of a run went, with faults planted into ranks, exchanges and the attention kernel."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel

import hybridgen
from hybridgen.distributed import attention
from hybridgen.engine.timing import Prediction
from hybridgen.models.denoiser import Denoiser
from hybridgen.plan.kernels import KERNELS

LATE = 0.2
"""Seconds that a planted fault takes: much longer than anything that the tiny model does."""
SDPA = next(kernel for kernel in KERNELS if kernel.name == "sdpa")


def make(folder: Path, monkeypatch: pytest.MonkeyPatch, **split: Any) -> hybridgen.Report:
    """A clip of three steps on ranks that are forked from here, with a prediction that they do not keep."""
    found = Prediction(machine="a test", kernel="cpu", step=1e-4)
    monkeypatch.setattr("hybridgen.engine.prepare.predict", lambda *_: found)
    with hybridgen.Engine(model="tiny:wan2.2-t2v", start_method="fork", frames=5, steps=3, **split) as engine:
        return engine.generate("a lighthouse", folder / "clip.mp4", seed=1)


def later(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, ranks: tuple[int, ...]) -> None:
    """Have a function take longer on some ranks."""
    before = getattr(owner, name)

    def slow(*given: Any, **named: Any) -> Any:
        if dist.get_rank() in ranks:
            time.sleep(LATE)
        return before(*given, **named)

    monkeypatch.setattr(owner, name, slow)


def test_a_rank_that_sleeps_is_the_slowest_and_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later(monkeypatch, Denoiser, "run_blocks", (1,))
    report = make(tmp_path, monkeypatch, cfg=2)
    slow = report.slowest
    assert slow is not None and slow.rank == 1 and slow.others_waiting > slow.waiting
    assert report.prediction.reason.startswith(f"rank 1 ({slow.host}) lags")
    assert report.warnings == (report.prediction.warning,)
    data = report.as_data()
    assert data["slowest"]["rank"] == 1 and data["prediction"]["ratio"] > 1.5
    for rank in data["ranks_s"]:
        assert len(rank["computing"]) == len(rank["waiting"]) == 3 and set(rank["exchanges"]) == {"cfg"}


def test_exchanges_that_are_slow_are_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later(monkeypatch, dist, "all_to_all_single", (0, 1))
    report = make(tmp_path, monkeypatch, ulysses=2)
    assert report.prediction.reason.startswith("a link is slow: exchanges of ulysses")


def test_a_kernel_that_falls_back_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sdpa_kernel(SDPBackend.MATH):
        assert "kernel math" in make(tmp_path / "", monkeypatch).prediction.reason
        (tmp_path / "clip.mp4").unlink()
    assert make(tmp_path, monkeypatch).prediction.reason.startswith("all ranks compute")


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
def test_torch_is_asked_which_kernel_it_takes(heads: tuple[int, int]) -> None:
    cpu = torch.device("cpu")
    assert attention.serving(SDPA, heads, 16, "bfloat16", cpu) == "cpu"
    with sdpa_kernel(SDPBackend.MATH):
        assert attention.serving(SDPA, heads, 16, "bfloat16", cpu) == "math"
        assert attention.serving(KERNELS[0], heads, 16, "bfloat16", cpu) == KERNELS[0].name


def test_cpu_ranks_have_no_prediction_and_say_so(tmp_path: Path) -> None:
    with hybridgen.Engine(model="tiny:wan2.2-t2v", start_method="fork", frames=5, steps=2) as engine:
        report = engine.generate("a lighthouse", tmp_path / "clip.mp4", seed=1)
    assert "CPU" in report.as_data()["prediction"]["missing"] and report.warnings == ()
    assert report.slowest is None and report.ranks_s[0].waiting == (0.0, 0.0)
