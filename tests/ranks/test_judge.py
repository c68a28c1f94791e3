"""The judge reads clips of the demo's renderer as their captions, and wrong clips as what they show."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from examples.train_demo.clips import CAPTIONS, Size, free_scene, grid_clips, seeded, whole
from tests.support.judge import Verdict, expected, judge

OTHER_SIZES = [Size(17, 48, 80), Size(17, 80, 48), Size(9, 64, 64), Size(33, 64, 64)]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Many small tensors: more threads only get in each other's way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def as_frames(clip: torch.Tensor) -> NDArray[np.float32]:
    """[3, T, H, W] in -1..1 -> [T, H, W, 3] in 0..1."""
    frames: NDArray[np.float32] = (clip.permute(1, 2, 3, 0) / 2 + 0.5).numpy()
    return frames


def rendered(caption: str, seed: int = 0) -> NDArray[np.float32]:
    return as_frames(grid_clips(torch.tensor([CAPTIONS.index(caption)]), Size(), seeded(seed))[0])


def accuracy(draw: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Share of captions read from their clips; draw maps caption indices [n] to clips [n, 3, T, H, W]."""
    right = [
        judge(as_frames(clip)) == expected(CAPTIONS[index])
        for indices in torch.split(torch.arange(len(CAPTIONS)), 8)
        for index, clip in zip(indices.tolist(), draw(indices), strict=True)
    ]
    return sum(right) / len(right)


@pytest.mark.parametrize("seed", [0, 1])
def test_grid_clips_are_read_as_their_captions(seed: int) -> None:
    rng = seeded(seed)
    assert accuracy(lambda captions: grid_clips(captions, Size(), rng)) >= 0.99


@pytest.mark.parametrize("size", OTHER_SIZES, ids=str)
def test_grid_clips_of_other_sizes_are_read_as_their_captions(size: Size) -> None:
    rng = seeded(2)
    assert accuracy(lambda captions: grid_clips(captions, size, rng)) >= 0.99


@pytest.mark.parametrize("seed", [3, 4])
def test_clips_of_any_place_size_and_speed_are_read_as_their_captions(seed: int) -> None:
    rng = seeded(seed)
    assert accuracy(lambda captions: whole(free_scene(captions, Size(), rng), Size())) >= 0.99


def test_reversed_clip_is_read_as_the_opposite_direction() -> None:
    assert judge(rendered("a red circle moves right")[::-1]) == expected("a red circle moves left")
    assert judge(rendered("a white cross moves up")[::-1]) == expected("a white cross moves down")


def test_swapped_channels_are_read_as_the_other_colour() -> None:
    assert judge(rendered("a red square moves up")[..., ::-1]).colour == "blue"


def test_transposed_clip_is_read_as_the_other_axis() -> None:
    assert judge(rendered("a blue square moves right").swapaxes(1, 2)) == expected("a blue square moves down")


def test_filled_in_cross_is_read_as_a_square() -> None:
    frames = rendered("a green cross moves left")
    for frame in frames:
        rows, columns = np.nonzero(frame.max(-1) > 0.62)
        frame[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] = (0.15, 0.87, 0.15)
    assert judge(frames) == expected("a green square moves left")


def test_still_clip_has_no_direction() -> None:
    still = np.repeat(rendered("a purple triangle moves down")[:1], 17, axis=0)
    assert judge(still) == Verdict("purple", "triangle", None)


def test_noise_and_an_empty_scene_are_no_shape() -> None:
    noise = np.random.default_rng(0).random((17, 64, 64, 3)).astype(np.float32)
    assert judge(noise) == Verdict(None, None, None)
    assert judge(np.full((17, 64, 64, 3), 0.2, np.float32)) == Verdict(None, None, None)
