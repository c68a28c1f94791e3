"""What needs a CUDA device: kernels, models and whole runs on one, and on two. Skipped without them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from hybridgen.distributed.attention import attend
from hybridgen.errors import RequestError
from hybridgen.models.catalogue import DEMO_FOLDER
from hybridgen.plan.kernels import KERNELS, Kernel, select
from tests.support.attention import error, inputs, plain
from tests.support.runs import error as difference
from tests.support.runs import files, hybridgen, latents, stock

DEVICE = "cuda"
LIMITS = {"float32": 1e-5, "bfloat16": 5e-3, "float16": 1e-3}
COMMAND = (sys.executable, "-m")  # a process of its own: one that is forked cannot use CUDA after its parent

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if kernel.lse], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(("num_queries", "num_keys"), [(33, 47), (1, 5), (5, 1), (600, 70)])
def test_output_and_lse_of_a_kernel_equal_float64(kernel: Kernel, dtype: str, num_queries: int, num_keys: int) -> None:
    try:
        select(kernel.name, DEVICE, dtype, 16, merged=True)
    except RequestError as refusal:
        pytest.skip(str(refusal))
    q, k, v = (x.to(DEVICE, getattr(torch, dtype)) for x in inputs(num_queries, num_keys))
    out, lse = attend(kernel, q, k, v)
    exact_out, exact_lse = plain(q, k, v)
    assert error(out, exact_out) < LIMITS[dtype]
    assert (lse - exact_lse).abs().max() < max(1e-5, LIMITS[dtype] / 5)


def run(folder: Path, *words: str) -> None:
    hybridgen(folder, "--model", "demo", "--device", DEVICE, "--steps", "6", *words, launcher=COMMAND)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of a run on one GPU in float32."""
    folder = tmp_path_factory.mktemp("one")
    run(folder, "--dtype", "float32", *files("clip"))
    return folder


def test_one_gpu_equals_the_stock_pipeline_on_the_cpu(one: Path) -> None:
    assert difference(latents(one / "clip.safetensors"), stock(DEMO_FOLDER, "float32", 6)) <= 1e-3


def test_a_run_reports_its_device_and_the_memory_it_held(one: Path) -> None:
    report = json.loads((one / "clip.json").read_text())
    assert report["request"]["device"] == DEVICE
    assert min(report["peak_memory_bytes"]) > 1e6


def test_bfloat16_on_a_gpu_is_near_float32(one: Path, tmp_path: Path) -> None:
    run(tmp_path, "--dtype", "bfloat16", *files("clip"))
    assert 0 < difference(latents(tmp_path / "clip.safetensors"), latents(one / "clip.safetensors")) <= 0.1


@two
@pytest.mark.parametrize(
    "words", ["--cfg 2", "--ulysses 2", "--ring 2", "--attn2d 1x2", "--attn2d 2x1", "--tp 2", "--ulysses 2 --vae 2"]
)
def test_two_gpus_equal_one(words: str, one: Path, tmp_path: Path) -> None:
    run(tmp_path, "--dtype", "float32", *words.split(), *files("clip"))
    assert difference(latents(tmp_path / "clip.safetensors"), latents(one / "clip.safetensors")) <= 1e-4


@two
def test_pipefusion_on_two_gpus_equals_one_while_it_warms_up(one: Path, tmp_path: Path) -> None:
    run(tmp_path, "--dtype", "float32", "--pipefusion", "2", "--warmup", "6", *files("clip"))
    assert difference(latents(tmp_path / "clip.safetensors"), latents(one / "clip.safetensors")) <= 1e-4
