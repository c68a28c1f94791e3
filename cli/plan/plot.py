"""The plot of hybridgen plan --plot: how plans scale, or what copies make, and what plans spend their time on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from hybridgen.cli.text import seconds
from hybridgen.distributed.files import free_name, may_write, written_whole
from hybridgen.errors import RequestError, counted
from hybridgen.planner.choose import recommend
from hybridgen.planner.choose.ask import Recommendation
from hybridgen.planner.choose.fleet import frontier
from hybridgen.planner.choose.ranking import Candidate
from hybridgen.planner.choose.reasons import by_name
from hybridgen.strategies.registry import BY_DEGREE, DEGREES

COMPUTING = {"attention": "#1f5a94", "matrix products": "#4a90c2", "norms, rope, residuals": "#9cc6e0"}
WAITING = {"pipeline bubbles": "#c7e9c0", "waiting for the slowest GPU": "#969696"}
EXCHANGING = ("#a6d96a", "#e08214", "#7b3294", "#b2182b", "#c2a500", "#4d9221", "#35978f", "#de77ae", "#8c510a")
STRATEGIES = dict.fromkeys(BY_DEGREE[degree.name].name for degree in DEGREES if not degree.is_overlaid)
COLOURS = {**COMPUTING, **dict(zip(STRATEGIES, cycle(EXCHANGING), strict=False)), **WAITING}
"""Colours by what the time is spent on; the rest is "other"."""
OTHER = "#d0d0d0"
MARKED = "#d6302a"
"""Colour of the recommended plan."""
BARS = 6


def draw(path: Path, found: Recommendation, shown: Sequence[Candidate], frames: int) -> None:
    """Write the plot: how plans scale, or what copies make where that is asked for, and what plans spend their time on.

    Raises RequestError if matplotlib or the folder is missing, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        missing = "needs matplotlib, which is not installed"
        raise RequestError("plot", "plot", None, missing, tries=["pip install matplotlib"]) from error
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    if path.suffix.lower()[1:] not in figure.canvas.get_supported_filetypes():
        near = free_name(path.with_suffix(".png") if path.name else Path("plan.png"))
        raise RequestError("output-format", "plot", path, "must end in a format that matplotlib writes", [near])
    may_write("plot", path, can_overwrite=False)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    if found.ask.aim.is_asked:
        _frontier(left, found, recommend.fleets(found.asked))
    else:
        _scaling(left, recommend.scaling(found.ask))
    _times(right, shown[:BARS])
    clip, facts = found.best.plan.clip, found.best.plan.facts
    made = f"{clip.width}x{clip.height}, {counted(frames, 'frame')}, {counted(clip.steps, 'step')}"
    title = f"{facts.name}, {made}, on {found.ask.hardware.title} (predicted)"
    figure.suptitle(title, fontsize=15)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=12, frameon=False)
    with written_whole(path, overwrite=False) as part:
        figure.savefig(part, dpi=160, format=path.suffix.lower()[1:])


def _scaling(axes: Any, widths: Sequence[Recommendation]) -> None:
    gpus = [one.ask.gpus for one in widths]
    error = widths[0].ask.hardware.anchored.value  # a ratio to one GPU's time is as good as with that time known
    low, high = ([one.best.speedup * (1 + s * error * (one.ask.gpus > 1)) for one in widths] for s in (-1, 1))
    high = [min(pair) for pair in zip(high, gpus, strict=True)]  # more than ideal is predicted by nothing here
    axes.plot(gpus, gpus, "--", color="#808080", label="ideal")
    axes.fill_between(gpus, low, high, color=COLOURS["matrix products"], alpha=0.25, linewidth=0, label="range")
    axes.plot(gpus, [one.best.speedup for one in widths], "o-", color=COLOURS["attention"], label="best plan")
    last = widths[-1].best
    words = f"{counted(gpus[-1], 'GPU')}: {last.speedup:.3g}x\n{last.efficiency:.0%} of ideal"
    axes.text(0.97, 0.05, words, transform=axes.transAxes, ha="right", va="bottom", size=14)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    ticks = [n for n in gpus if n & (n - 1) == 0 and n <= gpus[-1] / 1.4] + gpus[-1:]
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("GPUs", fontsize=13)
    axes.set_ylabel("speed-up of denoising (times one GPU)", fontsize=13)
    axes.tick_params(labelsize=12)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=12, loc="upper left")


def _frontier(axes: Any, found: Recommendation, every: Sequence[Candidate]) -> None:
    """Seconds a clip against clips an hour: every possible plan of every width, those that nothing beats, the best."""
    aim, best = found.ask.aim, found.best

    def points(candidates: Sequence[Candidate]) -> tuple[list[float], list[float]]:
        return [one.cost.clip for one in candidates], [aim.output(one).per_hour for one in candidates]

    kept = frontier(every, aim)
    axes.plot(*points(every), "o", color=OTHER, markersize=5, label="possible plans")
    axes.plot(*points(kept), "o-", color=COLOURS["matrix products"], label="frontier (copies x GPUs)")
    axes.plot(*points([best]), "*", color=MARKED, markersize=22, label="recommended")
    for one in _spaced(kept, best):
        words = f"{one.copies}x{one.plan.world_size}"
        at = one.cost.clip, aim.output(one).per_hour
        axes.annotate(words, at, (-4, 9), textcoords="offset points", ha="right", size=11)
    axes.set_xscale("log")
    axes.margins(x=0.2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    axes.set_ylim(0, 1.5 * max(points(every)[1]))  # room for the legend
    axes.set_xlabel("seconds a clip", fontsize=13)
    axes.set_ylabel(f"clips an hour on {counted(found.gpus, 'GPU')}", fontsize=13)
    axes.tick_params(which="both", labelsize=12)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=12, loc="upper left")


def _spaced(kept: Sequence[Candidate], best: Candidate) -> list[Candidate]:
    """The candidates whose labels do not lie on each other: of each width the fastest."""
    found = {one.plan.world_size: one for one in (*reversed(kept), best)}
    return list(found.values())


def _times(axes: Any, shown: Sequence[Candidate]) -> None:
    names = [str(c.plan.degrees) for c in shown]
    spent = [by_name(c) for c in shown]
    used = [name for name in COLOURS if any(name in times for times in spent)]
    starts = [0.0] * len(shown)
    longest = max(sum(times.values()) for times in spent)
    for name in [*used, "other"]:
        lengths = [
            times.get(name, 0.0) if name in COLOURS else sum(t for n, t in times.items() if n not in COLOURS)
            for times in spent
        ]
        if max(lengths) > 0.005 * longest:  # what nobody would see has no place in the legend
            axes.barh(names, lengths, left=starts, color=COLOURS.get(name, OTHER), label=name, height=0.62)
        starts = [start + length for start, length in zip(starts, lengths, strict=True)]
    for row, total in enumerate(starts):
        axes.text(total, row, f" {seconds(total)} s", va="center", size=12)
    axes.set_xlim(0, max(starts) * 1.16)
    axes.invert_yaxis()
    axes.set_xlabel("denoise time (s)", fontsize=13)
    axes.tick_params(labelsize=12)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
