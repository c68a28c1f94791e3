"""Bytes a rank needs, by component: an estimate from the plan alone. No torch.

Checked against measured runs is the planner's own issue; until then these are floors with a plausible allowance for
activations, good enough to refuse what cannot fit.
"""

from __future__ import annotations

from hybridgen.plan import Plan
from hybridgen.strategies import registry

ACTIVATION_COPIES = 10
"""Tensors of the size of the hidden state that a block holds at once, fp32 intermediates counted double."""


def estimate(plan: Plan, rank: int = 0) -> dict[str, int]:
    """Component -> bytes on this rank while it denoises; "text encoder" and "vae" are held before and after."""
    facts, degrees, e = plan.facts, plan.degrees, plan.itemsize
    transformer, local = facts.transformer, plan.tokens.local_size
    blocks = plan.stage_layers(rank) * transformer.block_params // degrees.tp
    rest = transformer.params - transformer.layers * transformer.block_params
    own_branches = -(-plan.branches // degrees.cfg)
    context = 2 * facts.text_tokens * transformer.hidden // degrees.tp * plan.stage_layers(rank) * e
    parts = {
        "experts": facts.experts * (blocks + rest) * e,
        "text K/V": context * facts.experts * own_branches if transformer.cross_attention else 0,
        "activations": local * (ACTIVATION_COPIES * transformer.hidden + transformer.ffn // degrees.tp) * e,
        "text encoder": facts.text_params * e if rank == 0 else 0,
        "vae": facts.vae.params * 4 if rank in plan.layout.vae_ranks() else 0,
        **registry.memory(plan, rank),
    }
    return {name: size for name, size in parts.items() if size}


def peak(plan: Plan, rank: int = 0) -> int:
    """The largest sum that is held at once: loading text, denoising, or decoding (experts stay loaded)."""
    parts = estimate(plan, rank)
    text = parts.pop("text encoder", 0)
    decode = parts.pop("vae decoding", 0)
    weights = parts.get("experts", 0) + parts.get("vae", 0)
    return max(text, sum(parts.values()), weights + decode)
