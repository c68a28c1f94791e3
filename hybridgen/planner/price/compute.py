"""Seconds that one rank computes: a roofline over operations and bytes of one block in one pass. No torch."""

from __future__ import annotations

from typing import NamedTuple

from hybridgen.plan.facts import TransformerFacts
from hybridgen.plan.plan import Plan
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.hardware.rates import attention_rate
from hybridgen.planner.price.settings import computed, products

KERNELS = 40
"""Kernels of a block; the host launches them one by one, and a block takes at least that time."""
MERGE_PASSES = 6
"""Passes over a partial output, in fp32, to merge it."""


class BlockSeconds(NamedTuple):
    """Seconds of one block in one pass of all of a rank's tokens."""

    attention: float
    matmul: float
    other: float
    launch: float
    """Seconds by which the host's launches take longer than the work itself."""

    @property
    def total(self) -> float:
        return self.attention + self.matmul + self.other + self.launch


def attention_shape(plan: Plan) -> tuple[int, int, int, int]:
    """Shape (queries, keys, heads, K/V heads) of one rank's self-attention, over all blocks of keys that it sees."""
    _, cols = plan.degrees.attn2d
    heads, key_heads = plan.attention_heads
    facts = plan.facts.transformer
    queries = plan.attention_tokens * cols
    keys = min(plan.attention_tokens * (plan.degrees.cp // cols), plan.tokens.tokens)
    if facts.text_stream:
        keys += plan.facts.text_tokens
    if facts.text_stream == "joint":
        queries += plan.facts.text_tokens // plan.degrees.cp
    return queries, keys, heads, key_heads


def attention_flops(plan: Plan) -> float:
    """FLOPs of one rank's self-attention in one block: every query with every key, twice (scores, output)."""
    queries, keys, heads, _ = attention_shape(plan)
    return 4.0 * queries * keys * heads * plan.facts.transformer.head_dim


def cross_attention_flops(plan: Plan) -> float:
    """FLOPs of one rank's cross-attention in one block: its queries with text and images, which are never split."""
    facts = plan.facts.transformer
    if not facts.cross_attention:
        return 0.0
    return 4.0 * plan.tokens.local_size * plan.context_tokens * plan.heads[0] * facts.head_dim


def matmul_tokens(plan: Plan) -> int:
    """Tokens that one rank multiplies with a block's matrices; joint text is replicated and runs on every rank."""
    joint = plan.facts.text_tokens if plan.facts.transformer.text_stream == "joint" else 0
    return plan.tokens.local_size + joint


def matmul_flops(plan: Plan) -> float:
    """FLOPs of one rank's matrix products in one block."""
    return 2.0 * matmul_tokens(plan) * plan.facts.transformer.matrix_params / plan.degrees.tp


class Passes(NamedTuple):
    """Channels of one token that a block reads and writes outside of its matrix products and attention."""

    hidden: int
    """Channels of the hidden state, which tp does not split."""
    split: int
    """Channels of heads and of the feed-forward layer, which tp splits."""


def channel_passes(facts: TransformerFacts) -> Passes:
    """Channels of a block when every chain of operations is one kernel that reads its inputs and writes its outputs.

    Hidden state: the first norm reads and writes it; between two layers, a residual is added and normed (two in, two
    out); the last residual (two in, one out). Heads: norm and rope of q and k; the norm of q for the text; the text's
    K and V joined to the video's. Feed-forward: the activation, for which a gate is one more tensor to read. Where
    every token has a modulation of its own, each layer reads its shift, scale and gate, too.
    """
    queries, keys = facts.heads * facts.head_dim, facts.key_heads * facts.head_dim
    layers = 3 if facts.cross_attention else 2
    hidden = (2 + 4 * (layers - 1) + 3 + 3 * layers * facts.token_time) * facts.hidden
    heads = 2 * (queries + keys) + 2 * queries * facts.cross_attention + 4 * keys * bool(facts.text_stream)
    return Passes(hidden, heads + (3 if facts.gated else 2) * facts.ffn)


def other_bytes(plan: Plan) -> float:
    """Bytes that one rank moves in one block outside of matrix products and attention, if no pass is wasted."""
    passes = channel_passes(plan.facts.transformer)
    channels = passes.hidden + passes.split / plan.degrees.tp
    return channels * matmul_tokens(plan) * plan.itemsize


def block_seconds(plan: Plan, hardware: Hardware) -> BlockSeconds:
    """Seconds of one block in one pass of the rank's tokens; every patch reads the weights and is launched."""
    facts, e, tp = plan.facts.transformer, plan.itemsize, plan.degrees.tp
    rate = hardware.float32.value if plan.dtype == "float32" else 1.0
    queries, keys, heads, key_heads = attention_shape(plan)
    bandwidth, tokens = hardware.bandwidth.value, matmul_tokens(plan)
    moved = 2.0 * (queries * heads + keys * key_heads) * facts.head_dim * e
    flops = attention_flops(plan) + cross_attention_flops(plan)
    attention = max(flops / (attention_rate(plan, hardware) * rate), moved / bandwidth)
    weights = facts.matrix_params / tp * plan.tokens.patches * plan.settings.size_of_weight(e)
    moved = weights + 2 * tokens * (facts.hidden * 4 + facts.ffn / tp) * e
    matmul = max(
        matmul_flops(plan) / (hardware.matmul.value * rate * products(plan, hardware).value), moved / bandwidth
    )
    other = hardware.passes.value * other_bytes(plan) / bandwidth
    work = attention + matmul + other
    return BlockSeconds(
        attention, matmul, other, max(plan.tokens.patches * KERNELS * hardware.launch.value - work, 0.0)
    )


def eager_seconds(plan: Plan, hardware: Hardware) -> float:
    """Seconds that a clip's blocks take longer because they run eagerly; 0 with --compile.

    Every other figure is for compiled ones.
    """
    if plan.settings.compile:
        return 0.0
    blocks = computed(plan).value * plan.passes * max(plan.stage_sizes)
    return blocks * block_seconds(plan, hardware).other * (hardware.eager.value - 1)


def merge_seconds(plan: Plan, hardware: Hardware) -> float:
    """Seconds of merging one more partial output of a rank's own queries, in fp32."""
    size = plan.attention_tokens * plan.attention_heads[0] * plan.facts.transformer.head_dim * 4
    return MERGE_PASSES * size / hardware.bandwidth.value


def text_seconds(plan: Plan, hardware: Hardware) -> float:
    """Seconds of text and images once per clip: K/V of cross-attention, or the text stream through every block."""
    facts = plan.facts.transformer
    if facts.text_stream == "own":
        params = facts.matrix_params
    elif facts.cross_attention:
        params = 2 * (facts.text_width or facts.hidden) * facts.key_heads * facts.head_dim
    else:
        return 0.0
    experts = min(plan.facts.experts, plan.clip.steps)
    flops = 2.0 * plan.context_tokens * params * facts.layers * experts * plan.own_branches
    return flops / plan.degrees.tp / plan.degrees.pipefusion / hardware.matmul.value
