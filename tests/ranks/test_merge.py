"""Partial attention results merge to attention over all keys."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hybridgen.distributed.attention import Merge, attend, merge_stacked
from hybridgen.plan.kernels import KERNELS
from tests.support.attention import error, inputs, plain

BY_NAME = {kernel.name: kernel for kernel in KERNELS}
CPU, SDPA = BY_NAME["cpu"], BY_NAME["sdpa"]
INFINITY = math.inf
SPLITS = [(23, 24), (47, 0), (0, 47), (1, 45, 1), (0, 30, 0, 17), (9, 9, 9, 9, 11), (0, 0, 47, 0, 0)]
FORMS = ["one by one", "at once"]
Parts = list[tuple[Tensor, Tensor]]


def partials(q: Tensor, k: Tensor, v: Tensor, split: tuple[int, ...]) -> Parts:
    return [
        attend(CPU, q, *block)
        for block in zip(torch.split(k, list(split), 1), torch.split(v, list(split), 1), strict=True)
    ]


def one_by_one(parts: Parts) -> Merge:
    running = Merge(parts[0][0])
    for out, lse in parts:
        running.add(out, lse)
    return running


def merged(form: str, parts: Parts, dtype: torch.dtype = torch.float32) -> Tensor:
    if form == "at once":
        return merge_stacked([out for out, _ in parts], torch.stack([lse for _, lse in parts]), dtype)
    return one_by_one(parts).result(dtype)


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_merged_blocks_equal_the_whole(split: tuple[int, ...], form: str) -> None:
    q, k, v = inputs(33, 47, key_heads=2)
    assert error(merged(form, partials(q, k, v, split)), plain(q, k, v)[0]) < 1e-6
    assert error(merged(form, partials(q, k, v, split)[::-1]), plain(q, k, v)[0]) < 1e-6


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_the_running_lse_equals_the_whole(split: tuple[int, ...]) -> None:
    q, k, v = inputs(33, 47)
    lse = one_by_one(partials(q, k, v, split)).lse
    assert lse is not None and error(lse, plain(q, k, v)[1]) < 1e-6


@pytest.mark.parametrize("form", FORMS)
def test_scores_far_apart_merge_without_overflow(form: str) -> None:
    q, k, v = inputs(33, 47)
    k[:, :20] *= 100
    assert error(merged(form, partials(q, k, v, (20, 27))), plain(q, k, v)[0]) < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_bfloat16_parts_are_summed_in_float32(form: str) -> None:
    q, k, v = (x.bfloat16() for x in inputs(33, 47))
    exact = plain(q, k, v)[0]
    whole = error(attend(CPU, q, k, v)[0], exact)
    result = merged(form, partials(q, k, v, (9, 9, 9, 9, 11)), torch.bfloat16)
    assert result.dtype == torch.bfloat16
    assert error(result, exact) < 1.5 * whole


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_empty_parts_alone_merge_to_zero_never_nan(form: str, count: int) -> None:
    q, k, v = inputs(5, 0)
    assert torch.equal(merged(form, partials(q, k, v, (0,) * count)), torch.zeros_like(q))
    lse = one_by_one(partials(q, k, v, (0,) * count)).lse
    assert lse is not None and torch.equal(lse, torch.full_like(lse, -INFINITY))


def test_a_ring_in_which_no_part_came_gives_zeros() -> None:
    q = inputs(5, 0)[0].bfloat16()
    assert torch.equal(Merge(q).result(torch.bfloat16), torch.zeros_like(q))


def test_the_textbook_merge_would_give_nan_for_two_empty_parts() -> None:
    """out - sigmoid(l' - l) (out - out'), as diffusers has it: -inf minus -inf."""
    q, k, v = inputs(5, 0)
    (out, lse), (other, other_lse) = partials(q, k, v, (0, 0))
    assert (out - torch.sigmoid(other_lse - lse) * (out - other)).isnan().all()


@pytest.mark.parametrize("form", FORMS)
def test_a_kernel_that_returns_zeros_for_an_lse_moves_the_result(form: str) -> None:
    q, k, v = inputs(33, 47)
    parts = [(out, torch.zeros_like(lse)) for out, lse in partials(q, k, v, (30, 17))]
    assert error(merged(form, parts), plain(q, k, v)[0]) > 1e-2


@pytest.mark.parametrize("form", FORMS)
def test_a_nan_in_a_part_is_not_hidden(form: str) -> None:
    q, k, v = inputs(33, 47)
    parts = partials(q, k, v, (30, 17))
    parts[1] = (parts[1][0] * math.nan, parts[1][1] * math.nan)
    assert merged(form, parts).isnan().all()


def test_the_ring_merges_in_place() -> None:
    q, k, v = inputs(33, 47)
    parts = partials(q, k, v, (30, 17))
    running = one_by_one(parts)
    assert running.out is not None and running.out.data_ptr() == parts[0][0].data_ptr()
