"""Bytes a rank needs, by component and phase, from the plan alone. No torch.

The phases follow engine/worker.py. Rank 0 encodes the text and frees the encoder before the transformers are loaded.
Transformers and VAE are loaded together and stay. Weights are read and placed one tensor at a time, so loading peaks no
higher than what it leaves. Before denoising ("condition") conditioning frames are encoded, and a text stream with
weights of its own is read; these weights are freed before the others are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from hybridgen.plan.plan import FP32, Plan
from hybridgen.plan.traffic import MOMENTS, PHASES, TOKEN_ID, Phase, Term
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.price.activations import activations
from hybridgen.planner.price.kinds import kinds
from hybridgen.strategies import registry

LOADED: tuple[Phase, ...] = ("condition", "denoise", "decode")
"""Phases in which transformers and VAE are loaded."""
SCHEDULER_STATES = 4
"""Copies of a rank's part of the latents between steps: the state, and what UniPC remembers, the state before and two
predictions."""


def terms(plan: Plan, rank: int = 0) -> list[Term]:
    """Memory terms of a rank."""
    facts, degrees, e = plan.facts, plan.degrees, plan.itemsize
    transformer, layers = facts.transformer, len(plan.blocks(rank))
    context = 2 * plan.context_tokens * transformer.key_heads * transformer.head_dim // degrees.tp * layers * e
    kept_text = facts.experts * plan.own_branches * (transformer.cross_attention or transformer.text_stream == "own")
    read, unread = text_weights(plan, rank)
    found = [
        Term("text encoder", facts.text_params * e if rank == 0 else 0, ("setup",)),
        Term("image encoder", facts.image_params * FP32 if rank == 0 and plan.clip.image else 0, ("setup",)),
        Term("weights", _weights(plan, expert_params(plan, layers) - read - unread, layers), LOADED[bool(read) :]),
        Term("weights that read text", _weights(plan, read, layers), ("condition",)),
        Term("text K/V", context * kept_text, ("denoise", "decode")),
        Term("text states", text_states(plan), ("denoise", "decode")),
        Term("latents", latents(plan, rank)),
        Term("scheduler's step", stepping(plan), moment="step"),
        Term("vae", facts.vae.params * FP32 if rank in plan.layout.vae_ranks() else 0, LOADED),
        *activations(plan),
        *registry.memory(plan, rank),
    ]
    fullest = max(MOMENTS, key=lambda moment: sum(term.size for term in found if term.moment == moment))
    return [term for term in found if term.size and term.moment in ("", fullest)]


def _weights(plan: Plan, params: int, layers: int) -> int:
    """Bytes of this many parameters of each expert, the matrices of its blocks among them, as the settings hold these.

    All others, such as norms and embeddings, are in the plan's dtype.
    """
    transformer = plan.facts.transformer
    block = transformer.matrix_params + transformer.text_matrix_params
    matrices = min(layers * block // plan.degrees.tp, params)
    size = plan.settings.size_of_weight(plan.itemsize)
    return plan.facts.experts * (round(matrices * size) + (params - matrices) * plan.itemsize)


def text_states(plan: Plan) -> int:
    """Memory of the text of all branches and of embedded images.

    These are embeddings, and what each expert makes of those that it cross-attends to; where blocks read text of
    another width, what was made of it once; for a text stream with weights of its own, token ids.
    """
    facts, transformer = plan.facts, plan.facts.transformer
    tokens = sum(plan.text_lengths) or plan.branches * facts.text_tokens
    if transformer.text_stream == "own":
        return tokens * TOKEN_ID
    if transformer.text_width:
        return tokens * transformer.text_width * plan.itemsize
    read = facts.experts * transformer.hidden if transformer.cross_attention else 0
    text = tokens * transformer.text_dim + plan.own_branches * facts.text_tokens * read
    return (text + plan.picture_tokens * (transformer.image_dim + read)) * plan.itemsize


def expert_params(plan: Plan, layers: int) -> int:
    """Parameters of one transformer that a rank with this many blocks holds; tp cuts the matrices of its blocks."""
    transformer = plan.facts.transformer
    block = min(transformer.block_params, transformer.params // transformer.layers)  # params may be given
    return layers * block // plan.degrees.tp + transformer.params - transformer.layers * block


def text_weights(plan: Plan, rank: int) -> tuple[int, int]:
    """Parameters of one transformer's weights for a text stream of its own, on a rank: those that are freed when the
    text has been read, and those that are never read from the checkpoint.

    The latter are the layer that would write text, and the words' embedding but on the first stage.
    """
    transformer, blocks = plan.facts.transformer, plan.blocks(rank)
    if transformer.text_stream != "own":
        return 0, 0
    words, stream = transformer.vocabulary * transformer.hidden, len(blocks) * transformer.block_params // 2
    first = blocks.start == 0
    return stream // plan.degrees.tp + words * first, words * (2 - first) + transformer.hidden


def latents(plan: Plan, rank: int) -> int:
    """Memory while blocks run: this rank's state with the scheduler's copies, predictions of earlier branches, rotary
    tables, a mask of padding.

    Conditioning frames add what the autoencoder made of them, whole, and this rank's part.
    """
    transformer, local = plan.facts.transformer, plan.tokens.local_size
    channels, frames, rows, columns = plan.latent_shape
    states = SCHEDULER_STATES if plan.is_last_stage(rank) else 1  # the others keep the state alone
    state = states * local * transformer.prediction_channels * FP32
    predictions = (plan.own_branches - 1) * local * transformer.prediction_channels * plan.itemsize
    # Positions of video that follow those of its text are every branch's own.
    tables = plan.own_branches if transformer.text_stream == "own" else plan.facts.experts
    rope = 2 * tables * local * transformer.head_dim * FP32
    mask = local * transformer.prediction_channels * FP32 if plan.facts.pads else 0
    whole = channels * frames * rows * columns * FP32
    given = whole + local * max(transformer.patch_channels - transformer.prediction_channels, 0) * FP32
    return state + predictions + rope + mask + given * (plan.clip.encoded_frames > 0)


def stepping(plan: Plan) -> int:
    """Memory of the scheduler's step besides the latents: at the start the whole noise and its tokens, later the guided
    prediction, as it is and in fp32, and the next state.
    """
    numbers = plan.tokens.local_size * plan.facts.transformer.prediction_channels
    whole = math.prod(plan.latent_shape) * FP32
    return max(2 * whole, numbers * (plan.itemsize + 2 * FP32))


def peak(plan: Plan, rank: int = 0) -> int:
    """Peak bytes over all phases."""
    return max(phase_sizes(terms(plan, rank)).values())


def phase_sizes(held: Iterable[Term]) -> dict[str, int]:
    """Bytes by phase."""
    held = list(held)
    return {phase: sum(term.size for term in held if phase in term.phases) for phase in PHASES}


def fullest(plan: Plan) -> tuple[int, list[Term]]:
    """The rank that needs most memory, and its terms: the first of these, which is rank 0 in most plans."""
    ranks = kinds(plan)
    if len(ranks) == 1:
        return ranks[0], terms(plan, ranks[0])
    found = [(rank, terms(plan, rank)) for rank in ranks]
    return max(found, key=lambda one: max(phase_sizes(one[1]).values()))


def held(plan: Plan, hardware: Hardware) -> tuple[Term, ...]:
    """Memory terms of the fullest rank on this machine."""
    _, own = fullest(plan)
    terms = [*own, Term("context", int(hardware.reserve.value), PHASES)]
    return tuple(term for term in terms if term.size)
