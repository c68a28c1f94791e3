"""Table and plots of what benchmarks/pipefusion_quality.py measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "pipefusion-quality.json"
TABLE = RESULTS.with_suffix(".md")
PLOT, STRIP = ROOT / "docs" / "pipefusion-quality.png", ROOT / "docs" / "pipefusion-strip.png"
STRIP_CELL = (20, 4)
"""Steps and patches of the strip."""
HEAD = (
    "Written by `python -m benchmarks.pipefusion_quality`. What the columns mean and what was found: "
    "[docs/pipefusion-quality.md](../../docs/pipefusion-quality.md)."
)

Options = Mapping[str, int | str]
Result = dict[str, Any]
"""steps; options, the other flags; against, those of the run it is compared with; synchronous, steps without stale K/V;
and the measures, lists over clips."""

CHANGED_DB = 30
"""A clip that is less like the exact one counts as another clip."""
STYLES = {2: ("#0072B2", "o"), 4: ("#D55E00", "s"), 8: ("#009E73", "^")}
"""Colour (Okabe and Ito's, distinct to colour-blind eyes) and marker of a number of patches."""


def find(results: list[Result], steps: int, options: Options) -> Result | None:
    return next((r for r in results if r["steps"] == steps and r["options"] == options), None)


def sweep(results: list[Result], steps: int, patches: int) -> list[Result]:
    """PipeFusion on two stages, by warm-up."""
    found = [r for r in results if r["steps"] == steps and r["options"].get("patches") == patches]
    return sorted((r for r in found if r["options"]["pipefusion"] == 2), key=lambda r: int(r["options"]["warmup"]))


def table(results: list[Result]) -> list[str]:
    """The lines of the Markdown table."""
    clips = len(results[0]["shown"])
    return [
        "| steps | run | synchronous steps | relative error: mean (worst) | PSNR, dB: mean (worst) | "
        f"below {CHANGED_DB} dB, of {clips} | SSIM: mean (worst) | captions shown, of {clips} | "
        "outline: mean (worst) |",
        "|---|---|---|---|---|---|---|---|---|",
        *(row(steps, *run) for steps in sorted({r["steps"] for r in results}) for run in runs(steps, results)),
    ]


def runs(steps: int, results: list[Result]) -> Iterator[tuple[str, Result]]:
    """Names and results of the lines for one number of steps."""
    for name, options in (
        ("exact", {}),
        ("exact, bf16", {"dtype": "bfloat16"}),
        (f"exact, {steps // 2} steps", {"steps": steps // 2}),
    ):
        if result := find(results, steps, options):
            yield name, result
    for patches in STYLES:
        for result in sweep(results, steps, patches):
            yield f"{patches} patches, warm-up {result['options']['warmup']}", result


def row(steps: int, name: str, result: Result) -> str:
    def both(measure: str, form: str, worst: Callable[[list[float]], float] = min) -> str:
        return f"{fmean(result[measure]):{form}} ({worst(result[measure]):{form}})"

    changed = sum(psnr < CHANGED_DB for psnr in result["psnr"])
    measures = [both("relative_error", ".2g", max), both("psnr", ".1f"), str(changed), both("ssim", ".3f")]
    if not result["options"]:  # the exact run, compared with itself
        measures = ["-"] * len(measures)
    synchronous = result["synchronous"] if "warmup" in result["options"] else "-"
    cells = [steps, name, synchronous, *measures, int(sum(result["shown"])), both("outline", ".3f")]
    return "| " + " | ".join(map(str, cells)) + " |"


def page(results: list[Result]) -> str:
    """The text of benchmarks/results/pipefusion-quality.md."""
    return "\n".join([HEAD, "", *table(results), ""])


def report(results: list[Result]) -> None:
    """Print the table, write it, and draw the plot."""
    print(page(results))
    TABLE.write_text(page(results))
    plot(results)


def plot(results: list[Result]) -> None:
    """PSNR by warm-up: a panel for each number of steps, a line for each number of patches, a dot for each clip."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    every_steps = sorted({r["steps"] for r in results})
    plt.rcParams.update({"font.size": 15, "axes.spines.top": False, "axes.spines.right": False})
    figure, panels = plt.subplots(
        1, len(every_steps), figsize=(15, 6.4), sharey=True, squeeze=False, layout="constrained"
    )
    for panel, steps in zip(panels[0], every_steps, strict=True):
        draw_panel(panel, results, steps)
    panels[0, 0].set_ylabel("PSNR against the exact clip, dB\n(higher is closer)")
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(), loc="outside right upper", title="patches", handlelength=1.5
    )
    figure.supxlabel("warm-up per expert, and the share of all steps that it makes synchronous", fontsize=16)
    clips = len(results[0]["shown"])
    figure.suptitle(
        f"PipeFusion on the demo model, compared with the exact run\n{clips} clips; line: mean, dot: one clip"
    )
    figure.savefig(PLOT, dpi=110)


def draw_panel(panel: Any, results: list[Result], steps: int) -> None:
    """One number of steps. Warm-ups stand side by side, patches a little apart; what is exact has no place here."""
    warmups: list[int] = []
    for dodge, (patches, (colour, marker)) in zip((-0.2, 0.0, 0.2), STYLES.items(), strict=True):
        stale = [r for r in sweep(results, steps, patches) if r["synchronous"] < steps]
        warmups = warmups or [r["options"]["warmup"] for r in stale]
        x = [place + dodge for place in range(len(stale))]
        for at, result in zip(x, stale, strict=True):
            panel.plot([at] * len(result["psnr"]), result["psnr"], ".", color=colour, alpha=0.3, markersize=8)
        style = {"color": colour, "marker": marker, "markersize": 11, "markeredgecolor": "white", "linewidth": 2.5}
        panel.plot(x, [fmean(r["psnr"]) for r in stale], label=str(patches), **style)
    shares = [r["synchronous"] / steps for r in sweep(results, steps, next(iter(STYLES))) if r["synchronous"] < steps]
    panel.set_xticks(range(len(warmups)), [f"{w}\n{share:.0%}" for w, share in zip(warmups, shares, strict=True)])
    panel.set_xlim(-1.6, len(warmups) - 0.4)
    for name, options in (
        ("exact,\nin bf16", {"dtype": "bfloat16"}),
        ("exact,\nhalf the\nsteps", {"steps": steps // 2}),
    ):
        if yardstick := find(results, steps, options):
            level = fmean(yardstick["psnr"])
            panel.axhline(level, color="0.4", linestyle="--", linewidth=1.5, zorder=1)
            panel.text(-1.55, level - 0.5, name, color="0.25", fontsize=12.5, va="top")
    panel.set_title(f"{steps} steps", fontsize=17)
    panel.grid(axis="y", color="0.9")


def strip_clips(results: list[Result], count: int = 6) -> list[int]:
    """Places in the lists of clips: the most changed one at warm-up 1, the least changed one, and between them."""
    steps, patches = STRIP_CELL
    errors = sweep(results, steps, patches)[0]["relative_error"]
    order = sorted(range(len(errors)), key=lambda i: -errors[i])
    return [order[round(i * (len(order) - 1) / (count - 1))] for i in range(count)]


def draw_strip(pictures: dict[str, list[Any]], captions: list[str]) -> None:
    """Pictures [H, W, 3] by row and column, with their names."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    size = (2.1 * len(captions) + 1.2, 2.1 * len(pictures) + 0.9)
    figure, axes = plt.subplots(len(pictures), len(captions), figsize=size, squeeze=False, layout="constrained")
    for line, (name, row_of_pictures) in zip(axes, pictures.items(), strict=True):
        line[0].set_ylabel(name, fontsize=16)
        for axis, picture in zip(line, row_of_pictures, strict=True):
            axis.imshow(picture)
            axis.set(xticks=[], yticks=[])
    for axis, caption in zip(axes[0], captions, strict=True):
        axis.set_title(caption.removeprefix("a ").replace(" moves", "\nmoves"), fontsize=14)
    figure.savefig(STRIP, dpi=80)
