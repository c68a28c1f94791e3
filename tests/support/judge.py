"""Reads a demo clip, frames [T, H, W, 3] in 0..1, back as its caption's words: colour, shape and direction.

Knows nothing of how clips are made or models trained: the shape is the largest bright blob of every frame;
its colour is compared with a table, its outline with ideal shapes of equal area and centre, and its centre
over time gives the motion. Any frame size and length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

COLOURS = {
    "red": (1.0, 0.1, 0.1),
    "green": (0.15, 0.9, 0.15),
    "blue": (0.1, 0.3, 1.0),
    "yellow": (1.0, 0.95, 0.1),
    "white": (1.0, 1.0, 1.0),
    "purple": (0.75, 0.1, 0.9),
}
BRIGHT = 0.62  # brightest channel of a shape's pixel; the background stays below 0.5
MIN_AREA = 40  # pixels; a smaller blob is no shape
MAX_SHARE = 0.3  # of the frame; a larger blob is no shape
MIN_TRAVEL = 4.0  # pixels between the first and the last quarter of the clip
MIN_OVERLAP = 0.6  # mean intersection over union with the best ideal shape


@dataclass(frozen=True)
class Verdict:
    """What a clip shows; None where nothing can be told."""

    colour: str | None
    shape: str | None
    direction: str | None


def expected(caption: str) -> Verdict:
    """The verdict a perfect clip of "a <colour> <shape> moves <direction>" gets."""
    _, colour, shape, _, direction = caption.split()
    return Verdict(colour, shape, direction)


def largest_blobs(bright: Mask) -> Mask:
    """The largest 4-connected component of every frame of bright [T, H, W]."""
    label = np.where(bright, np.arange(1, bright.size + 1).reshape(bright.shape), 0)
    while True:  # a label is 1 + the index of a pixel in the same component; both steps below only raise it
        padded = np.pad(label, ((0, 0), (1, 1), (1, 1)))
        neighbours = (padded[:, :-2, 1:-1], padded[:, 2:, 1:-1], padded[:, 1:-1, :-2], padded[:, 1:-1, 2:])
        grown = np.where(bright, np.maximum.reduce([label, *neighbours]), 0)
        grown = np.append(0, grown)[grown]  # jump to the label of the pixel that the label points at
        if np.array_equal(grown, label):
            break
        label = grown
    blobs = np.zeros_like(bright)
    for blob, labels in zip(blobs, label, strict=True):
        if labels.any():
            names, sizes = np.unique(labels[labels > 0], return_counts=True)
            blob[:] = labels == names[sizes.argmax()]
    return blobs


def centres(blobs: Mask) -> Floats:
    """Centroids [T, 2], x then y, of non-empty masks [T, H, W]."""
    return np.array([[index.mean() for index in np.nonzero(blob)[::-1]] for blob in blobs])


def ideals(x: Floats, y: Floats) -> dict[str, Mask]:
    """Masks of shapes of area 1 whose centroid is the origin; y points down."""
    ax, ay = np.abs(x), np.abs(y)
    long, short = np.maximum(ax, ay), np.minimum(ax, ay)
    return {
        "circle": x * x + y * y < 1 / np.pi,
        "square": long < 0.5,
        "triangle": (y < 0.4387) & (np.sqrt(3) * ax - y < 0.8774),  # equilateral, apex up
        "cross": (long < 0.6156) & (short < 0.2565),
    }


def overlaps(blobs: Mask) -> dict[str, float]:
    """Mean intersection over union of masks [T, H, W] with the ideals of the same centre and area."""
    centre = centres(blobs)
    scale = np.sqrt(blobs.sum((1, 2)))[:, None, None]
    x = (np.arange(blobs.shape[2])[None, None, :] - centre[:, 0, None, None]) / scale
    y = (np.arange(blobs.shape[1])[None, :, None] - centre[:, 1, None, None]) / scale
    return {
        name: float(((mask & blobs).sum((1, 2)) / (mask | blobs).sum((1, 2))).mean())
        for name, mask in ideals(x, y).items()
    }


def nearest_colour(rgb: Floats) -> str:
    """The name in COLOURS closest to rgb [3]."""
    distance = {name: float(((np.array(value) - rgb) ** 2).sum()) for name, value in COLOURS.items()}
    return min(distance, key=distance.__getitem__)


def motion(centre: Floats) -> str | None:
    """Main direction of a path [T, 2], from the mean of its first to the mean of its last quarter."""
    quarter = max(1, len(centre) // 4)
    dx, dy = centre[-quarter:].mean(0) - centre[:quarter].mean(0)
    if max(abs(dx), abs(dy)) < MIN_TRAVEL:
        return None
    if abs(dx) > abs(dy):
        return "right" if dx > 0 else "left"
    return "down" if dy > 0 else "up"


def judge(frames: NDArray[np.floating]) -> Verdict:
    """Verdict on a clip [T, H, W, 3] in 0..1."""
    blobs = largest_blobs(frames.max(-1) > BRIGHT)
    area = blobs.sum((1, 2))
    seen = (area >= MIN_AREA) & (area <= MAX_SHARE * blobs[0].size)
    if seen.sum() < max(2, len(frames) / 2):
        return Verdict(None, None, None)
    frames, blobs = frames[seen], blobs[seen]
    medians = [np.median(frame[blob], axis=0) for frame, blob in zip(frames, blobs, strict=True)]
    overlap = overlaps(blobs)
    shape = max(overlap, key=overlap.__getitem__)
    known = shape if overlap[shape] >= MIN_OVERLAP else None
    return Verdict(nearest_colour(np.mean(medians, axis=0)), known, motion(centres(blobs)))
