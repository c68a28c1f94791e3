"""The demo's data: captions and clips of one soft-edged coloured shape that moves over a dark background.

Clips are [n, 3, frames, height, width] in -1..1. `free_clips` has shapes of any size, place and speed, for
the codec. `grid_clips` has one size, cell-centred starts and, where it fits, a speed of one cell per latent
frame, for the transformer: the latent of such a clip is one pattern that moves over the latent grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

COLOURS = {
    "red": (0.95, -0.8, -0.8),
    "green": (-0.7, 0.75, -0.7),
    "blue": (-0.75, -0.4, 1.0),
    "yellow": (1.0, 0.85, -0.8),
    "white": (1.0, 1.0, 1.0),
    "purple": (0.5, -0.75, 0.75),
}
SHAPES = ("circle", "square", "triangle", "cross")
DIRECTIONS = {"left": (-1.0, 0.0), "right": (1.0, 0.0), "up": (0.0, -1.0), "down": (0.0, 1.0)}
CAPTIONS = [f"a {c} {s} moves {d}" for c in COLOURS for s in SHAPES for d in DIRECTIONS]

CELL = 8  # pixels per latent cell
GRID_RADIUS = 10.5
GRID_MARGIN = 12  # centre to frame edge, pixels: a shape of GRID_RADIUS stays inside
GRID_SPEEDS = (2.0, 1.0, 0.5, 0.25)  # pixels per frame, the first that fits is taken
RGB = torch.tensor(list(COLOURS.values()))
STEP = torch.tensor(list(DIRECTIONS.values()))


@dataclass(frozen=True)
class Size:
    """Extent of a clip: frames, then height and width in pixels."""

    frames: int = 17
    height: int = 64
    width: int = 64


@dataclass
class Scene:
    """Everything random about n clips, in pixels and frames."""

    caption: Tensor  # [n] index into CAPTIONS
    radius: Tensor  # [n]
    start: Tensor  # [n, 2] centre at frame 0, x then y
    velocity: Tensor  # [n, 2] per frame
    base: Tensor  # [n, 3] background colour
    gradient: Tensor  # [n, 2, 3] background slope along x and y


def seeded(seed: int) -> torch.Generator:
    """A CPU generator that starts at seed."""
    return torch.Generator().manual_seed(seed)


def uniform(low: float, high: float, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Uniform numbers in low..high."""
    return torch.rand(*shape, generator=rng) * (high - low) + low


def random_captions(n: int, rng: torch.Generator) -> Tensor:
    """Indices [n] into CAPTIONS."""
    return torch.randint(len(CAPTIONS), (n,), generator=rng)


def background(n: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Dark base colours [n, 3] and slopes [n, 2, 3]; half of the clips are plain."""
    base = uniform(-0.9, -0.6, (n, 1), rng) + uniform(-0.06, 0.06, (n, 3), rng)
    sloped = torch.rand(n, 1, 1, generator=rng) < 0.5
    return base, uniform(-0.22, 0.22, (n, 2, 3), rng) * sloped


def free_scene(caption: Tensor, size: Size, rng: torch.Generator) -> Scene:
    """Any place, radius and speed such that the whole path stays inside the frame."""
    n = len(caption)
    extent = torch.tensor([size.width, size.height], dtype=torch.float32)
    direction = STEP[caption % 4]
    radius = uniform(9.5, 11.5, (n,), rng)
    space = (direction.abs() * extent).sum(1) - 2.3 * radius
    travel = torch.minimum(uniform(0.4, 2.1, (n,), rng) * (size.frames - 1), space)[:, None]
    room = (extent / 2 - 1.15 * radius[:, None] - direction.abs() * travel / 2).clamp_min(0)
    start = extent / 2 + uniform(-1, 1, (n, 2), rng) * room - direction * travel / 2
    return Scene(caption, radius, start, direction * travel / (size.frames - 1), *background(n, rng))


def grid_speed(length: int, frames: int) -> float:
    """Pixels per frame along an axis of `length` pixels: the fastest whose path stays inside."""
    return next(v for v in GRID_SPEEDS if v * (frames - 1) <= length - 2 * GRID_MARGIN)


def grid_scene(caption: Tensor, size: Size, rng: torch.Generator) -> Scene:
    """One radius, a cell-centred start, a speed fixed by the size alone."""
    n = len(caption)
    extent = torch.tensor([size.width, size.height])
    direction = STEP[caption % 4]
    speed = torch.tensor([grid_speed(length, size.frames) for length in (size.width, size.height)])
    travel = direction.abs() * speed * (size.frames - 1)
    places = ((extent - 2 * GRID_MARGIN - travel) // CELL + 1).long()
    place = (torch.rand(n, 2, generator=rng) * places).long()
    low = GRID_MARGIN + CELL * place  # the end of the path with smaller coordinates
    start = low + travel * (direction < 0)
    return Scene(caption, torch.full((n,), GRID_RADIUS), start, direction * speed, *background(n, rng))


def signed_distance(shape: Tensor, x: Tensor, y: Tensor, r: Tensor) -> Tensor:
    """Distance in pixels to the outline, negative inside; `shape` indexes SHAPES and broadcasts."""
    circle = (x * x + y * y).sqrt() - r
    square = torch.maximum(x.abs(), y.abs()) - 0.86 * r
    below = y - 0.2 * r
    triangle = torch.maximum(0.866 * x.abs() - 0.5 * below, below) - 0.625 * r
    arm, half = 1.08 * r, 0.45 * r
    level = torch.maximum(x.abs() - arm, y.abs() - half)
    upright = torch.maximum(y.abs() - arm, x.abs() - half)
    cross = torch.minimum(level, upright)
    pointed = torch.where(shape == 2, triangle, cross)
    return torch.where(shape == 0, circle, torch.where(shape == 1, square, pointed))


def render(scene: Scene, times: Tensor, origin: Tensor, window: tuple[int, int], size: Size) -> tuple[Tensor, Tensor]:
    """Clips [n, 3, T, h, w] and soft shape masks [n, 1, T, h, w].

    times [n, T] are frame numbers, origin [n, 2] the window's corner (x, y) and window its height and width.
    """

    def channels(v: Tensor) -> Tensor:  # [n, 3] -> [n, 3, 1, 1, 1]
        return v[:, :, None, None, None]

    xx = (torch.arange(window[1]).float() + origin[:, :1])[:, None, None, :]
    yy = (torch.arange(window[0]).float() + origin[:, 1:])[:, None, :, None]
    centre = scene.start[:, None] + scene.velocity[:, None] * times[..., None].float()
    x, y = xx - centre[..., 0, None, None], yy - centre[..., 1, None, None]  # [n, T, 1, w], [n, T, h, 1]
    shape = (scene.caption // 4 % 4)[:, None, None, None]
    mask = torch.sigmoid(-1.5 * signed_distance(shape, x, y, scene.radius[:, None, None, None]))[:, None]
    across, down = (xx / size.width * 2 - 1)[:, None], (yy / size.height * 2 - 1)[:, None]
    slope = channels(scene.gradient[:, 0]) * across + channels(scene.gradient[:, 1]) * down
    ground = (channels(scene.base) + slope).clamp(-1, 1)
    return ground * (1 - mask) + channels(RGB[scene.caption // 16]) * mask, mask


def whole(scene: Scene, size: Size) -> Tensor:
    """All frames of every clip, uncropped."""
    n = len(scene.caption)
    times = torch.arange(size.frames).expand(n, -1)
    return render(scene, times, torch.zeros(n, 2), (size.height, size.width), size)[0]


def free_clips(n: int, rng: torch.Generator) -> Tensor:
    """n clips with random captions, 17 frames of 64x64."""
    return whole(free_scene(random_captions(n, rng), Size(), rng), Size())


def grid_clips(caption: Tensor, size: Size, rng: torch.Generator) -> Tensor:
    """One clip for every index in caption."""
    return whole(grid_scene(caption, size, rng), size)


def free_crops(n: int, frames: int, side: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random windows of frames x side x side pixels, most of them near the shape, and their masks."""
    size = Size(frames=max(frames, 17))
    scene = free_scene(random_captions(n, rng), size, rng)
    first = torch.randint(0, size.frames - frames + 1, (n,), generator=rng)
    centre = scene.start + scene.velocity * (first + frames // 2)[:, None]
    origin = (centre - side / 2 + uniform(-14, 14, (n, 2), rng)).round().clamp(0, size.width - side)
    return render(scene, first[:, None] + torch.arange(frames), origin, (side, side), size)
