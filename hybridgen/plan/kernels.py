"""Which attention kernel serves a run: the table of kernels and their limits, and the choice. No torch.

A kernel that returns a true log-sum-exp (LSE) beside its output can attend to part of the keys, and the
partial results of several ranks can be merged exactly. One that does not may serve only where nothing is
merged: with a made-up LSE the merge is silently wrong (yunchang 0.6.4's torch kernel returns zeros, and its
ring is off by 0.3-0.6).
hybridgen/distributed/attention.py runs what is chosen here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import NamedTuple

from hybridgen.errors import RequestError, did_you_mean

RULES = {
    "attention-device": "A kernel is compiled for some devices; --attention auto chooses one for the device of the "
    "run.",
    "attention-dtype": "A kernel computes in some dtypes; --attention auto chooses one for the dtype of the run.",
    "attention-head-dim": "A kernel takes some head sizes; --attention auto chooses one that fits the model.",
    "attention-lse": "Ring and attention2d merge partial results by the log-sum-exp of their scores; a kernel that "
    "does not return it would make the merge silently wrong.",
    "attention-missing": "Kernels outside of torch are packages of their own, and are used only when they are named.",
}

HALF = ("bfloat16", "float16")
FLOATS = ("float32", *HALF)


class Kernel(NamedTuple):
    """One attention kernel and what it can be given."""

    name: str
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    max_head_dim: int | None = None
    """Largest head dimension; None where there is no limit."""
    head_multiple: int = 1
    """The head dimension must be a multiple of this."""
    lse: bool = True
    """Whether it returns the true log-sum-exp of every query's scores."""
    package: str | None = None
    """Module that must be importable, where the kernel is not torch's own."""
    pip: str = ""
    """How that package is installed."""
    note: str = ""

    def takes_head_dim(self, head_dim: int) -> bool:
        return head_dim <= (self.max_head_dim or head_dim) and head_dim % self.head_multiple == 0

    def head_dims(self) -> str:
        """The head dimensions that the kernel takes, in words."""
        multiples = f"multiples of {self.head_multiple}"
        return f"{multiples} up to {self.max_head_dim}" if self.max_head_dim else multiples


# In order of preference. Why this order, on CUDA:
#   cudnn first: on Hopper as fast as FlashAttention-3 and nearly twice as fast as the FlashAttention-2 inside
#     torch (631, 632 and 329 TFLOPS at 4608 tokens, 24 heads of 128: pytorch #142132); on B200 1.24-1.98 x as
#     fast as FlashAttention-4 on the shapes of diffusion models, Wan 2.2 among them (sglang #33655).
#     Ampere is the exception: "flash" can be faster there (A100: transformers #48163).
#   flash next, for head dimensions above 128; then efficient, for float32.
# "auto" takes only what torch brings along, so that a request means the same kernel wherever it runs; a
# package is used when it is named. Limits are those of torch's sdp_utils.cpp (cudnn's 256, of new versions,
# left out) and of the packages' own checks.
KERNELS = (
    Kernel("cudnn", ("cuda",), HALF, max_head_dim=128, head_multiple=8, note="for Hopper and Blackwell"),
    Kernel("flash", ("cuda",), HALF, max_head_dim=256, head_multiple=8, note="FlashAttention-2 inside torch"),
    Kernel("efficient", ("cuda",), FLOATS, head_multiple=8, note="the one for float32 on CUDA"),
    Kernel("cpu", ("cpu",), FLOATS, note="torch's flash attention for the CPU"),
    Kernel(
        "flash-attn-4",
        ("cuda",),
        HALF,
        max_head_dim=128,
        head_multiple=8,
        package="flash_attn.cute",
        pip="pip install flash-attn-4",
        note="Hopper and Blackwell; of March 2026 or newer",
    ),
    Kernel(
        "flash-attn-3",
        ("cuda",),
        HALF,
        max_head_dim=256,
        head_multiple=8,
        package="flash_attn_interface",
        pip="pip install git+https://github.com/Dao-AILab/flash-attention#subdirectory=hopper",
        note="Hopper only; of September 2025 or newer",
    ),
    # The compiled module is looked for: flash-attn-4 alone also makes a folder flash_attn.
    Kernel(
        "flash-attn",
        ("cuda",),
        HALF,
        max_head_dim=256,
        head_multiple=8,
        package="flash_attn_2_cuda",
        pip="pip install flash-attn --no-build-isolation",
        note="FlashAttention-2",
    ),
    Kernel("sdpa", ("cpu", "cuda"), FLOATS, lse=False, note="torch's choice, as in the stock pipeline"),
)


def is_installed(package: str) -> bool:
    """Whether a module can be found; neither it nor its parents are imported (they would import torch)."""
    name, *children = package.split(".")
    spec = find_spec(name)
    for child in children:
        if spec is None:
            break
        name = f"{name}.{child}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations or ()))
    return spec is not None


def select(
    name: str,
    device: str,
    dtype: str,
    head_dim: int,
    merged: bool,
    installed: Callable[[str], bool] = is_installed,
) -> Kernel:
    """The kernel for a run, checked before anything loads.

    name is "auto" or a kernel's; device a torch device type ("cpu", "cuda"); dtype the name of a torch dtype
    ("bfloat16"). merged says that partial results will be merged (ring, attention2d), which needs a true LSE.
    Where nothing is merged, "auto" is "sdpa": the stock pipeline's own attention.

    Raises RequestError: attention-unknown, attention-lse, attention-device, attention-dtype,
    attention-head-dim or attention-missing, with the kernels that could serve instead.
    """
    legal = [k for k in KERNELS if k.lse or not merged]
    if name == "auto":
        kernels = [k for k in legal if k.package is None] if merged else [k for k in legal if not k.lse]
    else:
        kernels = [_named(name)]

    def refuse(rule: str, problem: str) -> RequestError:
        fitting = [k for k in legal if device in k.devices and dtype in k.dtypes and k.takes_head_dim(head_dim)]
        names = [k.name for k in fitting if not k.package or installed(k.package)]
        return RequestError(rule, "attention", name, problem, names, [{"attention": other} for other in names[:2]])

    if merged and not kernels[0].lse:
        raise refuse("attention-lse", "returns no log-sum-exp, which merging (--ring, --attn2d) needs")
    kernels, rest = [k for k in kernels if device in k.devices], kernels
    if not kernels:
        limit = _either(sorted({d for k in rest for d in k.devices}))
        raise refuse("attention-device", f"runs on {limit}, not {device}")
    kernels, rest = [k for k in kernels if dtype in k.dtypes], kernels
    if not kernels:
        limit = _either([d for d in FLOATS if any(d in k.dtypes for k in rest)])
        raise refuse("attention-dtype", f"takes {limit} on {device}, not {dtype}")
    kernels, rest = [k for k in kernels if k.takes_head_dim(head_dim)], kernels
    if not kernels:
        limit = max(rest, key=lambda k: k.max_head_dim or float("inf")).head_dims()
        raise refuse("attention-head-dim", f"takes head dimensions that are {limit}, not {head_dim}")
    kernel = kernels[0]
    if kernel.package and not installed(kernel.package):
        raise refuse("attention-missing", f"needs the module {kernel.package}: install it with {kernel.pip}")
    return kernel


def check_name(name: str, others: Iterable[str] = ()) -> None:
    """Raise RequestError (attention-unknown) for a name that is neither "auto" nor a kernel's; `others` are legal, too,
    and may be meant.
    """
    if name != "auto":
        _named(name, others)


def _named(name: str, others: Iterable[str] = ()) -> Kernel:
    for kernel in KERNELS:
        if kernel.name == name:
            return kernel
    names = ["auto", *(k.name for k in KERNELS), *others]
    raise RequestError("attention-unknown", "attention", name, "is not a kernel", did_you_mean(name, names, 3) or names)


def _either(names: list[str]) -> str:
    """A list in words: ["a", "b", "c"] as "a, b or c"."""
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
