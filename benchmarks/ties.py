"""What two splits on one machine can be told apart by: `python -m benchmarks.ties`.

It prints by how much published times of one set-up differ, of which the largest is the planner's TIE, and how far off
the ratio of two predicted times is where one machine was measured with several splits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from statistics import median

from benchmarks.fit import anchor, predict, reference_of
from benchmarks.published import Row, rows
from hybridgen.planner.choose.ranking import TIE

Key = Callable[[Row], tuple[object, ...]]


def set_up(row: Row) -> tuple[object, ...]:
    """What two publications of one set-up have in common."""
    clip = row.size, row.frames.strip("?"), row.steps
    return row.model, row.gpu, row.gpus, row.config, row.metric, row.quantised, clip


def request(row: Row) -> tuple[object, ...]:
    """What rows have in common that differ in their split alone."""
    return row.gpu, row.gpus, row.metric, row.setup


def pairs(found: list[Row], key: Key, other: Key) -> Iterator[tuple[Row, Row]]:
    """Every two rows of denoising or whole clips that agree in one key and differ in another."""
    known = [r for r in found if r.priced and r.metric in ("denoise", "e2e", "step")]
    for one, two in combinations(known, 2):
        if key(one) == key(two) and other(one) != other(two):
            yield one, two


def spreads(found: list[Row]) -> list[tuple[Row, Row, float]]:
    """Rows of one set-up from different sources, and the share by which their times differ."""
    same = pairs(found, set_up, lambda row: (row.source,))
    return [(a, b, max(a.seconds, b.seconds) / min(a.seconds, b.seconds) - 1) for a, b in same]


def ratio(one: Row, other: Row, found: list[Row]) -> float:
    """The predicted ratio of two rows' times, given the one-GPU time of their source."""
    reference = reference_of(one, found)
    factor = anchor(reference) if reference else 1.0
    return predict(one, factor=factor) / predict(other, factor=factor)


def main() -> None:
    found = rows()
    print("| GPUs | model | split | s | s elsewhere | differs by |\n|---|---|---|---|---|---|")
    for a, b, spread in spreads(found):
        print(f"| {a.gpus} x {a.gpu} | {a.model} | {a.config} | {a.seconds:g} | {b.seconds:g} | {spread:.1%} |")
    print(
        "\n| GPUs | model | split | other split | measured ratio | predicted | error |\n|---|---|---|---|---|---|---|"
    )
    errors = []
    for a, b in pairs(found, request, lambda row: (row.config,)):
        measured, predicted = a.seconds / b.seconds, ratio(a, b, found)
        errors.append(predicted / measured - 1)
        figures = f"{measured:.3f} | {predicted:.3f} | {errors[-1]:+.1%}"
        print(f"| {a.gpus} x {a.gpu} | {a.model} | {a.config} | {b.config} | {figures} |")
    print(f"\nA tie is {TIE.value:.0%}. Ratios of two splits are off by {median(map(abs, errors)):.1%} (median).")


if __name__ == "__main__":
    main()
