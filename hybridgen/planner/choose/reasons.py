"""Reasons for the place of a plan, in short sentences. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial

from hybridgen.planner.choose.ask import Recommendation
from hybridgen.planner.choose.orders import crossings, domains, used_axes
from hybridgen.planner.choose.ranking import GAINS, SAVING, TIE, Candidate
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.hardware.hosts import borders
from hybridgen.planner.hardware.topology import farthest
from hybridgen.planner.price.cost import cost
from hybridgen.strategies.registry import AXES

FEW_TOKENS = 256
"""Tokens per rank below which matrix products no longer fill a GPU, which is legal but worth a remark."""


def explained(found: Recommendation) -> Recommendation:
    """The ranked plans, each with its reasons, which are worked out when they are read."""
    told = partial(_reasons, found)
    return replace(found, candidates=tuple(replace(candidate, told=told) for candidate in found.candidates))


def _reasons(found: Recommendation, candidate: Candidate) -> Iterator[str]:
    best = found.best
    if candidate.plan is best.plan:
        yield from _for_the_first(found.candidates)
    else:
        yield _against(candidate, best)
    if reason := mesh_reason(candidate, found.ask.hardware):
        yield reason


def _for_the_first(order: Sequence[Candidate]) -> Iterator[str]:
    best, tied = order[0], [c for c in order[1:] if c.tie]
    other = min(tied, key=lambda c: c.cost.clip) if tied else next((c for c in order if c.kind != best.kind), None)
    if tied and other is not None:
        yield f"ties with {other.config}, within {TIE.value:.0%}: {_gained(best, other)}"
    elif other is not None:
        slower = other.cost.clip - best.cost.clip
        yield f"{_short(slower)} s ahead of {other.config}, the next kind of plan"
    (rows, cols), facts = best.plan.degrees.attn2d, best.plan.facts.transformer
    if rows > cols and facts.key_heads < facts.heads:
        yield f"taller than square: {facts.key_heads} K/V heads against {facts.heads} make K/V cheaper to send than Q"
    tokens = best.plan.tokens
    if tokens.local_size < FEW_TOKENS:
        few = f"only {tokens.local_size} tokens a rank"
        yield f"{few}, so starting kernels and messages takes most of the time; fewer GPUs are almost as fast"
    if best.cost.communication > 0:
        yield f"{best.cost.communication:.0%} of the denoise time is spent in exchanges"
    if best.tight:
        yield f"tight: it needs {room(best)}, and what an allocator keeps beside the tensors is not predicted"


def _gained(one: Candidate, other: Candidate) -> str:
    """What a user gains by the preferred one of two plans that tie."""
    words = {
        "exact": "this one is exact",
        "room": f"this one needs {room(one)}, not {room(other)}",
        "sent": f"here a rank sends {_sent(one)}, not {_sent(other)}, over {_slowest(one)}",
        "memory": f"this one needs {_gigabytes(one.peak)} of memory, not {_gigabytes(other.peak)}",
        "": "this one is faster",
    }
    return words[decisive(one, other)]


def _lost(one: Candidate, best: Candidate) -> str:
    """What a user loses by a plan that ties with the preferred one, in a few words."""
    words = {
        "exact": "not exact",
        "room": f"tight: {room(one)}",
        "sent": f"sends {_sent(one)}, not {_sent(best)}, over {_slowest(one)}",
        "memory": f"needs {_gigabytes(one.peak)}, not {_gigabytes(best.peak)}",
        "": f"{_short(one.cost.clip - best.cost.clip)} s slower",
    }
    return words[decisive(best, one)]


def decisive(one: Candidate, other: Candidate) -> str:
    """What of GAINS decides for the preferred one of two plans that tie; "" where it is the faster one."""
    for least in (SAVING.value, 0.0):
        found = next((name for name, value in GAINS.items() if value(other) > (1 + least) * value(one)), "")
        if found or one.cost.clip <= other.cost.clip:
            return found
    return ""


def _sent(candidate: Candidate) -> str:
    return _gigabytes(candidate.slow_bytes)


def _slowest(candidate: Candidate) -> str:
    ranks = candidate.plan.world_size
    return farthest(candidate.hardware, borders(ranks, candidate.hardware), ranks).name


def used(candidate: Candidate) -> str:
    """GB of the fullest rank, and of how many: "63 of 186"; with a digit more where it is tight: "79.9 of 80"."""
    digits = 1 if candidate.tight or candidate.peak < 9.5e9 else 0
    amount = math.floor(candidate.peak / 1e9 * 10**digits) / 10**digits if candidate.tight else candidate.peak / 1e9
    text = f"{amount:.{digits}f}" if amount >= 0.95 else f"{amount:.2f}"
    return f"{text} of {candidate.memory / 1e9:g}" if math.isfinite(candidate.memory) else text


def room(candidate: Candidate) -> str:
    """Memory of the fullest rank beside what a GPU may use: "79.9 of 80 GB"."""
    return f"{used(candidate)} GB"


def _gigabytes(size: float) -> str:
    return f"{_short(size / 1e9)} GB" if size < 1e11 else f"{size / 1e9:,.0f} GB"


def _against(candidate: Candidate, best: Candidate) -> str:
    """Why a plan is not the first: what ties cost beside time, or how much slower it is, and what costs most of it."""
    if candidate.tie:
        return _lost(candidate, best)
    less = by_name(best)
    more = {name: seconds - less.get(name, 0.0) for name, seconds in by_name(candidate).items()}
    name, seconds = max(more.items(), key=lambda item: item[1])
    slower = f"{_short(candidate.cost.clip - best.cost.clip)} s slower"
    return f"{slower}: {name} +{_short(seconds)} s" if seconds > 0 else slower


def _short(seconds: float) -> str:
    """A number with two digits and no exponent."""
    return f"{seconds:.0f}" if seconds >= 9.5 else f"{Decimal(f'{seconds:.2g}'):f}"


def by_name(candidate: Candidate) -> dict[str, float]:
    """Seconds by strategy or kind of computing, and those around denoising."""
    found = {"VAE": candidate.cost.end}
    for item in candidate.cost.items:
        found[item.name] = found.get(item.name, 0.0) + item.seconds
    return found


def mesh_reason(candidate: Candidate, hardware: Hardware) -> str:
    """What the mesh order keeps together: "ulysses stays inside a node; cfg crosses nodes"."""
    plan, place = candidate.plan, domains(hardware)
    if plan.world_size == 1:
        return ""
    crossed = [one for one in crossings(plan, hardware) if one.crossing]
    if not crossed:
        return f"all of it fits into one {place} ({hardware.inside.name}), where every mesh order costs the same"
    order = ", ".join(used_axes(plan))
    parts = []
    for place, inside, crossing in crossed:
        parts += [f"{_list(inside)} {_verb('stay', inside)} inside a {place}"] if inside else []
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
