"""One plan taken apart: hybridgen plan --explain N."""

from __future__ import annotations

from hybridgen.cli.hardware import constants
from hybridgen.cli.text import paragraph, seconds, short, size, span, table, width
from hybridgen.errors import counted
from hybridgen.planner.choose.ask import Recommendation
from hybridgen.planner.choose.orders import crossings, used_axes
from hybridgen.planner.choose.ranking import Candidate
from hybridgen.planner.price import compute
from hybridgen.planner.price import settings as prices
from hybridgen.planner.price import vae as vae_price
from hybridgen.planner.price.memory import phase_sizes
from hybridgen.strategies.registry import PAIRED

BARS = (14, 30)
"""Characters of a bar for the whole time, on narrow and on wide pages."""


def page(found: Recommendation, candidate: Candidate, number: int) -> list[str]:
    """The page of one plan: time by strategy, messages by axis, memory by component, constants with their origin."""
    cost, plan = candidate.cost, candidate.plan
    exact = "exact" if plan.exact else "approximate"
    low, high = cost.range
    title = f"{candidate.config}, {exact}: denoise {seconds(cost.denoise)} s ({span(low, high)}), "
    parts = [
        paragraph(f"plan {number}", f"{title}clip {seconds(cost.clip)} s"),
        _time(candidate),
        _after(found, candidate),
        _messages(candidate),
        _mesh(found, candidate),
        _memory(candidate),
        [line for why in candidate.why for line in paragraph("why" if why == candidate.why[0] else "", why)],
        _constants(found),
    ]
    lines: list[str] = []
    for part in parts:
        if part:
            lines += ["", *part] if lines else part
    return lines


def _time(candidate: Candidate) -> list[str]:
    cost, steps = candidate.cost, candidate.plan.clip.steps
    rows, limit = [], width()
    full = BARS[limit is None or limit >= 100]
    for item in sorted(cost.items, key=lambda item: -item.seconds):
        share = item.seconds / cost.denoise
        name = f"{item.name} exchange" if item.communication else item.name
        name += f" ({item.axis})" if item.axis in PAIRED else ""
        bound = f"{item.bound}, {item.link}" if item.link else item.bound
        bar = "#" * round(full * share)
        rows.append([name, seconds(item.seconds), f"{share:.0%}", bar, bound])
    first = f"denoise, {counted(steps, 'step')} of {cost.denoise / steps * 1e3:.0f} ms"
    return table([first, "s", "%", "", "bound by"], rows, ("s", "%"))


def _after(found: Recommendation, candidate: Candidate) -> list[str]:
    hardware, plan, cost = found.ask.hardware, candidate.plan, candidate.cost
    writing = vae_price.writing_seconds(plan, hardware)
    before = vae_price.encode_seconds(plan, hardware)
    text_and_transport = hardware.fixed.value + vae_price.prompt_seconds(plan, hardware)
    encoding = f", and {seconds(before)} s to encode {plan.clip.encoded_frames} given frames" if before else ""
    text = (
        f"VAE on {plan.degrees.vae} of {plan.world_size} {seconds(cost.decode)} s{encoding}; text and transport "
        f"{seconds(text_and_transport)} s; writing {seconds(writing)} s, beside the decode but for the last frames"
    )
    slower = compute.eager_seconds(plan, hardware)
    eager = f"priced as compiled ones; run has them eager, which may take {seconds(slower)} s more"
    return [*paragraph("then", text), *(paragraph("blocks", eager) if slower else [])]


def _messages(candidate: Candidate) -> list[str]:
    steps = candidate.plan.clip.steps
    rows = [
        [i.axis, str(candidate.plan.degrees.size(i.axis)), i.name, i.link, size(i.size / steps), size(i.size)]
        for i in candidate.cost.items
        if i.communication
    ]
    if not rows:
        return []
    head = ["axis", "ranks", "strategy", "link", "a rank sends / step", "/ clip"]
    return table(head, rows, ("a rank sends / step", "/ clip"))


def _mesh(found: Recommendation, candidate: Candidate) -> list[str]:
    hardware, plan = found.ask.hardware, candidate.plan
    if not used_axes(plan):
        return []
    sizes = " x ".join(f"{axis} {plan.degrees.size(axis)}" for axis in used_axes(plan))
    words = f"{sizes}, slowest first"
    for place, inside, crossing in crossings(plan, hardware):
        words += f"; inside a {place}: {', '.join(inside) or 'none'}; across {place}s: {', '.join(crossing) or 'none'}"
    return paragraph("mesh", words)


def _memory(candidate: Candidate) -> list[str]:
    rows = [
        [term.name, short(term.size / 1e9), ", ".join(term.phases) + (f" ({term.moment})" if term.moment else "")]
        for term in candidate.terms
    ]
    held = phase_sizes(candidate.terms)
    rows += [[f"in all, {phase}", short(total / 1e9), ""] for phase, total in held.items()]
    return table(["memory of the fullest rank", "GB", "held in"], rows, ("GB",))


def _constants(found: Recommendation) -> list[str]:
    rows = [
        ["kernels of a block", str(compute.KERNELS), "assumed"],
        ["passes of a merge", str(compute.MERGE_PASSES), "counted in distributed/attention.py, LSE included"],
    ]
    used = prices.factors(found.best.plan, found.ask.hardware)
    rows += [[name, f"{one.value:.4g}", one.origin] for name, one in used]
    own = [line for name, value, origin in rows for line in paragraph(f"{name:<28}  {value:<10}", origin, 42)]
    return constants(found.ask.hardware) + own
