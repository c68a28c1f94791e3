"""The fit of the machines' shared constants to published times, and the same with one source left out.

Every value of hardware/fitted.py starts from a guess of known width (GUESSES), which is what remains of it where no row
says anything. The fit is the most likely set of values: least squares of the logarithms of predicted over published,
with the errors of a source that has many rows counted less each, and large errors counted as if they were smaller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from benchmarks.published import CARD, Row
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.hardware.fitted import FITTED, MEASURED
from hybridgen.planner.hardware.known import machine
from hybridgen.planner.hardware.rates import GENERATIONS
from hybridgen.planner.price import vae as vae_price
from hybridgen.planner.price.cost import cost
from hybridgen.strategies.registry import Degrees

NOISE = 0.04
"""Standard deviation of a published time's logarithm: one vendor's own pairs differ by 2 to 10%."""
FEW = 0.08
"""Errors above this are counted as if they were smaller (Huber's loss), in the logarithm."""


class Guess(NamedTuple):
    """What is known of a value without the rows: the middle, and a standard deviation of its logarithm."""

    middle: float
    spread: float


GUESSES = {
    "attention": Guess(0.90, 0.10),
    "matmul": Guess(0.90, 0.10),
    "passes": Guess(4.0, 0.5),
    "eager": Guess(1.5, 0.3),
    "slowdown": Guess(0.02, 0.7),
    "crowd": Guess(0.003, 0.7),
    "decoder": Guess(0.5, 0.4),
    "decoder_passes": Guess(50.0, 0.8),
    "nvlink": Guess(0.35, 0.4),
    "pcie": Guess(0.40, 0.4),
    "host": Guess(0.25, 0.4),
    "latency": Guess(40e-6, 0.5),
    "hop": Guess(300e-6, 0.7),
    "ring": Guess(500e-6, 0.7),
    "pixels": Guess(1e-3, 0.7),
    "fixed": Guess(1.0, 0.5),
}
"""Guesses by the part of a value's name before the dot."""
SPLIT = {"attention": 0.717, "matrix products": 0.208, "norms, rope, residuals": 0.075}
"""Published shares of a denoising step on one B200 (TensorRT-LLM, blog 28)."""

RING = ((2, (2, 1), 1.03), (4, (2, 2), 1.13))
"""Published times of a ring over those of attention2d, on GB200 beside cfg 2 and ulysses 8 (TensorRT-LLM VisualGen)."""

Values = Mapping[str, float]
Residual = Callable[[Values], float]


def guess(name: str) -> Guess:
    return GUESSES[name.split(".")[0]]


@lru_cache(maxsize=4096)
def _machine(card: str, values: tuple[tuple[str, float], ...], measured: tuple[str, ...]) -> Hardware:
    return machine(CARD[card], dict(values), measured)


def machine_of(row: Row, values: Values, measured: tuple[str, ...] = MEASURED) -> Hardware:
    """The row's machine with these values, which were fitted to these cards."""
    found = _machine(row.card.name, tuple(values.items()), measured)
    return found if row.engine.compiled else replace(found, passes=found.passes.times(values["eager"], "eager"))


def predict(row: Row, values: Values = FITTED, factor: float = 1.0) -> float:
    """What the row measured, in seconds; none of these engines decodes and writes at once.

    factor: how many times slower the GPU is taken to be.
    """
    hardware, plan = machine_of(row, values), row.plan()
    if factor != 1.0:
        hardware = hardware.slower(factor, "anchored")
    if row.metric == "vae decode only":
        return vae_price.decode_seconds(plan, hardware)
    found = cost(plan, hardware, streamed=False)
    if row.metric == "e2e":
        return found.clip + row.offloaded / row.engine.offload
    return found.denoise / (plan.clip.steps if row.metric == "step" else 1)


def measured_cards(found: Sequence[Row]) -> tuple[str, ...]:
    """Cards of which the times of a model of the catalogue were published."""
    return tuple(dict.fromkeys(r.card.name for r in found if usable(r) and r.in_catalogue))


def anchored(row: Row, reference: Row, values: Values = FITTED) -> float:
    """What the row measured, from the one-GPU time of its setup."""
    return predict(row, values, anchor(reference, values))


def anchor(reference: Row, values: Values = FITTED) -> float:
    """How many times slower the reference's GPU is than these values say: what does not scale stays as it is."""
    one, two = (predict(reference, values, factor) for factor in (1.0, 2.0))
    return max((reference.seconds - (2 * one - two)) / (two - one), 0.05)


class Fit(NamedTuple):
    """A fit and what it was made of."""

    values: dict[str, float]
    errors: tuple[float, ...]
    """The logarithm of predicted over published, by row."""


def fit(found: Sequence[Row], start: Values = FITTED, rounds: int = 12) -> Fit:
    """The values that all these rows make most likely."""
    names = list(FITTED)
    centre = np.log([guess(name).middle for name in names])
    spread = np.array([guess(name).spread for name in names])
    residuals, weights = _residuals(found)
    x = np.log([start[name] for name in names])
    for _ in range(rounds):
        errors, slopes = _slopes(residuals, names, x)
        huber = np.minimum(1.0, FEW / np.maximum(np.abs(errors), 1e-12))
        scale = np.sqrt(weights * huber) / NOISE
        a = np.vstack([slopes * scale[:, None], np.diag(1 / spread)])
        b = np.concatenate([errors * scale, (x - centre) / spread])
        step = np.linalg.lstsq(a, -b, rcond=None)[0]
        x = x + np.clip(step, -0.5, 0.5)
        if np.abs(step).max() < 1e-3:
            break
    values = {name: float(f"{value:.4g}") for name, value in zip(names, np.exp(x), strict=True)}
    return Fit(values, tuple(errors))


def _residuals(found: Sequence[Row]) -> tuple[list[tuple[Residual, str]], np.ndarray]:
    """Functions from values to the logarithm of predicted over published, each with its card; and their weights."""
    used = [row for row in found if usable(row)]
    many = Counter(row.source for row in used)
    residuals: list[tuple[Residual, str]] = []
    weights = []
    for row in used:
        reference = reference_of(row, used)
        if row.in_catalogue:
            residuals.append((_absolute(row), _kind(row)))
        elif reference is not None and row.gpus > 1 and row.metric == "step":  # the rest of their time is not known
            residuals.append((_relative(row, reference), _kind(row)))
        else:
            continue
        weights.append(1 / np.sqrt(many[row.source]))
        if "DERIVED 7.04 x 1.83" in row.notes:
            residuals += [(_ring(row, *known), _kind(row)) for known in RING]
            weights += [1 / np.sqrt(many[row.source])] * len(RING)
        if "attention 71.7%" in row.notes:
            residuals += [(_share(row, name), _kind(row)) for name in SPLIT]
            weights += [1 / np.sqrt(many[row.source])] * len(SPLIT)
    return residuals, np.array(weights)


def _kind(row: Row) -> str:
    """The generation whose shares the row's machine has."""
    return GENERATIONS[row.card.generation].like or row.card.generation


def usable(row: Row) -> bool:
    """Whether a row can be fitted to: what it measured is priced without a setting of its own."""
    return row.priced and not row.quantised and row.metric in ("e2e", "denoise", "step", "vae decode only")


def reference_of(row: Row, found: Sequence[Row]) -> Row | None:
    """The one-GPU row of the same setup, or else of the same source or another with that model, GPU and settings.

    A time that was derived from the throughput of many replicas is none.
    """
    alone = [
        r for r in found if r.gpus == 1 and r.priced and not r.metric.startswith("vae") and "replicas" not in r.config
    ]
    alone = [r for r in alone if (r.model, r.gpu, r.settings) == (row.model, row.gpu, row.settings)]
    same = [r for r in alone if r.setup == row.setup]
    near = [r for r in alone if r.source == row.source]
    return next(iter(same or near or alone), None)


def _absolute(row: Row) -> Residual:
    return lambda values: float(np.log(predict(row, values) / row.seconds))


def _relative(row: Row, reference: Row) -> Residual:
    measured = row.seconds / reference.seconds
    return lambda values: float(np.log(predict(row, values) / predict(reference, values) / measured))


def _share(row: Row, name: str) -> Residual:
    def residual(values: Values) -> float:
        items = {item.name: item.seconds for item in cost(row.plan(), machine_of(row, values)).items}
        return float(np.log(items[name] / sum(items.values()) / SPLIT[name]))

    return residual


def _ring(row: Row, ring: int, grid: tuple[int, int], published: float) -> Residual:
    whole = Degrees(cfg=2, ulysses=8)
    one, other = (row.plan(split) for split in (whole.changed(ring=ring), whole.changed(attn2d=grid)))

    def residual(values: Values) -> float:
        machine = machine_of(row, values)
        return float(np.log(cost(one, machine).denoise / cost(other, machine).denoise / published))

    return residual


def _slopes(residuals: list[tuple[Residual, str]], names: list[str], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All residuals at x, and their derivatives; a value of one generation changes no other's rows."""
    step = 1e-3

    def values(place: np.ndarray) -> dict[str, float]:
        return dict(zip(names, np.exp(place).tolist(), strict=True))

    base = values(x)
    errors = np.array([residual(base) for residual, _ in residuals])
    slopes = np.zeros((len(residuals), len(names)))
    for column, name in enumerate(names):
        place = x.copy()
        place[column] += step
        moved, _, generation = values(place), *name.partition(".")[1:]
        for line, (residual, own) in enumerate(residuals):
            if generation in ("", own):
                slopes[line, column] = (residual(moved) - errors[line]) / step
    return errors, slopes
