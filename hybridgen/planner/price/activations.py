"""The most that a block holds at once, which tests count tensor by tensor on diffusers' blocks. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from hybridgen.plan.facts import Sizes
from hybridgen.plan.plan import FP32, Plan
from hybridgen.plan.traffic import Term


def activations(plan: Plan) -> Iterator[Term]:
    """Bytes on one rank at each moment of a block, without rotary tables and what is kept of the text."""
    s = sizes(plan)
    most, time = plan.facts.transformer.most_held(s)
    attending = time + 2 * s.d + s.a + 2 * s.k  # hidden state and norm; Q, K and V
    token = plan.tokens.local_size * plan.itemsize
    yield Term("activations", token * most, moment="block")
    yield Term("activations", token * attending, moment="exchange")
    yield Term("activations", token * attending, moment="attention")


def sizes(plan: Plan) -> Sizes:
    """Elements per token for the plan's model and dtype."""
    transformer, tp = plan.facts.transformer, plan.degrees.tp
    a, k = (heads * transformer.head_dim // tp for heads in (transformer.heads, transformer.key_heads))
    sides = 3 if transformer.gated else 2
    return Sizes(transformer.hidden, a, k, transformer.ffn // tp, sides, FP32 // plan.itemsize)
