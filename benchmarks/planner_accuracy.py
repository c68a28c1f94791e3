"""Predicted against published latencies: the tables of docs/planner-accuracy.md. No GPU, half a minute.

python -m benchmarks.planner_accuracy --out docs/planner-accuracy.md       (in the root of the repository)
python -m benchmarks.planner_accuracy --fit                                (the values of hardware/fitted.py)
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import mean

from benchmarks.fit import anchored, fit, machine_of, measured_cards, predict, reference_of, usable
from benchmarks.published import DATA, PCIE, Row, rows
from hybridgen.planner.choose.ask import Ask
from hybridgen.planner.choose.search import search
from hybridgen.planner.hardware.fitted import FITTED
from hybridgen.planner.hardware.topology import Span, exchange_seconds
from hybridgen.planner.price import memory, ranges
from hybridgen.strategies.registry import Degrees

PAGE = DATA.parent / "planner_accuracy_page.txt"
"""The page, with the names of tables in braces."""
TIMED = ("e2e", "denoise", "step")
"""Metrics of whole runs and of denoising."""


@dataclass(frozen=True)
class Line:
    """A published row beside its prediction, in seconds."""

    row: Row
    predicted: float
    share: float
    """Half the width of the predicted range, as a share."""

    @property
    def error(self) -> float:
        return self.predicted / self.row.seconds - 1

    @property
    def inside(self) -> bool:
        return abs(self.row.seconds - self.predicted) <= self.share * self.predicted


@dataclass(frozen=True)
class LeftOut:
    """Every row predicted by constants that its source had no part in."""

    alone: list[Line]
    """Without an anchor: rows of the catalogue's models."""
    given: list[Line]
    """Several GPUs, from the one-GPU time of the same source; models that are not in the catalogue as well."""
    vae: list[Line]
    """The autoencoder alone."""


def left_out(found: Sequence[Row]) -> LeftOut:
    """Fit once for every source, without it, and predict its rows; those in few bits are never fitted to."""
    every = fit(found).values
    alone, given, vae = [], [], []
    for source in dict.fromkeys(row.source for row in found):
        rest, own = [r for r in found if r.source != source], [r for r in found if r.source == source and r.priced]
        values, measured = every, measured_cards(found)
        if any(map(usable, own)):
            values, measured = fit(rest, every, rounds=3).values, measured_cards(rest)
        for row in own:
            machine, reference = machine_of(row, values, measured), reference_of(row, found)
            line = Line(row, predict(row, values), ranges.share(row.plan(), machine))
            if row.metric.startswith("vae"):
                vae.append(line)
            elif row.in_catalogue and row.metric in TIMED:
                alone.append(line)
            if row.gpus > 1 and reference is not None and row.metric in TIMED:
                near = ranges.share(row.plan(), machine.slower(1.0, "anchored"))
                given.append(Line(row, anchored(row, reference, values), near))
    return LeftOut(alone, given, vae)


def groups(found: LeftOut) -> dict[str, list[Line]]:
    """The groups of the first table by their titles; models that are not in the catalogue stand apart."""
    own = [line for line in found.given if line.row.in_catalogue]
    return {
        "given one GPU's time, NVLink": [line for line in own if line.row.gpu not in PCIE],
        "given one GPU's time, PCIe": [line for line in own if line.row.gpu in PCIE],
        "nothing given": found.alone,
        "given one GPU's time, other models": [line for line in found.given if not line.row.in_catalogue],
        "the autoencoder alone": found.vae,
    }


def regrets(found: Sequence[Row]) -> list[tuple[Row, Row, float]]:
    """Where several splits of one machine were measured: the best, the one predicted to be fastest, what it loses."""
    splits = [r for r in found if usable(r) and r.metric in TIMED and r.gpus > 1]
    lost = []
    for _, same in groupby(sorted(splits, key=_request), key=_request):
        tried = list(same)
        if len({row.config for row in tried}) > 1:
            best, taken = min(tried, key=lambda row: row.seconds), min(tried, key=predict)
            lost.append((best, taken, taken.seconds / best.seconds - 1))
    return lost


def _request(row: Row) -> tuple[object, ...]:
    return row.gpus, *row.setup


def spread(lines: Sequence[Line]) -> list[str]:
    """Number of rows, mean error, largest, and how many lie inside their range."""
    errors = [abs(line.error) for line in lines]
    inside = sum(line.inside for line in lines)
    return [str(len(lines)), f"{mean(errors):.1%}", f"{max(errors):.1%}", f"{inside} of {len(lines)}"]


def summary(found: LeftOut, lost: Sequence[tuple[Row, Row, float]]) -> list[str]:
    """The first table of the page."""
    goals = {"given one GPU's time, NVLink": "5%", "given one GPU's time, PCIe": "12%", "nothing given": "15%"}
    text = [
        "| what is predicted | rows | mean error | largest | inside the range | goal |",
        "|---|---|---|---|---|---|",
    ]
    text += [f"| {' | '.join([name, *spread(lines), goals.get(name, '-')])} |" for name, lines in groups(found).items()]
    shares = [share for _, _, share in lost]
    words = (
        f"| regret of the fastest predicted split | {len(lost)} | {mean(shares):.1%} | {max(shares):.1%} | - | 1%, 5% |"
    )
    return [*text, words]


def table(lines: Iterable[Line]) -> list[str]:
    """The lines in Markdown, by source."""
    head = ["GPU", "model", "GPUs", "split", "published s", "predicted s", "error", "range"]
    text = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for line in lines:
        row = line.row
        split = "one GPU" if row.config.startswith("cfg1") and row.gpus == 1 else row.config.removeprefix("cfg1 ")
        low, high = (line.predicted * (1 + sign * line.share) for sign in (-1, 1))
        mark = "" if line.inside else ", missed"
        cells = [row.gpu, f"{row.model}, {row.size}", str(row.gpus), split, f"{row.seconds:.4g}"]
        cells += [f"{line.predicted:.4g}", f"{line.error:+.1%}", f"{low:.3g} to {high:.3g}{mark}"]
        text.append(f"| {' | '.join(cells)} |")
    return text


def sections(lines: Sequence[Line]) -> list[str]:
    """A table for every source."""
    text = []
    for engine, own in groupby(sorted(lines, key=lambda line: _source(line.row)), key=lambda line: _source(line.row)):
        text += ["", f"**{engine}**", "", *table(own)]
    return text


def _source(row: Row) -> str:
    name = row.source.removeprefix("https://github.com/").split("/blob/")[0].split(" (")[0]
    return f"{row.engine.name} ({name})"


def gb200_lines(found: Sequence[Row]) -> list[Line]:
    """Wan in bf16 on GB200, by the committed constants."""
    own = [r for r in found if r.gpu == "GB200" and r.model == "wan2.2-a14b" and r.metric == "denoise"]
    return [Line(r, predict(r), ranges.share(r.plan(), r.machine)) for r in own]


def open_lines(found: Sequence[Row]) -> list[str]:
    """Rows whose split is not stated, beside the recommended plan's time."""
    text = ["| GPU | model | GPUs | published s | recommended plan | predicted s | apart |", "|---" * 7 + "|"]
    for row in found:
        if row.model in _own_models(found) and row.gpus > 1 and row.degrees is None:
            best = search(Ask(replace(row.plan(Degrees()), degrees=Degrees()), row.gpus, row.machine)).best
            seconds = predict(replace(row, config=_as_config(best.plan.degrees)))
            cells = [row.gpu, f"{row.model}, {row.size}", str(row.gpus), f"{row.seconds:.4g}", str(best.plan.degrees)]
            text.append(f"| {' | '.join([*cells, f'{seconds:.4g}', f'{seconds / row.seconds - 1:+.1%}'])} |")
    return text


def _own_models(found: Sequence[Row]) -> set[str]:
    return {row.model for row in found if row.in_catalogue}


def _as_config(degrees: Degrees) -> str:
    rows_, cols = degrees.attn2d
    words = {"cfg": degrees.cfg, "tp": degrees.tp, "ring": degrees.ring, "ul": degrees.ulysses, "vae": degrees.vae}
    parts = [f"{name}{value}" for name, value in words.items() if value > 1]
    return " ".join([*parts, *([f"a2d{rows_}x{cols}"] if rows_ * cols > 1 else [])]) or "cfg1"


def exchange_lines(found: Sequence[Row]) -> list[str]:
    """The all-to-all table: B=2, 6144 tokens in all, 32 heads of 128, bf16, Q, K and V."""
    text = ["| GPUs | kind | published us | predicted us |", "|---|---|---|---|"]
    for row in found:
        if row.metric == "seconds per exchange of Q,K,V":
            size = 2 * 6144 // row.gpus * 32 * 128 * 3 * 2 * (row.gpus - 1) / row.gpus
            seconds = exchange_seconds(row.machine, "all_to_all", size, Span(row.gpus, row.gpus))
            text.append(f"| {row.gpus} | {row.config} | {row.seconds * 1e6:.0f} | {seconds * 1e6:.0f} |")
    return text


def regret_lines(lost: Sequence[tuple[Row, Row, float]]) -> list[str]:
    text = ["| GPUs | model | fastest measured | s | fastest predicted | s | lost |", "|---" * 7 + "|"]
    for best, taken, share in lost:
        cells = [f"{best.gpus} x {best.gpu}", best.model, best.config, f"{best.seconds:g}", taken.config]
        text.append(f"| {' | '.join([*cells, f'{taken.seconds:g}', f'{share:.1%}'])} |")
    return text


def memory_lines(found: Sequence[Row]) -> list[str]:
    """Published peaks beside the prediction; hybridgen neither offloads nor shards weights as these runs do."""
    text = ["| GPU | model | GPUs | split | published GB | predicted GB |", "|---|---|---|---|---|---|"]
    for row in found:
        if row.peak_gb is not None and row.priced:
            predicted = memory.peak(row.plan()) / 1e9
            text.append(f"| {row.gpu} | {row.model} | {row.gpus} | {row.config} | {row.peak_gb} | {predicted:.1f} |")
    return text


def page(found: Sequence[Row]) -> str:
    """docs/planner-accuracy.md."""
    errors, lost = left_out(found), regrets(found)
    tables: dict[str, Callable[[], list[str]]] = {
        "summary": lambda: summary(errors, lost),
        "gb200": lambda: table(gb200_lines(found)),
        "alone": lambda: sections(errors.alone),
        "given": lambda: sections(errors.given),
        "vae": lambda: table(errors.vae),
        "regret": lambda: regret_lines(lost),
        "open": lambda: open_lines(found),
        "exchange": lambda: exchange_lines(found),
        "memory": lambda: memory_lines(found),
    }
    return PAGE.read_text(encoding="utf-8").format(**{name: "\n".join(made()) for name, made in tables.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--fit", action="store_true")
    arguments = parser.parse_args()
    if arguments.fit:
        for name, value in fit(rows()).values.items():
            print(f"{name:24} {value:<10.4g} now {FITTED[name]:.4g}")
        return
    text = page(rows())
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
