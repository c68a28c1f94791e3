"""Bytes a rank needs, by component and phase, from the plan alone. No torch.

What is held when follows runtime/worker.py: rank 0 encodes the text and frees the encoder before the transformers are
loaded; transformers and VAE are loaded together and stay; a weight is read and placed one tensor at a time, so loading
peaks no higher than what it leaves.
"""

from __future__ import annotations

from collections.abc import Iterable

from hybridgen.plan import FP32, Plan
from hybridgen.strategies import registry
from hybridgen.traffic import PHASES, Term

SCHEDULER_STATES = 5
"""Copies of a rank's part of the latents: the state, two predictions that UniPC remembers, and two while it steps."""


def terms(plan: Plan, rank: int = 0) -> list[Term]:
    """What this rank holds."""
    facts, degrees, e = plan.facts, plan.degrees, plan.itemsize
    transformer, layers = facts.transformer, len(plan.blocks(rank))
    context = 2 * facts.text_tokens * transformer.key_heads * transformer.head_dim // degrees.tp * layers * e
    kept_text = facts.experts * plan.own_branches * (transformer.cross_attention or transformer.text_stream == "own")
    found = [
        Term("text encoder", facts.text_params * e if rank == 0 else 0, ("setup",)),
        Term("weights", facts.experts * expert_params(plan, layers) * e, ("denoise", "decode")),
        Term("text K/V", context * kept_text, ("denoise", "decode")),
        Term("text states", text_states(plan), ("denoise", "decode")),
        Term("activations", activations(plan)),
        Term("latents", latents(plan)),
        Term("vae", facts.vae.params * FP32 if rank in plan.layout.vae_ranks() else 0, ("denoise", "decode")),
        *registry.memory(plan, rank),
    ]
    return [term for term in found if term.size]


def text_states(plan: Plan) -> int:
    """The embeddings of all branches, and what each expert makes of those that it cross-attends to."""
    facts, transformer = plan.facts, plan.facts.transformer
    projected = facts.experts * plan.own_branches * transformer.hidden if transformer.cross_attention else 0
    return facts.text_tokens * (plan.branches * transformer.text_dim + projected) * plan.itemsize


def expert_params(plan: Plan, layers: int) -> int:
    """Numbers of one transformer that a rank with so many blocks holds: tp cuts the matrices of its blocks."""
    transformer = plan.facts.transformer
    block = min(transformer.block_params, transformer.params // transformer.layers)  # params may be given
    return layers * block // plan.degrees.tp + transformer.params - transformer.layers * block


def largest_matrix(plan: Plan) -> int:
    """Bytes of a feed-forward matrix in fp32, in which kernels pack it whatever the plan's dtype."""
    transformer = plan.facts.transformer
    return transformer.hidden * transformer.ffn // plan.degrees.tp * FP32


def activations(plan: Plan) -> int:
    """The most that a block holds at once: diffusers' Wan block in eager execution, counted in tests.

    Attention: hidden state and its norm; q, k, v, the rotated q and k, attention's output, and rope's intermediates in
    fp32. Feed-forward: hidden state, norm, and both sides of the activation. Norms: copies in fp32.
    """
    transformer, e, tp = plan.facts.transformer, plan.itemsize, plan.degrees.tp
    attention = 2 * transformer.hidden + (6 + 2 * FP32 // e) * transformer.heads * transformer.head_dim // tp
    feed_forward = 3 * transformer.hidden + (3 if transformer.gated else 2) * transformer.ffn // tp
    norms = transformer.hidden * (1 + 3 * FP32 // e)
    return plan.tokens.local_size * max(attention, feed_forward, norms) * e


def latents(plan: Plan) -> int:
    """The whole noise, this rank's state with the scheduler's copies, predictions, and rope's tables."""
    transformer, local = plan.facts.transformer, plan.tokens.local_size
    channels, frames, rows, columns = plan.latent_shape
    noise = channels * frames * rows * columns * FP32
    state = SCHEDULER_STATES * local * transformer.patch_channels * FP32
    predictions = (plan.own_branches + 1) * local * transformer.prediction_channels * plan.itemsize
    rope = 2 * plan.facts.experts * local * transformer.head_dim * FP32
    return noise + state + predictions + rope


def peak(plan: Plan, rank: int = 0) -> int:
    """The most that is held in any phase."""
    return max(phase_sizes(terms(plan, rank)).values())


def phase_sizes(held: Iterable[Term]) -> dict[str, int]:
    """Bytes by phase."""
    held = list(held)
    return {phase: sum(term.size for term in held if phase in term.phases) for phase in PHASES}


def fullest_rank(plan: Plan) -> int:
    """The rank that needs most: rank 0, which encodes and decodes, unless another stage holds more blocks."""
    stages = (plan.layout.rank({"pipefusion": stage}) for stage in range(plan.degrees.pipefusion))
    return max(stages, key=lambda rank: peak(plan, rank)) if plan.degrees.pipefusion > 1 else 0
