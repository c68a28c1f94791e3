"""Seconds that one rank computes: a roofline over operations and bytes of one block in one pass. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from hybridgen.plan import Plan
from hybridgen.planner.hardware import Hardware

OTHER_PASSES = 90
"""Times a block reads or writes a tensor of the size of the hidden state outside of its matrix products and attention
(norms, modulation, rope, residuals, activation). Fitted with the kernel split published for Wan on one B200:
attention 71.7%, matrix products 20.8%, the rest 7.5% (TensorRT-LLM, blog 28)."""
KERNELS = 40
"""Kernels of a block: the host starts them one by one, and a block takes no less time than that."""
MERGE_PASSES = 6
"""Times that merging one more partial output reads or writes it, in fp32."""


@dataclass(frozen=True)
class BlockSeconds:
    """One block in one pass of all of a rank's tokens."""

    attention: float
    matmul: float
    other: float
    launch: float
    """What the host's launches take longer than the work itself."""

    @property
    def total(self) -> float:
        return self.attention + self.matmul + self.other + self.launch


def attention_shape(plan: Plan) -> tuple[int, int, int, int]:
    """(queries, keys, heads, K/V heads) of one rank's self-attention, over all blocks of keys that it sees."""
    rows, cols = plan.degrees.attn2d
    heads, key_heads = plan.attention_heads
    facts = plan.facts.transformer
    queries = plan.attention_tokens * cols
    keys = min(plan.attention_tokens * rows * plan.degrees.ring, plan.tokens.tokens)
    if facts.text_stream:
        keys += plan.facts.text_tokens
    if facts.text_stream == "joint":
        queries += plan.facts.text_tokens // plan.degrees.cp
    return queries, keys, heads, key_heads


def attention_flops(plan: Plan) -> float:
    """Of one rank in one block: every query with every key, twice (scores, output)."""
    queries, keys, heads, _ = attention_shape(plan)
    return 4.0 * queries * keys * heads * plan.facts.transformer.head_dim


def cross_attention_flops(plan: Plan) -> float:
    """Of one rank in one block: its queries with the text, which is never split."""
    facts = plan.facts.transformer
    if not facts.cross_attention:
        return 0.0
    return 4.0 * plan.tokens.local_size * plan.facts.text_tokens * plan.heads[0] * facts.head_dim


def matmul_tokens(plan: Plan) -> int:
    """Tokens that one rank multiplies with a block's matrices; joint text runs on every rank, as it is replicated."""
    joint = plan.facts.text_tokens if plan.facts.transformer.text_stream == "joint" else 0
    return plan.tokens.local_size + joint


def matmul_flops(plan: Plan) -> float:
    """Of one rank in one block."""
    return 2.0 * matmul_tokens(plan) * plan.facts.transformer.matrix_params / plan.degrees.tp


def block_seconds(plan: Plan, hardware: Hardware) -> BlockSeconds:
    """One block, one pass, all of the rank's tokens; every patch reads the weights and is launched on its own."""
    facts, e, tp = plan.facts.transformer, plan.itemsize, plan.degrees.tp
    rate = hardware.float32.value if plan.dtype == "float32" else 1.0
    queries, keys, heads, key_heads = attention_shape(plan)
    bandwidth, tokens = hardware.bandwidth.value, matmul_tokens(plan)
    moved = 2.0 * (queries * heads + keys * key_heads) * facts.head_dim * e
    flops = attention_flops(plan) + cross_attention_flops(plan)
    attention = max(flops / (hardware.attention.value * rate), moved / bandwidth)
    moved = (facts.matrix_params / tp * plan.tokens.patches + 2 * tokens * (facts.hidden * 4 + facts.ffn / tp)) * e
    matmul = max(matmul_flops(plan) / (hardware.matmul.value * rate), moved / bandwidth)
    passes = OTHER_PASSES / 2 * (1 + 1 / tp)  # half of them see this rank's heads or channels only
    other = passes * tokens * facts.hidden * e / bandwidth
    work = attention + matmul + other
    return BlockSeconds(
        attention, matmul, other, max(plan.tokens.patches * KERNELS * hardware.launch.value - work, 0.0)
    )


def merge_seconds(plan: Plan, hardware: Hardware) -> float:
    """Adding one more partial output to those of a rank's own queries, in fp32."""
    size = plan.attention_tokens * plan.attention_heads[0] * plan.facts.transformer.head_dim * 4
    return MERGE_PASSES * size / hardware.bandwidth.value


def text_seconds(plan: Plan, hardware: Hardware) -> float:
    """What the text costs once a clip: K/V of cross-attention, or its own stream through every block."""
    facts = plan.facts.transformer
    if facts.text_stream == "own":
        params = facts.matrix_params
    elif facts.cross_attention:
        params = 2 * facts.hidden * facts.key_heads * facts.head_dim
    else:
        return 0.0
    experts = min(plan.facts.experts, plan.clip.steps)
    flops = 2.0 * plan.facts.text_tokens * params * facts.layers * experts * plan.own_branches
    return flops / plan.degrees.tp / plan.degrees.pipefusion / hardware.matmul.value
