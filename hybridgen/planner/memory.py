"""Bytes a rank needs, by component and phase: an estimate from the plan alone. No torch.

Weights and buffers are counted; what activations take is an allowance. It is good enough to refuse what cannot fit,
and has not been held against measured runs yet.
"""

from __future__ import annotations

from hybridgen.plan import FP32, Plan
from hybridgen.strategies import registry
from hybridgen.traffic import PHASES, Term

ACTIVATION_COPIES = 10
"""Tensors of the size of the hidden state that a block holds at once, fp32 intermediates counted double."""


def terms(plan: Plan, rank: int = 0) -> list[Term]:
    """What this rank holds. Rank 0 encodes the text before the transformers are loaded."""
    facts, degrees, e = plan.facts, plan.degrees, plan.itemsize
    transformer, local, layers = facts.transformer, plan.tokens.local_size, len(plan.blocks(rank))
    blocks = layers * transformer.block_params // degrees.tp
    rest = transformer.params - transformer.layers * transformer.block_params
    context = 2 * facts.text_tokens * transformer.hidden // degrees.tp * layers * e
    found = [
        Term("text encoder", facts.text_params * e if rank == 0 else 0, ("setup",)),
        Term("experts", facts.experts * (blocks + rest) * e, ("denoise", "decode")),
        Term(
            "text K/V", context * facts.experts * plan.own_branches * transformer.cross_attention, ("denoise", "decode")
        ),
        Term("activations", local * (ACTIVATION_COPIES * transformer.hidden + transformer.ffn // degrees.tp) * e),
        Term("vae", facts.vae.params * FP32 if rank in plan.layout.vae_ranks() else 0, ("denoise", "decode")),
        *registry.memory(plan, rank),
    ]
    return [term for term in found if term.size]


def peak(plan: Plan, rank: int = 0) -> int:
    """The most that is held in any phase."""
    held = terms(plan, rank)
    return max(sum(term.size for term in held if phase in term.phases) for phase in PHASES)
