"""The strategies, as one literal table in the order in which they are applied to a loaded model. No torch.

Why this order: the exchange of K/V (ring, attention2d) wraps the local kernel, and Ulysses wraps that, because it
must hand the exchange whole heads. PipeFusion replaces how a pass runs through the blocks, so it comes after the
attention is complete; cfg replaces how the passes' predictions meet, so it comes after that. The VAE is apart, and usp
sets the degrees of others.
"""

# ruff: noqa: F401 - the imports are the table
from __future__ import annotations

from dataclasses import field, make_dataclass
from typing import TYPE_CHECKING

from hybridgen.errors import RequestError, assert_unique
from hybridgen.plan import degrees
from hybridgen.plan.axes import Setting, Value
from hybridgen.plan.plan import Plan
from hybridgen.plan.traffic import Message, Term, shared_messages
from hybridgen.strategies.strategy import Strategy

# The table: one line per strategy, in the order of application.
# isort: off
from hybridgen.strategies.tp.rules import STRATEGY as tp
from hybridgen.strategies.ring.rules import STRATEGY as ring
from hybridgen.strategies.attention2d.rules import STRATEGY as attention2d
from hybridgen.strategies.ulysses.rules import STRATEGY as ulysses
from hybridgen.strategies.pipefusion.rules import STRATEGY as pipefusion
from hybridgen.strategies.cfg.rules import STRATEGY as cfg
from hybridgen.strategies.parallel_vae.rules import STRATEGY as parallel_vae
from hybridgen.strategies.usp.rules import STRATEGY as usp
# isort: on

RULES = {
    "branches": "Every rank runs at least one guidance branch of a step, so there are no more parts than branches.",
}
STRATEGIES: tuple[Strategy, ...] = tuple(found for found in list(globals().values()) if isinstance(found, Strategy))
"""The imported declarations, in the order of the imports."""
DEGREES = tuple(sorted((d for s in STRATEGIES for d in s.degrees), key=lambda degree: degree.listed))
"""Every degree in the order of the flags, which is that of a recipe's keys."""
BY_DEGREE = {degree.name: strategy for strategy in STRATEGIES for degree in strategy.degrees}
OPTIONS = tuple(sorted((o for s in STRATEGIES for o in s.options), key=lambda option: option.listed))
SHORTHANDS = tuple(sorted((o for s in STRATEGIES for o in s.shorthands), key=lambda option: option.listed))
SETTINGS: tuple[Setting, ...] = (*DEGREES, *SHORTHANDS, *OPTIONS)
PAIRED = tuple(axis.name for degree in DEGREES for axis in degree.axes if len(degree.axes) > 1)
"""Axes with other names than their degree: rows and columns."""
assert_unique("flag or key of the strategies", [setting.name for setting in SETTINGS])
assert_unique("place among the flags", [setting.listed for setting in SETTINGS])
assert_unique("rule of the strategies", [rule for s in STRATEGIES for rule in s.reasons])
OVERLAID = tuple(degree.name for degree in DEGREES if degree.is_overlaid)
"""Degrees that are laid over the mesh and say nothing of the number of ranks."""
NO_SHORTHANDS: dict[str, str | None] = dict.fromkeys(shorthand.name for shorthand in SHORTHANDS)
"""Changes of flags that take every shorthand away, as where degrees are named."""
BESIDE = tuple(setting.name for setting in (*SHORTHANDS, *OPTIONS)) + ("order",)
"""Flags that add to degrees and are dropped where those change."""

if TYPE_CHECKING:
    from hybridgen.plan.degrees import Degrees as Degrees
else:
    _table = tuple(degrees.in_mesh_order(DEGREES))
    _options = {option.name: (option, s.degrees) for s in STRATEGIES for option in s.options}
    Degrees = make_dataclass(
        "Degrees",
        [(degree.name, Value, field(default=degree.one)) for degree in _table],
        bases=(degrees.Degrees,),
        namespace={"table": _table, "options": _options, "__doc__": degrees.Degrees.__doc__, "__module__": __name__},
        frozen=True,
    )

AXES = Degrees.default_order
"""Axes of the mesh in their default order, slowest first."""


def active(plan: Plan) -> list[Strategy]:
    """The strategies that the plan uses, in order of application."""
    return [s for s in STRATEGIES if s.degree(plan) > 1]


def violations(plan: Plan) -> list[RequestError]:
    """Every rule that the plan breaks, the most basic first."""
    found = [broken for s in STRATEGIES for broken in s.violations(plan)]
    return found or _shared_rules(plan)


def _shared_rules(plan: Plan) -> list[RequestError]:
    """Rules that no single strategy can break."""
    over = [degree for degree in plan.degrees.used() if any(axis.divides == "branches" for axis in degree.axes)]
    if len(over) < 2 or plan.degrees.over("branches") <= plan.branches:
        return []
    first, last = over[0], over[-1]
    problem = f"excludes --{first.name} {first.text(plan.degrees.value(first))}: a step has {plan.branches} branches"
    return [RequestError("branches", last.name, last.text(plan.degrees.value(last)), problem, [last.text(last.one)])]


def traffic(plan: Plan, rank: int) -> list[Message]:
    """Every message that a rank sends in one request."""
    own = [m for s in STRATEGIES for m in s.traffic(plan, rank)]
    return own + shared_messages(plan, rank)


def memory(plan: Plan, rank: int) -> list[Term]:
    """Memory that the strategies need on a rank in addition to the model."""
    return [term for s in STRATEGIES for term in s.memory(plan, rank)]


def explanations() -> dict[str, str]:
    """The reason of every rule of the strategies, by rule id."""
    return RULES | {rule: why for s in STRATEGIES for rule, why in s.reasons.items()}
