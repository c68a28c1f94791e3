"""The most that a block holds at once: diffusers' blocks in eager execution, counted tensor by tensor in tests.

A caller keeps the hidden state it gave to a block until the block is done, and a block what it has a name for.
D is the hidden size, A the channels of this rank's heads, K those of its K/V heads, F its feed-forward channels, all
of one token; tp divides A, K and F. In a model of 16 bits some steps make copies in fp32 ("wide" times as large), in
one of fp32 they make none.
"""

from __future__ import annotations

from collections.abc import Iterator

from hybridgen.plan import FP32, Plan
from hybridgen.traffic import Term


def activations(plan: Plan) -> Iterator[Term]:
    """Bytes on one rank at each moment of a block, beside rope's tables and what is kept of the text."""
    transformer = plan.facts.transformer
    family = cosmos3 if transformer.text_stream == "own" else cosmos if transformer.adaln else wan
    numbers, time = family(plan)
    d, a, k, _, _ = sizes(plan)
    attending = time + 2 * d + a + 2 * k
    token = plan.tokens.local_size * plan.itemsize
    yield Term("activations", token * numbers, moment="block")
    yield Term("activations", token * attending, moment="exchange")
    yield Term("activations", token * attending, moment="attention")


def sizes(plan: Plan) -> tuple[int, int, int, int, int]:
    """D, A, K and F as above, and the size of fp32 in units of the plan's dtype."""
    transformer, tp = plan.facts.transformer, plan.degrees.tp
    a, k = (heads * transformer.head_dim // tp for heads in (transformer.heads, transformer.key_heads))
    return transformer.hidden, a, k, transformer.ffn // tp, FP32 // plan.itemsize


def wan(plan: Plan) -> tuple[int, int]:
    """Numbers a token, the largest of: rope on q and k, the feed-forward layer, its gate, and the times at the start.

    A token with a timestep of its own has an embedding of it, six modulations, and the block's own six in fp32.
    """
    d, a, _, f, wide = sizes(plan)
    copied = wide > 1
    time = (7 + 6 * wide) * d * plan.facts.transformer.token_time
    start = d + time + 6 * wide * d * copied if time else 0
    rope = 2 * d + (3 + 2 * wide) * a
    feed_forward = 4 * d + 2 * f
    gate = 5 * d + (3 * wide if copied else 2) * d
    return max(start, time + max(rope, feed_forward, gate)), time


def cosmos(plan: Plan) -> tuple[int, int]:
    """Numbers a token, the largest of: rope on q and k, the feed-forward layer, the last norm.

    A token with a timestep of its own has an embedding of it and three modulations, the gate of the norm before with
    two more of its size, and while a norm makes its own, as much again.
    """
    d, a, _, f, wide = sizes(plan)
    time = 7 * d * plan.facts.transformer.token_time
    rope = 2 * d + (4 + 2 * wide) * a
    feed_forward = 4 * d + 2 * f
    norm = 7 * d + 3 * d * plan.facts.transformer.token_time
    return time + max(rope, feed_forward, norm), time


def cosmos3(plan: Plan) -> tuple[int, int]:
    """Numbers a token of the video's stream, the largest of: rope on q, the feed-forward layer and its sum, a norm."""
    d, a, k, f, wide = sizes(plan)
    rope = 2 * d + 5 * a + 2 * k
    feed_forward = 3 * d + max((3 if plan.facts.transformer.gated else 2) * f, f + d)
    norm = 2 * d + 2 * wide * d
    return max(rope, feed_forward, norm), 0
