"""How fast attention kernels are on each generation of GPUs, as published. No torch.

A machine's entry gives the rate of its generation's usual kernel in bf16; other kernels are so many times as fast on
the same GPU. hybridgen/plan/kernels.py says which kernel a run takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from hybridgen.errors import RequestError
from hybridgen.plan import kernels
from hybridgen.plan.plan import Plan
from hybridgen.plan.settings import KERNEL_LIKE
from hybridgen.planner.hardware.cards import Card
from hybridgen.planner.hardware.constants import Constant, Hardware
from hybridgen.planner.hardware.origins import TERA, assumed, datasheet, published

STOCK = "sdpa"
"""torch's own choice, which is the usual kernel of the generation."""


class Generation(NamedTuple):
    """What GPUs of one generation have in common."""

    usual: str
    """The kernel that torch's scaled_dot_product_attention takes for bf16 (torch 2.9 or newer): cuDNN's on Hopper and
    data-centre Blackwell, else FlashAttention-2."""
    published: Constant
    """Share of the datasheet's bf16 peak that this kernel reaches alone, without a mask and with heads of 128."""
    sustained: Constant
    """Share of the peak that the best matrix product reaches on that card (1)."""
    others: Mapping[str, Constant]
    """How many times as fast other kernels are as the usual one; those in few bits are missing where there is none."""
    like: str = ""
    """Generation whose fitted shares are assumed, where no published row belongs to this one."""


FA2_PAPER = "FlashAttention-2 paper: 230 of 312 TFLOP/s on A100"
FA3_PAPER = "FlashAttention-3 paper, figure 5: 370, 595 and 648 TFLOP/s by FlashAttention-2, cuDNN and it on H100"
H20 = "83.7, 126.2 and 129.1 TFLOP/s by FlashAttention-2, FlashAttention-3 and cuDNN on H20 (flash-attention #1310)"
EFFICIENT = published(0.53, "80 against 150 TFLOP/s of a FlashAttention-2 kernel on RTX 4090 (flash-attention #1473)")
SAGE = "README of SageAttention, heads of 128 and 32k tokens, quantising not counted"
CUDNN = "benchmarks of cudnn-frontend, forward, heads of 128 and 32k tokens"
ADA = published(1.00, "cuDNN against FlashAttention-2 on L40S (transformers #48163)")

MATMUL = "mag-/gpu_benchmark"
CDNA = published(353 / 1307, "353 TFLOP/s by FlashAttention-2 on MI300X (ROCm/flash-attention #142)")
ON_CDNA = published(758.3 / 1307, f"MI300X ({MATMUL})")
ON_A100 = published(267.9 / 312, f"A100 SXM ({MATMUL})")
ON_HOPPER = published(792.1 / 989, f"H100 SXM ({MATMUL})")
ON_BLACKWELL = assumed(0.78, "a little below Hopper's share")
ON_ADA = published(170.3 / 181, f"L40 ({MATMUL})")

GIVEN = assumed(1.0, "rates of CPUs are given for this kernel")

GENERATIONS = {
    "ampere": Generation(
        "flash",
        published(230 / 312, FA2_PAPER),
        ON_A100,
        {
            "cudnn": published(0.82, "A100 (transformers #48163)"),
            "efficient": EFFICIENT,
            "sage": published(278 / 204, f"{SAGE}: 278 against 204 on A100"),
        },
    ),
    "ampere-pro": Generation(
        "flash",
        assumed(230 / 312, "as A100"),
        ON_A100,
        {"cudnn": ADA, "efficient": EFFICIENT, "sage": assumed(278 / 204, "as A100")},
        like="ampere",
    ),
    "ada": Generation(
        "flash",
        assumed(170.3 / 181 * 164 / 178.5, "as much of the best matrix product as on RTX 4090"),
        ON_ADA,
        {"cudnn": ADA, "efficient": EFFICIENT, "sage": published(217 / 111, f"{SAGE}: 217 against 111 on L20")},
        like="geforce",
    ),
    "hopper": Generation(
        "cudnn",
        published(595 / 989, FA3_PAPER),
        ON_HOPPER,
        {
            "flash-attn-3": published(648 / 595, FA3_PAPER),
            "flash": published(370 / 595, FA3_PAPER),
            "flash-attn-4": assumed(648 / 595, "as FlashAttention-3 on Hopper"),
            "efficient": assumed(0.53 * 370 / 595, "as much slower than FlashAttention-2 as on RTX 4090"),
            "fp8": published(1062 / 693, f"{CUDNN}: 1062 against 693 TFLOP/s on H200"),
            "sage": published(882 / 595, f"{SAGE}: 882 TFLOP/s on H100, against cuDNN's 595"),
        },
    ),
    "hopper-h20": Generation(
        "cudnn",
        published(
            141 / 148, f"{SAGE}: 141 TFLOP/s by FlashAttention-3 on H20; cuDNN is as fast (flash-attention #1310)"
        ),
        assumed(0.95, "few tensor cores for its power"),
        {
            "flash-attn-3": published(126.2 / 129.1, H20),
            "flash": published(83.7 / 129.1, H20),
            "flash-attn-4": assumed(126.2 / 129.1, "as FlashAttention-3"),
            "efficient": assumed(0.53 * 83.7 / 129.1, "as much slower than FlashAttention-2 as on RTX 4090"),
            "fp8": published(273 / 141, f"{SAGE}: 273 by FlashAttention-3 in fp8, 141 in fp16 on H20"),
            "sage": published(279 / 141, f"{SAGE}: 279 against 141 by FlashAttention-3 on H20"),
        },
    ),
    "blackwell": Generation(
        "cudnn",
        published(1613 / 2250, "FlashAttention-4 paper, whose techniques newer cuDNN has: 1613 TFLOP/s on B200"),
        ON_BLACKWELL,
        {
            "flash-attn-4": published(1.00, "cuDNN is from 0.9 to 1.1 times as fast (flash-attention #2605)"),
            "flash": published(355 / 1613, "355 TFLOP/s by FlashAttention-2 on B200 (tritonbench #171)"),
            "efficient": assumed(0.15, "older than FlashAttention-2"),
            "fp8": published(2223 / 1634, f"{CUDNN}: 2223 against 1634 TFLOP/s on GB200"),
            "sage": published(1.115, "a whole run of Wan 2.2 on B200 is 1.08 times as fast (TensorRT-LLM, blog 28)"),
        },
    ),
    "blackwell-ultra": Generation(
        "cudnn",
        published(1836 / 2500, f"{CUDNN}: 1836 TFLOP/s on GB300"),
        ON_BLACKWELL,
        {
            "flash-attn-4": assumed(1.00, "as on B200"),
            "flash": assumed(355 / 1836, "as fast as on B200"),
            "efficient": assumed(0.15, "older than FlashAttention-2"),
            "fp8": published(3050 / 1836, f"{CUDNN}: 3050 against 1836 TFLOP/s on GB300"),
            "sage": assumed(1.115, "as on B200"),
        },
        like="blackwell",
    ),
    "blackwell-pro": Generation(
        "flash",
        published(356 / 504, "18.5 ms by FlashAttention-2 on RTX PRO 6000 for 32760 tokens, 12 heads (sglang #36494)"),
        assumed(0.77, "as much above attention as on RTX 4090"),
        {"cudnn": ADA, "efficient": EFFICIENT, "sage": assumed(217 / 111, "as on L20")},
        like="geforce",
    ),
    "geforce": Generation(
        "flash",
        published(164 / 165, f"{SAGE}: 164 TFLOP/s on RTX 4090"),
        published(178.5 / 165, f"RTX 4090 ({MATMUL}); GeForce cards clock higher than their datasheet says"),
        {"cudnn": ADA, "efficient": EFFICIENT, "sage": published(419 / 164, f"{SAGE}: 419 against 164 on RTX 4090")},
    ),
    "geforce-ampere": Generation(
        "flash",
        published(68 / 71, f"{SAGE}: 68 TFLOP/s on RTX 3090"),
        published(78 / 71, f"RTX 3090 ({MATMUL})"),
        {"cudnn": ADA, "efficient": EFFICIENT, "sage": published(134 / 68, f"{SAGE}: 134 against 68 on RTX 3090")},
        like="geforce",
    ),
    "geforce-blackwell": Generation(
        "flash",
        published(214 / 209, f"{SAGE}: 214 TFLOP/s on RTX 5090"),
        assumed(1.1, "as RTX 3090 and RTX 4090"),
        {"cudnn": ADA, "efficient": EFFICIENT, "sage": published(643 / 214, f"{SAGE}: 643 against 214 on RTX 5090")},
        like="geforce",
    ),
    "cdna3": Generation("flash", CDNA, ON_CDNA, {"efficient": EFFICIENT}, like="hopper"),
    "cdna4": Generation("flash", CDNA, ON_CDNA, {"efficient": EFFICIENT}, like="hopper"),
    "cpu": Generation("cpu", GIVEN, GIVEN, {}),
}
"""Generations by name."""
SAME = {"flash-attn": "flash", "sdpa": ""}
"""Kernels that are as fast as another one; sdpa is the usual one."""


WHOLE_RUN = "blog 28 of TensorRT-LLM, from the whole run's speed and its share of matrix products, on one B200"
REACH = {
    "fp8": published(0.743, f"fp8 in blocks is 1.49 times as fast as bf16, of 2 on the datasheet ({WHOLE_RUN})"),
    "int8": assumed(0.743, "as fp8"),
    "nvfp4": published(0.488, f"NVFP4 is 1.95 times as fast as bf16, of 4 on the datasheet ({WHOLE_RUN})"),
}
"""Share of the datasheet's gain over bf16 that matrix products of few bits reach, their scales and casts included."""
CAST = assumed(1.0, "weights are cast to bf16 before each product, which takes little beside it")


def best_product(card: Card) -> Constant:
    """Rate of a card's best matrix product in bf16 (FLOP/s)."""
    if card.sustained:
        return published(
            card.sustained * TERA, f"{card.sustained:g} of the datasheet's {card.peak:g} TFLOP/s ({MATMUL})"
        )
    usual = GENERATIONS[card.generation].sustained
    return assumed(card.peak * usual.value * TERA, f"{usual.value:.0%} of the datasheet's {card.peak:g} TFLOP/s")


def products(card: Card) -> dict[str, Constant]:
    """How many times as fast as in bf16 a card's matrix products are, by how weights are held; 0 where it cannot."""
    return {kind: _product(kind, rate / card.peak) for kind, rate in zip(REACH, card.low, strict=True)}


def _product(kind: str, gain: float) -> Constant:
    reach = REACH[kind]
    if not gain and kind == "nvfp4":
        return datasheet(0.0, "no such tensor cores")
    if gain * reach.value <= 1:
        return CAST
    return Constant(gain * reach.value, f"{reach.origin}; datasheet: {gain:.3g} times bf16")


def kernel_factor(generation: str, kernel: str) -> Constant:
    """How many times as fast as the generation's usual kernel another one is; 1 where nothing is known."""
    found = GENERATIONS[generation]
    name = SAME.get(kernel, kernel)
    if name in ("", found.usual):
        return Constant(1.0, f"the usual kernel: {found.usual}")
    return found.others.get(name, assumed(1.0, f"as {found.usual}"))


def has_kernel(generation: str, kernel: str) -> bool:
    """Whether GPUs of the generation have this kernel in few bits."""
    return kernel in GENERATIONS[generation].others


@lru_cache(maxsize=256)
def kernel_name(generation: str, asked: str, dtype: str, head_dim: int, merged: bool) -> str:
    """The kernel that a run on such GPUs takes, as hybridgen/plan/kernels.py chooses it, with every package there.

    A kernel that cannot serve is priced as the usual one; `run` refuses it.
    """
    if asked in KERNEL_LIKE:
        return asked
    device = "cpu" if generation == "cpu" else "cuda"
    try:
        return kernels.select(asked, device, dtype, head_dim, merged, installed=lambda package: True).name
    except RequestError:
        return STOCK


def attention_factor(plan: Plan, hardware: Hardware) -> Constant:
    """How many times as fast as the usual kernel the one is that the plan's ranks run."""
    merged = plan.degrees.cp > 1
    head_dim, asked = plan.facts.transformer.head_dim, plan.settings.attention
    return kernel_factor(hardware.generation, kernel_name(hardware.generation, asked, plan.dtype, head_dim, merged))


def attention_rate(plan: Plan, hardware: Hardware) -> float:
    """Rate of that kernel in bf16 (FLOP/s)."""
    return hardware.attention.value * attention_factor(plan, hardware).value
