"""Mesh arithmetic: every order, every rank, every token, without a process group."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridgen.plan.layout import Layout, TokenShards, split_rows
from hybridgen.plan.numbers import divisors, nearest
from hybridgen.strategies.registry import AXES, Degrees

DEGREES = Degrees(cfg=2, pipefusion=2, tp=3, attn2d=(2, 3), ulysses=2)


@pytest.mark.parametrize("order", list(permutations(AXES))[::97], ids=lambda o: ",".join(o))
def test_every_order_is_a_bijection_with_consistent_groups(order: tuple[str, ...]) -> None:
    layout = Layout(DEGREES, order)
    places = [layout.coordinates(rank) for rank in range(layout.world_size)]
    assert [layout.rank(place) for place in places] == list(range(layout.world_size))
    for axis in AXES:
        groups = layout.groups(axis)
        assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
        for group in groups:
            assert [places[rank][axis] for rank in group] == list(range(DEGREES.size(axis)))
            assert len({tuple((k, v) for k, v in places[rank].items() if k != axis) for rank in group}) == 1


def test_default_order_is_the_published_one() -> None:
    """cfg - cp - ulysses, ulysses fastest (TensorRT-LLM VisualGen); attention2d: row, then column."""
    layout = Layout(Degrees(cfg=2, ulysses=4, attn2d=(3, 3)))
    assert layout.group(0, ["ulysses"]) == [0, 1, 2, 3]
    assert layout.group(0, ["col"]) == [0, 4, 8]
    assert layout.group(0, ["row"]) == [0, 12, 24]
    assert layout.group(0, ["cfg"]) == [0, 36]


@pytest.mark.parametrize("order", list(permutations(("cfg", "row", "col", "ulysses"))), ids=lambda o: ",".join(o))
def test_a_sequence_is_shared_out_once_in_any_order(order: tuple[str, ...]) -> None:
    degrees = Degrees(cfg=2, ulysses=4, attn2d=(3, 2))
    layout = Layout(degrees, (*order, "pipefusion", "tp", "ring"))
    for rank in range(layout.world_size):
        group = layout.sequence_group(rank)
        assert [layout.sequence_index(r) for r in group] == list(range(degrees.sequence))
        assert rank in group
        place = layout.coordinates(rank)
        assert layout.sequence_index(rank) == (place["row"] * 2 + place["col"]) * 4 + place["ulysses"]


@pytest.mark.parametrize("order", list(permutations(("cfg", "row", "ulysses"))), ids=lambda o: ",".join(o))
def test_vae_ranks_lie_in_one_cfg_half_or_are_all(order: tuple[str, ...]) -> None:
    rest = tuple(axis for axis in AXES if axis not in order)
    for vae in (1, 2, 4):
        layout = Layout(Degrees(cfg=2, ulysses=2, attn2d=(2, 1), vae=vae), (*order, *rest))
        ranks = layout.vae_ranks()
        assert len(ranks) == vae and ranks[0] == 0
        assert {layout.coordinates(rank)["cfg"] for rank in ranks} == {0}
    assert Layout(Degrees(cfg=2, ulysses=2, vae=4)).vae_ranks() == [0, 1, 2, 3]


@given(tokens=st.integers(1, 500), shards=st.integers(1, 40), patches=st.integers(1, 5))
def test_every_token_has_one_place(tokens: int, shards: int, patches: int) -> None:
    layout = TokenShards(tokens, shards, patches)
    held = [p for i in range(shards) for start, valid in layout.positions(i) for p in range(start, start + valid)]
    assert sorted(held) == list(range(tokens))
    assert layout.local_size * shards == layout.padded >= tokens
    assert sum(layout.valid_local(i) for i in range(shards)) == tokens


def test_shards_may_be_empty() -> None:
    assert [TokenShards(5, 4).valid_local(i) for i in range(4)] == [2, 2, 1, 0]
    assert [TokenShards(1, 4).valid_local(i) for i in range(4)] == [1, 0, 0, 0]


def test_sequence_axes_are_mesh_axes_in_order() -> None:
    shared = Degrees.sequence_axes
    assert shared and [axis for axis in AXES if axis in shared] == list(shared)


@pytest.mark.parametrize(("rows", "parts"), [(11, 4), (8, 3), (4, 4), (160, 8)])
def test_rows_are_split_evenly(rows: int, parts: int) -> None:
    sizes = split_rows(rows, parts)
    assert sum(sizes) == rows and max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


def test_divisors_and_nearest() -> None:
    assert divisors(40) == [1, 2, 4, 5, 8, 10, 20, 40]
    assert nearest(6, divisors(40)) == [5, 8] and nearest(50, divisors(40)) == [40]


def test_a_plan_prints_itself() -> None:
    assert str(Degrees(cfg=2, ulysses=4, attn2d=(3, 3), vae=8)) == "cfg2 ulysses4 attn2d3x3 vae8"
    assert Degrees(ring=2, ulysses=4).flags() == "--ring 2 --ulysses 4"
    assert str(Degrees()) == "one rank"
