"""Attention on one rank: output and log-sum-exp of any kernel in one layout, and the merge of partial ones.

Shapes: q [B, Sq, H, D]; k and v [B, Sk, Hk, D], H a multiple of Hk (query head h uses K/V head h Hk // H).
out is [B, Sq, H, D] in q's dtype; lse is [B, Sq, H, 1], float32, the natural logarithm of the sum of
exp(q k / sqrt(D)) over the keys: the layout that broadcasts over out in the merge, whatever the kernel's own.
Both results may be views: a collective makes its own contiguous copy, and the merge needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridgen.plan.kernels import Kernel

aten = torch.ops.aten


@dataclass(frozen=True)
class Call:
    """How one kernel is called: the tensors it wants, and a function that returns (out, lse, ...)."""

    run: Callable[[Tensor, Tensor, Tensor], Sequence[Any]]
    heads_first: bool = True
    """Whether the kernel takes and returns [B, H, S, D]; otherwise [B, S, H, D]."""
    grouped: bool = False
    """Whether the kernel takes fewer K/V heads than query heads; otherwise they are repeated here."""
    packed: bool = False
    """Whether all tensors must be contiguous; otherwise only their last dim must be."""


# LSE as it comes back: cudnn [B, H, Sq, 1] (before torch 2.9 [B, H, Sq]), efficient [B, H, Sq rounded up to
# 32], the flash kernels [B, H, Sq] (old versions of flash-attn round Sq up). Tests put fakes in this table.
CALLS: dict[str, Call] = {
    # diffusers found wrong results from tensors that are not contiguous, hence packed.
    "cudnn": Call(lambda q, k, v: aten._scaled_dot_product_cudnn_attention(q, k, v, None, True), packed=True),
    "flash": Call(lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v), grouped=True),
    "efficient": Call(lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, None, True)),
    "cpu": Call(lambda q, k, v: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v), grouped=True),
    "flash-attn-4": Call(
        lambda *qkv: import_module("flash_attn.cute").flash_attn_func(*qkv, return_lse=True),
        heads_first=False,
        grouped=True,
    ),
    "flash-attn-3": Call(
        lambda *qkv: import_module("flash_attn_interface").flash_attn_func(*qkv, return_attn_probs=True),
        heads_first=False,
        grouped=True,
    ),
    # return_attn_probs is the only way to the LSE; the matrix itself is made with dropout alone.
    "flash-attn": Call(
        lambda *qkv: import_module("flash_attn").flash_attn_func(*qkv, return_attn_probs=True),
        heads_first=False,
        grouped=True,
    ),
}


def attend(kernel: Kernel, q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor) -> tuple[Tensor, Tensor]:
    """Attend with one kernel: (out [B, Sq, H, D], lse [B, Sq, H, 1]). Without keys: zeros and -inf, and no kernel runs.

    The scale is 1 / sqrt(D), nothing is masked. Raises KeyError for a kernel that has no LSE.
    """
    if not q_BSHD.numel() or not k_BSHD.shape[1]:  # torch's CPU kernel dies with SIGFPE on zero keys
        lse = q_BSHD.new_full((*q_BSHD.shape[:3], 1), -torch.inf, dtype=torch.float32)
        return torch.zeros_like(q_BSHD), lse
    call = CALLS[_serving(kernel.name, q_BSHD.shape[1], k_BSHD.shape[1])]
    if not call.grouped:
        k_BSHD, v_BSHD = (_repeat_heads(x, q_BSHD.shape[2]) for x in (k_BSHD, v_BSHD))
    q, k, v = (_laid_out(x, call) for x in (q_BSHD, k_BSHD, v_BSHD))
    out, lse = call.run(q, k, v)[:2]
    out_BSHD = out.transpose(1, 2) if call.heads_first else out
    lse_BHS = lse.reshape(*lse.shape[:2], -1)[..., : q_BSHD.shape[1]]
    return out_BSHD, lse_BHS.transpose(1, 2).unsqueeze(-1)


def attend_plain(kernel: Kernel, q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor) -> Tensor:
    """Attend with any kernel: out [B, Sq, H, D] alone. "sdpa" equals diffusers' native backend bit for bit."""
    if kernel.lse or not q_BSHD.numel() or not k_BSHD.shape[1]:
        return attend(kernel, q_BSHD, k_BSHD, v_BSHD)[0]
    q, k, v = (x.transpose(1, 2) for x in (q_BSHD, k_BSHD, v_BSHD))
    grouped = q_BSHD.shape[2] != k_BSHD.shape[2]
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=grouped).transpose(1, 2)


def serving(kernel: Kernel, heads: tuple[int, int], head_dim: int, dtype: str, device: torch.device) -> str:
    """Name of the kernel that computes, which for "sdpa" is torch's choice: "math" is the slow way without any.

    heads: query heads and K/V heads.
    """
    if kernel.lse:
        return kernel.name
    q, k = (torch.empty(1, 64, n, head_dim, dtype=getattr(torch, dtype), device=device).transpose(1, 2) for n in heads)
    chosen = torch._fused_sdp_choice(q, k, k, enable_gqa=heads[0] != heads[1])
    name = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}.get(chosen, kernel.name)
    return "cpu" if device.type == "cpu" and name == "flash" else name


def _serving(name: str, num_queries: int, num_keys: int) -> str:
    """The kernel that takes a shard of this size: for a single token "flash" in place of "cudnn".

    cuDNN takes no single key (torch's sdp_utils.cpp), and a single query comes back wrong on Blackwell
    (pytorch #193893). "flash" takes every tensor that cuDNN does.
    """
    return "flash" if name == "cudnn" and 1 in (num_queries, num_keys) else name


def _repeat_heads(x_BSHD: Tensor, num_heads: int) -> Tensor:
    repeats = num_heads // x_BSHD.shape[2]
    return x_BSHD if repeats == 1 else x_BSHD.repeat_interleave(repeats, dim=2)


def _laid_out(x_BSHD: Tensor, call: Call) -> Tensor:
    x = x_BSHD.transpose(1, 2) if call.heads_first else x_BSHD
    return x.contiguous() if call.packed or x.stride(-1) != 1 else x


class Merge:
    """Partial results over disjoint keys, merged one by one as they arrive (ring), in float32.

    With l the LSE so far, l' the part's and t = log(exp(l) + exp(l')), out becomes
    exp(l - t) out + exp(l' - t) out' and l becomes t; exp(l' - t) is sigmoid(l' - l). A part without keys
    (lse -inf) changes nothing; while all are empty, out is 0 and lse -inf.
    """

    out: Tensor | None = None
    """The output so far, [B, S, H, D] float32; None before the first part."""
    lse: Tensor | None = None
    """The log-sum-exp so far, [B, S, H, 1] float32."""

    def __init__(self, q_BSHD: Tensor) -> None:
        """Start without any part; q gives the shape and device of the result."""
        self.q_BSHD = q_BSHD

    def add(self, out: Tensor, lse: Tensor) -> None:
        """Merge a part: out [B, S, H, D] in any dtype, lse [B, S, H, 1]. The first is overwritten."""
        if self.out is None or self.lse is None:
            self.out, self.lse = out.float(), lse
            return
        weight = torch.sigmoid(lse - self.lse).nan_to_num_(0.0)  # NaN: both are empty
        # Not lerp_: it takes one dtype, so a bfloat16 part would need a float32 copy.
        self.out.mul_(1 - weight).addcmul_(out, weight)
        self.lse = torch.logaddexp(self.lse, lse)

    def result(self, dtype: torch.dtype) -> Tensor:
        """The merged output [B, S, H, D]; zeros if no part was added."""
        return torch.zeros_like(self.q_BSHD, dtype=dtype) if self.out is None else self.out.to(dtype)


def merge_stacked(outs: Sequence[Tensor], lses: Tensor, dtype: torch.dtype) -> Tensor:
    """Merge n partial results over disjoint keys at once (attention2d).

    n outs [B, S, H, D] in any dtype, lses [n, B, S, H, 1] in float32 -> [B, S, H, D] in `dtype`, summed in
    float32. A part without keys (lse -inf) has weight 0; where all parts are empty the result is 0.
    """
    largest = lses.amax(0).clamp_(min=torch.finfo(lses.dtype).min)  # finite, so that -inf minus it is no NaN
    weights = (lses - largest).exp_()
    weights /= weights.sum(0).clamp_(min=1)  # the largest part adds 1: below 1 is 0, where all are empty
    merged = outs[0] * weights[0]
    for out, weight in zip(outs[1:], weights[1:], strict=True):
        merged.addcmul_(out, weight)
    return merged.to(dtype)
