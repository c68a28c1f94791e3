"""The strategies, as one literal table in the order in which they are applied to a loaded model. No torch.

Why this order: the exchange of K/V (ring, attention2d) wraps the local kernel, and Ulysses wraps that, because it
must hand the exchange whole heads. PipeFusion replaces how a pass runs through the blocks, so it comes after the
attention is complete; cfg replaces how the passes' predictions meet, so it comes after that. The VAE is apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol

from hybridgen.errors import Violation
from hybridgen.plan.plan import Plan
from hybridgen.plan.traffic import Message, Term, shared_messages
from hybridgen.strategies.attention2d import rules as attention2d
from hybridgen.strategies.cfg import rules as cfg
from hybridgen.strategies.parallel_vae import rules as parallel_vae
from hybridgen.strategies.pipefusion import rules as pipefusion
from hybridgen.strategies.ring import rules as ring
from hybridgen.strategies.tp import rules as tp
from hybridgen.strategies.ulysses import rules as ulysses


class Rules(Protocol):
    """What a strategy's rules.py provides."""

    RULES: dict[str, str]

    def violations(self, plan: Plan) -> Iterator[Violation]: ...

    def traffic(self, plan: Plan, rank: int) -> Iterator[Message]: ...

    def memory(self, plan: Plan, rank: int) -> Iterator[Term]: ...


@dataclass(frozen=True)
class Strategy:
    """One line of the registry."""

    name: str
    flag: str
    axes: tuple[str, ...]
    """Axes it uses; "vae" is laid over the mesh. --usp sets those of ulysses and ring."""
    rules: Rules

    def degree(self, plan: Plan) -> int:
        return math.prod(plan.degrees.size(axis) for axis in self.axes)

    def apply(self, model: Any, mesh: Any, plan: Plan) -> None:
        """Change a loaded model: apply() of the strategy's run.py (imports torch)."""
        import_module(f"hybridgen.strategies.{self.name.replace('-', '_')}.run").apply(model, mesh, plan)


STRATEGIES = (
    Strategy("tp", "--tp", ("tp",), tp),
    Strategy("ring", "--ring", ("ring",), ring),
    Strategy("attention2d", "--attn2d", ("row", "col"), attention2d),
    Strategy("ulysses", "--ulysses", ("ulysses",), ulysses),
    Strategy("pipefusion", "--pipefusion", ("pipefusion",), pipefusion),
    Strategy("cfg", "--cfg", ("cfg",), cfg),
    Strategy("parallel-vae", "--vae", ("vae",), parallel_vae),
)


def active(plan: Plan) -> list[Strategy]:
    """The strategies that the plan uses, in order of application."""
    return [s for s in STRATEGIES if s.degree(plan) > 1]


def violations(plan: Plan) -> list[Violation]:
    """Every rule that the plan breaks, first things first."""
    return [replace(v, why=s.rules.RULES[v.rule]) for s in STRATEGIES for v in s.rules.violations(plan)]


def traffic(plan: Plan, rank: int) -> list[Message]:
    """Every message that a rank sends in one request."""
    own = [m for s in STRATEGIES for m in s.rules.traffic(plan, rank)]
    return own + shared_messages(plan, rank)


def memory(plan: Plan, rank: int) -> list[Term]:
    """What the strategies need on a rank beside the model itself."""
    return [term for s in STRATEGIES for term in s.rules.memory(plan, rank)]


def explanations() -> dict[str, str]:
    """The reason of every rule of the strategies, by rule id."""
    return {rule: why for s in STRATEGIES for rule, why in s.rules.RULES.items()}
