"""Reasons for the place of a plan, in short sentences. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal

from hybridgen.planner.choose.ask import Recommendation
from hybridgen.planner.choose.orders import crossings, domains, used_axes
from hybridgen.planner.choose.ranking import Candidate, oblong
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.price.cost import cost
from hybridgen.strategies.registry import AXES

FEW_TOKENS = 256
"""Tokens per rank below which matrix products no longer fill a GPU, which is legal but worth a remark."""


def explained(found: Recommendation) -> Recommendation:
    """The ranked plans, each with its reasons."""
    order = found.candidates
    return replace(found, candidates=tuple(_with_reasons(candidate, found) for candidate in order))


def _with_reasons(candidate: Candidate, found: Recommendation) -> Candidate:
    best = found.best
    first = _for_the_first(found.candidates) if candidate is best else [_against(candidate, best)]
    return replace(candidate, why=tuple(w for w in (*first, mesh_reason(candidate, found.ask.hardware)) if w))


def _for_the_first(order: Sequence[Candidate]) -> Iterator[str]:
    best = order[0]
    runner = next((c for c in order[1:] if c.kind != best.kind or c.tie), None)
    if runner is not None and best.tie:
        yield f"ties with {runner.config}: {_preferred(best, runner)}"
    elif runner is not None:
        slower = runner.cost.clip - best.cost.clip
        yield f"{_short(slower)} s ahead of {runner.config}, the next kind of plan"
    (rows, cols), facts = best.plan.degrees.attn2d, best.plan.facts.transformer
    if rows > cols and facts.key_heads < facts.heads:
        yield f"taller than square: {facts.key_heads} K/V heads against {facts.heads} make K/V cheaper to send than Q"
    tokens = best.plan.tokens
    if tokens.local_size < FEW_TOKENS:
        few = f"only {tokens.local_size} tokens a rank"
        yield f"{few}, so starting kernels and messages takes most of the time; fewer GPUs are almost as fast"
    if best.cost.communication > 0:
        yield f"{best.cost.communication:.0%} of the denoise time is spent in exchanges"


def _preferred(best: Candidate, other: Candidate) -> str:
    """The rule of preference that decided between two plans that tie."""
    a, b = best.plan.degrees, other.plan.degrees
    if best.plan.exact_split != other.plan.exact_split:
        return "of equal plans the exact one"
    if a.cfg != b.cfg:
        return "of equal plans the one with cfg, which sends almost nothing"
    if a.ulysses != b.ulysses:
        return "of equal plans the one with more ulysses ranks, since each then sends less"
    if oblong(best.plan.degrees) != oblong(other.plan.degrees):
        return "of equal plans the one with the squarer grid"
    if a.vae != b.vae:
        return "of equal plans the one with fewer VAE ranks"
    return "of equal plans the faster one"


def _against(candidate: Candidate, best: Candidate) -> str:
    """The item on which a plan spends most more time than the first one."""
    less = by_name(best)
    more = {name: seconds - less.get(name, 0.0) for name, seconds in by_name(candidate).items()}
    name, seconds = max(more.items(), key=lambda item: item[1])
    return f"{name} +{_short(seconds)} s" if seconds > 0 else ""


def _short(seconds: float) -> str:
    """A number with two digits and no exponent."""
    return f"{seconds:.0f}" if seconds >= 9.5 else f"{Decimal(f'{seconds:.2g}'):f}"


def by_name(candidate: Candidate) -> dict[str, float]:
    """Denoising seconds by strategy or kind of computing."""
    found: dict[str, float] = {}
    for item in candidate.cost.items:
        found[item.name] = found.get(item.name, 0.0) + item.seconds
    return found


def mesh_reason(candidate: Candidate, hardware: Hardware) -> str:
    """What the mesh order keeps together: "ulysses stays inside a node; cfg crosses nodes"."""
    plan, place = candidate.plan, domains(hardware)
    if plan.world_size == 1:
        return ""
    inside, crossing = crossings(plan, hardware)
    if not crossing:
        return f"all of it fits into one {place} ({hardware.inside.name}), where every mesh order costs the same"
    order = ", ".join(used_axes(plan))
    parts = [f"{_list(inside)} {_verb('stay', inside)} inside a {place}"] if inside else []
    parts.append(f"{_list(crossing)} {_verb('cross', crossing)} {place}s")
    usual = replace(plan, order=AXES)
    if used_axes(usual) != used_axes(plan):
        gain = cost(usual, hardware).denoise / candidate.cost.denoise - 1
        parts.append(f"{abs(gain):.0%} {'faster' if gain > 0 else 'slower'} than in the usual order")
    return f"order {order}: {'; '.join(parts)}"


def _list(axes: Sequence[str]) -> str:
    return " and ".join(axes) if len(axes) < 3 else f"{', '.join(axes[:-1])} and {axes[-1]}"


def _verb(word: str, axes: Sequence[str]) -> str:
    return word if len(axes) > 1 else f"{word}es" if word.endswith("ss") else f"{word}s"
