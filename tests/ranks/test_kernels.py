"""Attention kernels: which one serves a run, its output and LSE against plain math, and the exact merge."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hybridgen.distributed import attention
from hybridgen.distributed.attention import CALLS, attend, attend_plain
from hybridgen.plan.kernels import KERNELS, Kernel
from tests.support.attention import error, inputs, plain

BY_NAME = {kernel.name: kernel for kernel in KERNELS}
CPU, SDPA = BY_NAME["cpu"], BY_NAME["sdpa"]
INFINITY = math.inf


# Output and LSE


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


def test_no_kernel_without_an_lse_is_ever_merged() -> None:
    """yunchang's torch kernel returned zeros for an LSE and its ring was silently wrong."""
    assert [kernel.name for kernel in KERNELS if not kernel.lse] == ["sdpa"]
    assert CALLS.keys() == {kernel.name for kernel in KERNELS if kernel.lse}
    q, k, v = inputs(3, 3)
    with pytest.raises(KeyError):
        attend(SDPA, q, k, v)


def test_the_table_of_calls_is_looked_up_at_run_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults are planted by replacing entries of CALLS."""
    calls: list[list[Tensor]] = []
    monkeypatch.setitem(attention.CALLS, "cpu", replace(CALLS["cpu"], run=fake(1, False, calls)))
    attend(CPU, *inputs(3, 3))
    assert len(calls) == 1
