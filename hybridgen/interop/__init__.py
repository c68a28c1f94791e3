"""Plans and recipes in the words of other engines; no torch.

What an engine cannot do is refused, and what it would do differently is a warning. Sources: docs/recipes.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields

from hybridgen.errors import Change, RequestError
from hybridgen.plan.axes import Degree, Value
from hybridgen.plan.plan import Plan
from hybridgen.recipe.fields import Recipe
from hybridgen.recipe.flags import name_of

RULES = {
    "engine-failed": "The other engine's own processes ended with an error; what they printed is above.",
    "engine-lacks": "Another engine has fewer strategies, models or combinations; what it cannot do is refused rather "
    "than run otherwise than asked.",
    "engine-missing": "Other engines are extras that are installed apart.",
    "engine-output": "The other engine writes the video alone.",
    "engine-place": "The other engine's runner is started once and makes its own ranks.",
}


@dataclass(frozen=True)
class Export:
    """A command line or a file of another engine, and what its reader must know."""

    text: str
    warnings: tuple[str, ...] = ()


def refuse(engine: str, plan: Plan, lacks: dict[str, bool], nearest: str = "", tries: Sequence[Change] = ()) -> None:
    """Raise RequestError (engine-lacks) with all that the plan needs of what the engine lacks ({fault: needed})."""
    faults = [fault for fault, needed in lacks.items() if needed]
    if faults:
        problem = f"{engine} cannot run {plan.facts.name}, {plan.degrees}: {'; '.join(faults)}"
        raise RequestError("engine-lacks", "", None, problem, nearest, tries)


def named(plan: Plan, target: str) -> dict[str, Value]:
    """The degrees above 1 under the names that a target of `recipes export` has for them, in the order of the flags."""
    return {d.engines[target]: plan.degrees.value(d) for d in _used(plan) if target in d.engines}


def unnamed(plan: Plan, target: str) -> dict[str, bool]:
    """Faults for refuse(): the degrees above 1 that a target has no name for."""
    missing = [degree for degree in _used(plan) if target not in degree.engines]
    return {f"no {degree.name} (--{degree.name} {degree.text(plan.degrees.value(degree))})": True for degree in missing}


def _used(plan: Plan) -> list[Degree]:
    return sorted(plan.degrees.used(), key=lambda degree: degree.listed)


def others_given(recipe: Recipe, known: Collection[str]) -> Iterator[str]:
    """Flags and values of what a recipe's request and runtime give and an export does not know of."""
    for section in (recipe.request, recipe.runtime):
        for item in fields(section):
            if item.name not in known and (value := getattr(section, item.name)) is not None:
                yield f"{name_of(item)} {value}"
