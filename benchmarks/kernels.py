"""Every attention kernel that this machine has: its output and LSE against float64 math, and its speed.

    python benchmarks/kernels.py > kernels.md      (hybridgen installed, or PYTHONPATH=.)

Runs on the CUDA device where there is one, else on the CPU, in about a minute. Prints a Markdown table and
exits with 1 where a result is off. Errors: of out ||a - b|| / ||b||, of the LSE the largest difference; at
most 64 queries of a sequence are checked. TFLOPS counts 4 Sq Sk H D. The last table times the merge.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from hybridgen.distributed.attention import CALLS, Merge, attend, merge_stacked
from hybridgen.plan.kernels import KERNELS, Kernel, is_installed

CUDNN = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LIMITS = {"float32": (1e-5, 1e-4), "bfloat16": (1e-2, 1e-3), "float16": (2e-3, 1e-3)}
"""Largest error of (out, LSE) that is rounding."""


@dataclass(frozen=True)
class Case:
    name: str
    batch: int
    queries: int
    keys: int
    heads: int
    key_heads: int
    head_dim: int = 128
    strided: bool = False
    """K/V are cut out of a longer, interleaved buffer."""


SMALL = (
    Case("uneven", 2, 777, 1030, 4, 4),
    Case("grouped", 2, 300, 500, 8, 2),
    Case("strided", 2, 300, 500, 4, 4, strided=True),
    Case("head_dim 64", 1, 257, 129, 4, 4, head_dim=64),
    Case("one query", 1, 1, 333, 4, 4),
    Case("one key", 1, 333, 1, 4, 4),
    Case("few heads", 1, 4096, 4096, 1, 1),
)
LARGE = (
    Case("Wan 720p, ulysses 8", 1, 75600, 75600, 5, 5),
    Case("Wan 720p, ulysses 4, attn2d 3x3", 1, 25200, 25200, 10, 10),
    Case("Wan 720p, ulysses 4, ring 9", 1, 8400, 8400, 10, 10),
)
ON_CPU = (Case("2048 tokens", 1, 2048, 2048, 4, 4),)


def inputs(case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q = torch.randn(case.batch, case.queries, case.heads, case.head_dim, device=DEVICE, dtype=dtype)
    if case.strided:
        buffer = torch.randn(case.batch, 2 * case.keys, 2, case.key_heads, case.head_dim, device=DEVICE).to(dtype)
        k, v = buffer[:, 3 : 3 + case.keys].unbind(2)
    else:
        k, v = torch.randn(2, case.batch, case.keys, case.key_heads, case.head_dim, device=DEVICE, dtype=dtype)
    return q, k, v


def errors(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> tuple[float, float]:
    """Of out (relative) and of the LSE (absolute), at up to 64 queries, head by head to spare memory."""
    rows = torch.linspace(0, q.shape[1] - 1, min(q.shape[1], 64), device=DEVICE).long()
    wrong, norm, lse_error = 0.0, 0.0, 0.0
    for head in range(q.shape[2]):
        key_head = head * k.shape[2] // q.shape[2]
        scores = q[:, rows, head].double() @ k[:, :, key_head].double().mT / math.sqrt(q.shape[-1])
        exact = scores.softmax(-1) @ v[:, :, key_head].double()
        wrong += float((out[:, rows, head] - exact).square().sum())
        norm += float(exact.square().sum())
        lse_error = max(lse_error, float((lse[:, rows, head, 0] - scores.logsumexp(-1)).abs().max()))
    return math.sqrt(wrong / norm), lse_error


def milliseconds(function: Callable[[], object]) -> float:
    return 1e3 * Timer("function()", globals={"function": function}).blocked_autorange(min_run_time=0.2).median


def row(label: str, kernel: Kernel, case: Case, dtype: str) -> tuple[str, bool]:
    """One line of the table, and whether the result is right."""
    start = f"| {label} | {dtype} | {case.name} |"
    try:
        q, k, v = inputs(case, getattr(torch, dtype))
        out_error, lse_error = errors(q, k, v, *attend(kernel, q, k, v))
        time = milliseconds(lambda: attend(kernel, q, k, v))
    except (RuntimeError, NotImplementedError, TypeError, ImportError, AssertionError) as fault:
        return f"{start} FAILED: {str(fault).splitlines()[0][:90]} | | | | |", False
    right = out_error < LIMITS[dtype][0] and lse_error < LIMITS[dtype][1]  # NaN is not right
    tflops = 4e-9 * case.batch * case.queries * case.keys * case.heads * case.head_dim / time
    numbers = f"{out_error:.1e} | {lse_error:.1e} | {time:.3f} | {tflops:.2f}"
    return f"{start} {numbers} | {'ok' if right else 'WRONG'} |", right


def kernel_rows() -> Iterator[tuple[str, bool]]:
    for kernel in KERNELS:
        if not kernel.lse or DEVICE not in kernel.devices or (kernel.package and not is_installed(kernel.package)):
            continue
        for dtype in kernel.dtypes:
            for case in SMALL + (ON_CPU if DEVICE == "cpu" else LARGE if dtype == "bfloat16" else ()):
                if kernel.takes_head_dim(case.head_dim):
                    yield row(kernel.name, kernel, case, dtype)
    if DEVICE == "cuda":  # would cuDNN be right, and faster, without the contiguous copies?
        cudnn, call = next(k for k in KERNELS if k.name == "cudnn"), CALLS["cudnn"]
        CALLS["cudnn"] = replace(call, packed=False)
        yield from ((row("cudnn, no copies", cudnn, case, "bfloat16")[0], True) for case in SMALL + LARGE)
        CALLS["cudnn"] = call


def merge_rows() -> Iterator[str]:
    size = (1, 25200, 10, 128) if DEVICE == "cuda" else (1, 2048, 4, 128)
    for dtype in (torch.float32, torch.bfloat16):
        outs = torch.randn(3, *size, device=DEVICE).to(dtype)
        lses = torch.randn(3, *size[:3], 1, device=DEVICE)
        running = Merge(outs[0])
        running.add(outs[0].clone(), lses[0])
        name, gigabytes = str(dtype).removeprefix("torch."), outs.nbytes / 1e9
        time = milliseconds(lambda: running.add(outs[1], lses[1]))
        yield f"| one more part (ring) | {name} | {time:.3f} | {gigabytes / 3 / time * 1e3:.1f} |"
        time = milliseconds(lambda: merge_stacked(outs.unbind(), lses, dtype))
        yield f"| three at once (attention2d) | {name} | {time:.3f} | {gigabytes / time * 1e3:.1f} |"


@torch.inference_mode()
def main() -> int:
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{where}; torch {torch.__version__}; cuDNN {CUDNN}\n")
    print("| kernel | dtype | case | out error | LSE error | ms | TFLOPS | |\n|---|---|---|---|---|---|---|---|")
    all_right = True
    for line, right in kernel_rows():
        print(line, flush=True)
        all_right &= right
    print("\n| merge | parts | ms | GB/s of parts |\n|---|---|---|---|")
    print(*merge_rows(), sep="\n")
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
