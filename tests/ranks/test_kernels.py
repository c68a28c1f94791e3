"""Attention kernels: which one serves a run, its output and LSE against plain math, and the exact merge."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hybridgen.distributed import attention
from hybridgen.distributed.attention import CALLS, Merge, attend, attend_plain, merge_stacked
from hybridgen.errors import RequestError
from hybridgen.plan.kernels import FLOATS, KERNELS, Kernel, is_installed, select

BY_NAME = {kernel.name: kernel for kernel in KERNELS}
CPU, SDPA = BY_NAME["cpu"], BY_NAME["sdpa"]
INFINITY = math.inf


def everything(package: str) -> bool:
    return True


def nothing(package: str) -> bool:
    return False


# Choice


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
        assert refusal.value.message.startswith(f"--attention {kernel.name} ")
        for change in refusal.value.tries:  # what is offered instead is accepted
            assert not isinstance(change, str) and select(str(change["attention"]), *request)


@pytest.mark.parametrize(
    ("request_", "rule", "says"),
    [
        (("flashinfer", "cuda", "bfloat16", 128, True), "attention-unknown", "auto, cudnn, flash, efficient"),
        (("sdpa", "cuda", "bfloat16", 128, True), "attention-lse", "use cudnn, flash or efficient"),
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


def test_no_kernel_without_an_lse_is_ever_merged() -> None:
    """yunchang's torch kernel returned zeros for an LSE and its ring was silently wrong."""
    assert [kernel.name for kernel in KERNELS if not kernel.lse] == ["sdpa"]
    assert CALLS.keys() == {kernel.name for kernel in KERNELS if kernel.lse}
    q, k, v = inputs(3, 3)
    with pytest.raises(KeyError):
        attend(SDPA, q, k, v)


def test_choosing_does_not_import_torch() -> None:
    code = """if True:
        import sys
        from hybridgen.plan.kernels import is_installed, select
        select("auto", "cuda", "bfloat16", 128, True)
        assert is_installed("torch.nn") and not is_installed("torch.no_such_module")
        assert "torch" not in sys.modules"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not is_installed("no_such_module.child")


# Output and LSE


def inputs(num_queries: int, num_keys: int, key_heads: int = 4) -> list[Tensor]:
    """q, k and v of 2 sequences, 4 query heads of 16."""
    random = torch.Generator().manual_seed(1000 * num_queries + num_keys)
    shapes = [(num_queries, 4), (num_keys, key_heads), (num_keys, key_heads)]
    return [torch.randn(2, *shape, 16, generator=random) for shape in shapes]


def plain(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax attention as it is written, in float64: (out [B, Sq, H, D], lse [B, Sq, H, 1])."""
    q, k, v = q.double(), k.double(), v.double()
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bqhk", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bqhk,bkhd->bqhd", scores.softmax(-1), v), scores.logsumexp(-1, keepdim=True)


def error(a: Tensor, b: Tensor) -> float:
    """||a - b|| / ||b||"""
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.bfloat16, 5e-3), (torch.float16, 1e-3)])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(33, 33), (33, 47), (1, 5), (5, 1), (600, 70)])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_the_cpu_kernel_equals_plain_math(
    dtype: torch.dtype, limit: float, num_queries: int, num_keys: int, key_heads: int
) -> None:
    q, k, v = (x.to(dtype) for x in inputs(num_queries, num_keys, key_heads=key_heads))
    out, lse = attend(CPU, q, k, v)
    assert (out.dtype, lse.dtype, lse.shape) == (dtype, torch.float32, (2, num_queries, 4, 1))
    exact_out, exact_lse = plain(q, k, v)
    assert error(out, exact_out) < limit
    assert (lse - exact_lse).abs().max() < max(2e-6, limit / 10)


def test_strides_do_not_matter() -> None:
    q, k, v = inputs(33, 47)
    exact_out, exact_lse = plain(q, k, v)
    wide = torch.stack([k, v], dim=-1)  # last dim not contiguous
    padded = torch.cat([q, q], dim=1)[:, :33]
    out, lse = attend(CPU, padded, wide[..., 0], wide[..., 1])
    assert error(out, exact_out) < 1e-6
    assert error(lse, exact_lse) < 1e-6


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_no_keys_and_no_queries_call_no_kernel(kernel: Kernel) -> None:
    q, k, v = inputs(3, 5)
    assert torch.equal(attend_plain(kernel, q, k[:, :0], v[:, :0]), torch.zeros_like(q))
    assert attend_plain(kernel, q[:, :0], k, v).shape == (2, 0, 4, 16)
    out, lse = attend(kernel, q.bfloat16(), k[:, :0], v[:, :0])
    assert out.dtype == torch.bfloat16 and not out.any()
    assert lse.shape == (2, 3, 4, 1) and torch.equal(lse, torch.full_like(lse, -INFINITY))
    out, lse = attend(kernel, q[:, :0], k, v)
    assert (out.shape, lse.shape) == ((2, 0, 4, 16), (2, 0, 4, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_sdpa_is_diffusers_native_backend_bit_for_bit(dtype: torch.dtype, key_heads: int) -> None:
    dispatch = pytest.importorskip("diffusers.models.attention_dispatch")
    q, k, v = (x.to(dtype) for x in inputs(70, 90, key_heads=key_heads))
    stock = dispatch.dispatch_attention_fn(q, k, v, backend="native", enable_gqa=key_heads != 4)
    assert torch.equal(attend_plain(SDPA, q, k, v), stock)


# The layouts of kernels that need a GPU

TORCHS_CUDA_KERNELS = ("cudnn", "flash", "efficient")


class Asked(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Whether the operators that run inside are asked for their LSE."""

    lse = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False))
        self.lse &= named.get("compute_log_sumexp", True)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", TORCHS_CUDA_KERNELS)
@pytest.mark.parametrize("key_heads", [4, 2])
def test_torchs_own_shapes_on_the_meta_device_become_one_layout(name: str, key_heads: int) -> None:
    """torch's shape functions of the real operators: checks the arguments and the shapes, not the values."""
    q, k, v = (x.bfloat16().to("meta") for x in inputs(33, 47, key_heads=key_heads))
    with Asked() as asked:  # type: ignore[no-untyped-call]
        out, lse = attend(BY_NAME[name], q, k, v)
    assert asked.lse
    assert (out.shape, out.dtype) == (q.shape, torch.bfloat16)
    assert (lse.shape, lse.dtype) == ((2, 33, 4, 1), torch.float32)


def fake(round_to: int, trailing: bool, calls: list[list[Tensor]]) -> Callable[..., tuple[Any, ...]]:
    """An operator on [B, H, S, D] that pads its LSE with NaN or gives it a trailing dim, as told."""

    def run(*qkv: Tensor) -> tuple[Any, ...]:
        calls.append(list(qkv))
        out, lse = plain(*(x.transpose(1, 2) for x in qkv))
        lse_BHS = lse.squeeze(-1).transpose(1, 2).float()
        lse_BHS = torch.nn.functional.pad(lse_BHS, (0, -lse_BHS.shape[-1] % round_to), value=math.nan)
        return out.transpose(1, 2).to(qkv[0].dtype), lse_BHS.unsqueeze(-1) if trailing else lse_BHS, None, 7

    return run


@pytest.mark.parametrize(
    ("name", "round_to", "trailing"),
    [
        ("cudnn", 1, True),
        ("cudnn", 1, False),
        ("flash", 1, False),
        ("efficient", 32, False),
        ("efficient", 1, False),
    ],
)
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_torchs_cuda_layouts_become_one(
    monkeypatch: pytest.MonkeyPatch, name: str, round_to: int, trailing: bool, key_heads: int
) -> None:
    calls: list[list[Tensor]] = []
    monkeypatch.setitem(CALLS, name, replace(CALLS[name], run=fake(round_to, trailing, calls)))
    q, k, v = inputs(33, 47, key_heads=key_heads)
    out, lse = attend(BY_NAME[name], q, k, v)
    exact_out, exact_lse = plain(q, k, v)
    assert error(out, exact_out) < 1e-6
    assert error(lse, exact_lse) < 1e-6
    assert [x.shape[1] for x in calls[0]] == ([4, key_heads, key_heads] if name == "flash" else [4, 4, 4])
    assert name != "cudnn" or all(x.is_contiguous() for x in calls[0])


@pytest.mark.parametrize(("num_queries", "num_keys", "server"), [(9, 1, "flash"), (1, 9, "flash"), (9, 9, "cudnn")])
def test_cudnn_is_given_no_single_query_or_key(
    monkeypatch: pytest.MonkeyPatch, num_queries: int, num_keys: int, server: str
) -> None:
    calls: dict[str, list[list[Tensor]]] = {"cudnn": [], "flash": []}
    for name, heard in calls.items():
        monkeypatch.setitem(CALLS, name, replace(CALLS[name], run=fake(1, False, heard)))
    attend(BY_NAME["cudnn"], *inputs(num_queries, num_keys))
    assert [name for name, heard in calls.items() if heard] == [server]


@pytest.mark.parametrize(
    ("name", "module", "keyword", "round_to"),
    [
        ("flash-attn", "flash_attn", "return_attn_probs", 1),
        ("flash-attn", "flash_attn", "return_attn_probs", 128),  # before 2.7
        ("flash-attn-3", "flash_attn_interface", "return_attn_probs", 1),
        ("flash-attn-4", "flash_attn.cute", "return_lse", 1),
    ],
)
def test_the_flash_attn_packages_are_called_as_they_declare(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, keyword: str, round_to: int
) -> None:
    """They take [B, S, H, D] with fewer K/V heads, and return the LSE when asked with their own keyword."""

    def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, **options: bool) -> Any:
        assert options == {keyword: True}
        out, lse, *rest = fake(round_to, False, [])(*(x.transpose(1, 2) for x in (q, k, v)))
        return out.transpose(1, 2), lse, *rest

    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:depth]), ModuleType(parts[depth - 1]))
    monkeypatch.setattr(sys.modules[module], "flash_attn_func", flash_attn_func, raising=False)
    q, k, v = inputs(33, 47, key_heads=2)
    out, lse = attend(BY_NAME[name], q, k, v)
    exact_out, exact_lse = plain(q, k, v)
    assert error(out, exact_out) < 1e-6
    assert error(lse, exact_lse) < 1e-6


# Merge

SPLITS = [(23, 24), (47, 0), (0, 47), (1, 45, 1), (0, 30, 0, 17), (9, 9, 9, 9, 11), (0, 0, 47, 0, 0)]
FORMS = ["one by one", "at once"]
Parts = list[tuple[Tensor, Tensor]]


def partials(q: Tensor, k: Tensor, v: Tensor, split: tuple[int, ...]) -> Parts:
    return [
        attend(CPU, q, *block)
        for block in zip(torch.split(k, list(split), 1), torch.split(v, list(split), 1), strict=True)
    ]


def one_by_one(parts: Parts) -> Merge:
    running = Merge(parts[0][0])
    for out, lse in parts:
        running.add(out, lse)
    return running


def merged(form: str, parts: Parts, dtype: torch.dtype = torch.float32) -> Tensor:
    if form == "at once":
        return merge_stacked([out for out, _ in parts], torch.stack([lse for _, lse in parts]), dtype)
    return one_by_one(parts).result(dtype)


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_merged_blocks_equal_the_whole(split: tuple[int, ...], form: str) -> None:
    q, k, v = inputs(33, 47, key_heads=2)
    assert error(merged(form, partials(q, k, v, split)), plain(q, k, v)[0]) < 1e-6
    assert error(merged(form, partials(q, k, v, split)[::-1]), plain(q, k, v)[0]) < 1e-6


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_the_running_lse_equals_the_whole(split: tuple[int, ...]) -> None:
    q, k, v = inputs(33, 47)
    lse = one_by_one(partials(q, k, v, split)).lse
    assert lse is not None and error(lse, plain(q, k, v)[1]) < 1e-6


@pytest.mark.parametrize("form", FORMS)
def test_scores_far_apart_merge_without_overflow(form: str) -> None:
    q, k, v = inputs(33, 47)
    k[:, :20] *= 100
    assert error(merged(form, partials(q, k, v, (20, 27))), plain(q, k, v)[0]) < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_bfloat16_parts_are_summed_in_float32(form: str) -> None:
    q, k, v = (x.bfloat16() for x in inputs(33, 47))
    exact = plain(q, k, v)[0]
    whole = error(attend(CPU, q, k, v)[0], exact)
    result = merged(form, partials(q, k, v, (9, 9, 9, 9, 11)), torch.bfloat16)
    assert result.dtype == torch.bfloat16
    assert error(result, exact) < 1.5 * whole


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_empty_parts_alone_merge_to_zero_never_nan(form: str, count: int) -> None:
    q, k, v = inputs(5, 0)
    assert torch.equal(merged(form, partials(q, k, v, (0,) * count)), torch.zeros_like(q))
    lse = one_by_one(partials(q, k, v, (0,) * count)).lse
    assert lse is not None and torch.equal(lse, torch.full_like(lse, -INFINITY))


def test_a_ring_in_which_no_part_came_gives_zeros() -> None:
    q = inputs(5, 0)[0].bfloat16()
    assert torch.equal(Merge(q).result(torch.bfloat16), torch.zeros_like(q))


def test_the_textbook_merge_would_give_nan_for_two_empty_parts() -> None:
    """out - sigmoid(l' - l) (out - out'), as diffusers has it: -inf minus -inf."""
    q, k, v = inputs(5, 0)
    (out, lse), (other, other_lse) = partials(q, k, v, (0, 0))
    assert (out - torch.sigmoid(other_lse - lse) * (out - other)).isnan().all()


@pytest.mark.parametrize("form", FORMS)
def test_a_kernel_that_returns_zeros_for_an_lse_moves_the_result(form: str) -> None:
    q, k, v = inputs(33, 47)
    parts = [(out, torch.zeros_like(lse)) for out, lse in partials(q, k, v, (30, 17))]
    assert error(merged(form, parts), plain(q, k, v)[0]) > 1e-2


@pytest.mark.parametrize("form", FORMS)
def test_a_nan_in_a_part_is_not_hidden(form: str) -> None:
    q, k, v = inputs(33, 47)
    parts = partials(q, k, v, (30, 17))
    parts[1] = (parts[1][0] * math.nan, parts[1][1] * math.nan)
    assert merged(form, parts).isnan().all()


def test_the_ring_merges_in_place() -> None:
    q, k, v = inputs(33, 47)
    parts = partials(q, k, v, (30, 17))
    running = one_by_one(parts)
    assert running.out is not None and running.out.data_ptr() == parts[0][0].data_ptr()


def test_the_table_of_calls_is_looked_up_at_run_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults are planted by replacing entries of CALLS."""
    calls: list[list[Tensor]] = []
    monkeypatch.setitem(attention.CALLS, "cpu", replace(CALLS["cpu"], run=fake(1, False, calls)))
    attend(CPU, *inputs(3, 3))
    assert len(calls) == 1
