"""Which attention kernel a run takes, and why another cannot be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import product

import pytest

from hybridgen.distributed.data import packed, unpacked
from hybridgen.errors import RequestError
from hybridgen.plan.kernels import FLOATS, KERNELS, Kernel, is_installed, select
from hybridgen.plan.plan import Plan

BY_NAME = {kernel.name: kernel for kernel in KERNELS}
CPU, SDPA = BY_NAME["cpu"], BY_NAME["sdpa"]


def everything(package: str) -> bool:
    return True


def nothing(package: str) -> bool:
    return False


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "chosen"),
    [
        ("cuda", "bfloat16", 128, "cudnn"),
        ("cuda", "float16", 64, "cudnn"),
        ("cuda", "bfloat16", 192, "flash"),
        ("cuda", "bfloat16", 512, "efficient"),
        ("cuda", "float32", 128, "efficient"),
        ("cpu", "float32", 16, "cpu"),
        ("cpu", "bfloat16", 20, "cpu"),
        ("cpu", "float16", 512, "cpu"),
    ],
)
@pytest.mark.parametrize("installed", [everything, nothing])
def test_auto_takes_torchs_best_kernel_with_an_lse(
    device: str, dtype: str, head_dim: int, chosen: str, installed: Callable[[str], bool]
) -> None:
    assert select("auto", device, dtype, head_dim, merged=True, installed=installed).name == chosen


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_auto_is_the_stock_path_where_nothing_is_merged(device: str, dtype: str) -> None:
    assert select("auto", device, dtype, 20, merged=False, installed=everything).name == "sdpa"


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_named_kernel_is_that_one_or_refused_for_its_first_broken_limit(kernel: Kernel) -> None:
    for request in product(("cpu", "cuda"), FLOATS, (20, 64, 192, 320), (False, True), (everything, nothing)):
        device, dtype, head_dim, merged, installed = request
        limits = {
            "attention-lse": kernel.lse or not merged,
            "attention-device": device in kernel.devices,
            "attention-dtype": dtype in kernel.dtypes,
            "attention-head-dim": kernel.takes_head_dim(head_dim),
            "attention-missing": kernel.package is None or installed is everything,
        }
        broken = [rule for rule, kept in limits.items() if not kept]
        if not broken:
            assert select(kernel.name, *request) is kernel
            continue
        with pytest.raises(RequestError) as refusal:
            select(kernel.name, *request)
        assert refusal.value.rule == broken[0]
        assert refusal.value.message.startswith(f"--attention {kernel.name}: ")
        for change in refusal.value.tries:  # what is offered instead is accepted
            assert not isinstance(change, str) and select(str(change["attention"]), *request)


@pytest.mark.parametrize(
    ("request_", "rule", "says"),
    [
        (("flashinfer", "cuda", "bfloat16", 128, True), "attention-unknown", "nearest: flash"),
        (("xy", "cuda", "bfloat16", 128, True), "attention-unknown", "auto, cudnn, flash, efficient"),
        (("sdpa", "cuda", "bfloat16", 128, True), "attention-lse", "nearest: cudnn, flash, efficient"),
        (("cpu", "cuda", "bfloat16", 128, True), "attention-device", "runs on cpu, not cuda"),
        (("auto", "mps", "float32", 64, True), "attention-device", "runs on cpu or cuda, not mps"),
        (("auto", "mps", "float32", 64, False), "attention-device", "runs on cpu or cuda, not mps"),
        (
            ("cudnn", "cuda", "float32", 128, True),
            "attention-dtype",
            "bfloat16 or float16 on cuda, not float32",
        ),
        (("auto", "cuda", "float64", 128, True), "attention-dtype", "takes float32, bfloat16 or float16"),
        (("cudnn", "cuda", "bfloat16", 160, True), "attention-head-dim", "multiples of 8 up to 128, not 160"),
        (("auto", "cuda", "bfloat16", 20, True), "attention-head-dim", "multiples of 8, not 20"),
        (("flash-attn", "cuda", "bfloat16", 128, True), "attention-missing", "pip install flash-attn"),
        (("flash-attn-3", "cuda", "bfloat16", 128, True), "attention-missing", "flash_attn_interface"),
    ],
)
def test_a_refusal_names_the_rule_the_value_and_the_limit(
    request_: tuple[str, str, str, int, bool], rule: str, says: str
) -> None:
    with pytest.raises(RequestError) as refusal:
        select(*request_, installed=nothing)
    assert refusal.value.rule == rule
    assert says in refusal.value.message
    assert "\n" not in refusal.value.message


def test_choosing_does_not_import_torch() -> None:
    code = """if True:
        import sys
        from hybridgen.plan.kernels import is_installed, select
        select("auto", "cuda", "bfloat16", 128, True)
        assert is_installed("torch.nn") and not is_installed("torch.no_such_module")
        assert "torch" not in sys.modules"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not is_installed("no_such_module.child")


def test_a_kernel_reaches_other_ranks_as_one() -> None:
    """The job of a joined run crosses the network as JSON."""
    kernel = KERNELS[0]
    found = unpacked(packed({"kernel": kernel, "size": (1, 2)}), like=Kernel)
    assert isinstance(found["kernel"], Kernel) and found == {"kernel": kernel, "size": (1, 2)}
    with pytest.raises(ValueError, match="not a part of what is expected"):
        unpacked(packed(kernel), like=Plan)
