"""How fast attention kernels are on each generation of GPUs, as published. No torch.

A machine's entry gives the rate of its generation's usual kernel in bf16; other kernels are so many times as fast on
the same GPU. hybridgen/plan/kernels.py says which kernel a run takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from hybridgen.errors import RequestError
from hybridgen.plan import kernels
from hybridgen.plan.plan import Plan
from hybridgen.planner.hardware.constants import Constant, Hardware
from hybridgen.planner.hardware.origins import assumed, published

STOCK = "sdpa"
"""torch's own choice, which is the usual kernel of the generation."""


@dataclass(frozen=True)
class Generation:
    """What GPUs of one generation have in common."""

    usual: str
    """The kernel that torch's scaled_dot_product_attention takes for bf16 (torch 2.9 or newer): cuDNN's on Hopper and
    data-centre Blackwell, else FlashAttention-2."""
    published: Constant
    """Share of the datasheet's bf16 peak that this kernel reaches alone, without a mask and with heads of 128."""
    others: Mapping[str, Constant]
    """How many times as fast other kernels are as the usual one."""


FA2_PAPER = "FlashAttention-2 paper: 230 of 312 TFLOP/s on A100"
FA3_PAPER = "FlashAttention-3 paper, figure 5: 370, 595 and 648 TFLOP/s by FlashAttention-2, cuDNN and it on H100"
H20 = "83.7, 126.2 and 129.1 TFLOP/s by FlashAttention-2, FlashAttention-3 and cuDNN on H20 (flash-attention #1310)"
EFFICIENT = published(0.53, "80 against 150 TFLOP/s of a FlashAttention-2 kernel on RTX 4090 (flash-attention #1473)")
ADA = published(1.00, "cuDNN against FlashAttention-2 on L40S (transformers #48163)")

GENERATIONS = {
    "ampere": Generation(
        "flash",
        published(230 / 312, FA2_PAPER),
        {"cudnn": published(0.82, "A100 (transformers #48163)"), "efficient": EFFICIENT},
    ),
    "ada": Generation(
        "flash", assumed(0.74, "as Ampere, which has the same kernel"), {"cudnn": ADA, "efficient": EFFICIENT}
    ),
    "hopper": Generation(
        "cudnn",
        published(595 / 989, FA3_PAPER),
        {
            "flash-attn-3": published(648 / 595, FA3_PAPER),
            "flash": published(370 / 595, FA3_PAPER),
            "flash-attn-4": assumed(648 / 595, "as FlashAttention-3 on Hopper"),
            "efficient": assumed(0.53 * 370 / 595, "as much slower than FlashAttention-2 as on RTX 4090"),
        },
    ),
    "hopper-h20": Generation(
        "cudnn",
        published(129.1 / 148, H20),
        {
            "flash-attn-3": published(126.2 / 129.1, H20),
            "flash": published(83.7 / 129.1, H20),
            "flash-attn-4": assumed(126.2 / 129.1, "as FlashAttention-3"),
            "efficient": assumed(0.53 * 83.7 / 129.1, "as much slower than FlashAttention-2 as on RTX 4090"),
        },
    ),
    "blackwell": Generation(
        "cudnn",
        published(1613 / 2250, "FlashAttention-4 paper, whose techniques newer cuDNN has: 1613 TFLOP/s on B200"),
        {
            "flash-attn-4": published(1.00, "cuDNN is from 0.9 to 1.1 times as fast (flash-attention #2605)"),
            "flash": published(355 / 1613, "355 TFLOP/s by FlashAttention-2 on B200 (tritonbench #171)"),
            "efficient": assumed(0.15, "older than FlashAttention-2"),
        },
    ),
    "geforce": Generation(
        "flash",
        assumed(0.9, "GeForce cards accumulate in fp32 at half their rate, which FlashAttention-2 can keep up with"),
        {"cudnn": ADA, "efficient": EFFICIENT},
    ),
    "cpu": Generation("cpu", assumed(1.0, "rates of CPUs are given for this kernel"), {}),
}
"""Generations by name."""
SAME = {"flash-attn": "flash", "sdpa": ""}
"""Kernels that are as fast as another one; sdpa is the usual one."""


def kernel_factor(generation: str, kernel: str) -> Constant:
    """How many times as fast as the generation's usual kernel another one is; 1 where nothing is known."""
    found = GENERATIONS[generation]
    name = SAME.get(kernel, kernel)
    if name in ("", found.usual):
        return Constant(1.0, f"the usual kernel: {found.usual}")
    return found.others.get(name, assumed(1.0, f"as {found.usual}"))


@lru_cache(maxsize=256)
def kernel_name(generation: str, asked: str, dtype: str, head_dim: int, merged: bool) -> str:
    """The kernel that a run on such GPUs takes, as hybridgen/plan/kernels.py chooses it, with every package there.

    A kernel that cannot serve is priced as the usual one; `run` refuses it.
    """
    device = "cpu" if generation == "cpu" else "cuda"
    try:
        return kernels.select(asked, device, dtype, head_dim, merged, installed=lambda package: True).name
    except RequestError:
        return STOCK


def attention_rate(plan: Plan, hardware: Hardware) -> float:
    """Rate of the attention kernel that the plan's ranks run, in bf16 (FLOP/s)."""
    merged = plan.degrees.cp > 1
    name = kernel_name(hardware.generation, plan.attention, plan.dtype, plan.facts.transformer.head_dim, merged)
    return hardware.attention.value * kernel_factor(hardware.generation, name).value
