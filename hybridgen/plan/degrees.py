"""Sets of degrees and their arithmetic. No torch, no process group.

The folders of the strategies declare which axes and degrees there are (plan/axes.py). strategies/registry.py makes the
concrete class `Degrees` of their table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from hybridgen.plan.axes import Axis, Degree, Option, Value


class Degrees:
    """How many ranks each strategy uses, as frozen fields named like the flags: Degrees(cfg=2, attn2d=(3, 3)).

    This base holds the arithmetic; strategies/registry.py makes the dataclass, whose fields are those of `table`.
    """

    table: ClassVar[tuple[Degree, ...]] = ()
    """All degrees, in the order of the fields."""
    axes: ClassVar[Mapping[str, Axis]] = {}
    """All axes by name, in the default order of the mesh, with those laid over it last."""
    default_order: ClassVar[tuple[str, ...]] = ()
    """Axes of the mesh in their default order, slowest first."""
    dividing: ClassVar[Mapping[str, list[str]]] = {}
    """Axes of the mesh by what they divide."""
    sequence_axes: ClassVar[tuple[str, ...]] = ()
    """Axes that share the token sequence, most significant digit of the sequence index first."""
    options: ClassVar[Mapping[str, tuple[Option, tuple[Degree, ...]]]] = {}
    """Every option by name, with the degrees of the strategy that it belongs to."""
    unlike: ClassVar[tuple[str, ...]] = ()
    """Axes whose ranks may hold and send different amounts."""

    if TYPE_CHECKING:
        # Degrees that the arithmetic of plan/ and planner/ divides by. Those of another strategy are read by size().
        cfg: int
        pipefusion: int
        tp: int
        ring: int
        attn2d: tuple[int, int]
        ulysses: int
        vae: int

        def __init__(self, **values: Value) -> None: ...

    def __init_subclass__(cls) -> None:
        axes = [axis for degree in cls.table for axis in degree.axes]
        cls.axes = {axis.name: axis for axis in sorted(axes, key=lambda axis: _last_if_none(axis.place))}
        assert len(cls.axes) == len(axes), "two axes have one name"
        assert not any(hasattr(Degrees, degree.name) for degree in cls.table), "a degree is named like a method"
        placed = [axis for axis in cls.axes.values() if axis.place is not None]
        cls.default_order = tuple(axis.name for axis in placed)
        cls.dividing = {axis.divides: [a.name for a in placed if a.divides == axis.divides] for axis in placed}
        cls.unlike = tuple(axis.name for axis in cls.axes.values() if not axis.alike)
        cls.sequence_axes = tuple(axis.name for kind in ("keys", "heads") for axis in placed if axis.divides == kind)

    def __getstate__(self) -> dict[str, Value]:
        """What is sent to other processes: the degrees, and nothing that follows from them."""
        return {degree.name: self.value(degree) for degree in self.table}

    def value(self, degree: Degree) -> Value:
        """The value of one degree of the table."""
        return getattr(self, degree.name)  # type: ignore[no-any-return]

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Ranks along every axis."""
        found = {}
        for degree in self.table:
            value = self.value(degree)
            for axis, size in zip(degree.axes, value if isinstance(value, tuple) else (value,), strict=True):
                found[axis.name] = size
        return {name: found[name] for name in self.axes}

    def size(self, axis: str) -> int:
        """Ranks along an axis."""
        return self.sizes[axis]

    def over(self, *divides: str) -> int:
        """Ranks of all axes of the mesh that divide one of these."""
        return math.prod([self.sizes[name] for kind in divides for name in self.dividing.get(kind, ())])

    def axes_of(self, *divides: str) -> list[str]:
        """Axes of the mesh that divide one of these, in the default order."""
        return [name for name in self.default_order if self.axes[name].divides in divides]

    @cached_property
    def cp(self) -> int:
        """Ranks among which K/V is exchanged: ring, or rows x cols of attention2d."""
        return self.over("keys")

    @cached_property
    def sequence(self) -> int:
        """Ranks that share the token sequence."""
        return self.over("keys", "heads")

    @cached_property
    def half(self) -> int:
        """Ranks that run the same guidance branches: half of them with cfg 2, all without."""
        return self.world // self.over("branches")

    @cached_property
    def world(self) -> int:
        """Ranks of the mesh; axes laid over it, such as the VAE's, multiply nothing."""
        return math.prod([self.sizes[name] for name in self.default_order])

    def used(self) -> Sequence[Degree]:
        """The degrees above 1, in the order of the fields."""
        return self._used

    @cached_property
    def _used(self) -> tuple[Degree, ...]:
        return tuple(degree for degree in self.table if self.value(degree) != degree.one)

    def used_options(self) -> list[Option]:
        """The options of the degrees above 1."""
        found = self.options.values()
        return [option for option, of in found if any(self.value(degree) != degree.one for degree in of)]

    def named(self) -> dict[str, str]:
        """The degrees above 1, as flag name and value: {"cfg": "2", "attn2d": "3x3"}."""
        return {degree.name: degree.text(self.value(degree)) for degree in self.used()}

    def fields(self) -> dict[str, int | str]:
        """The degrees above 1 as a recipe's keys hold them: {"cfg": 2, "attn2d": "3x3"}."""
        found = ((degree, self.value(degree)) for degree in self.used())
        return {d.name: value if isinstance(value, int) and d.type is int else d.text(value) for d, value in found}

    def as_data(self) -> dict[str, Any]:
        """All degrees as JSON has them: {"cfg": 2, "attn2d": [3, 3], ...}."""
        values = {degree.name: self.value(degree) for degree in self.table}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def changed(self, **values: Value) -> Self:
        """The degrees with other values, as dataclasses.replace() gives them."""
        return replace(self, **values)  # type: ignore[type-var]

    def instead_of(self, other: Degrees) -> dict[str, str]:
        """Flags and values of these degrees for a command that gives those of `other`: what is 1 here is set to 1."""
        return {**{degree.name: degree.text(degree.one) for degree in other.used()}, **self.named()}

    def flags(self) -> str:
        """The degrees that are not 1 as command-line flags: "--cfg 2 --attn2d 3x3"."""
        return " ".join(f"--{name} {value}" for name, value in self.named().items())

    def __str__(self) -> str:
        """Short name of the plan: "cfg2 ulysses4 attn2d3x3 vae8"; "one rank" when nothing is split."""
        found = ((degree, self.value(degree)) for degree in by_name(self.table))
        return " ".join(f"{d.name}{d.text(value)}" for d, value in found if value != d.one) or "one rank"


def by_name(table: Iterable[Degree]) -> list[Degree]:
    """Degrees in the order of a plan's name: what shares no sequence, what trades heads, what exchanges K/V, and last
    what is laid over the mesh; each in mesh order."""

    def place(degree: Degree) -> tuple[int, float]:
        axis = degree.axes[0]
        kind = 3 if axis.place is None else {"heads": 1, "keys": 2}.get(axis.divides, 0)
        return kind, _last_if_none(axis.place)

    return sorted(table, key=place)


def in_mesh_order(table: Iterable[Degree]) -> list[Degree]:
    """Degrees in the default order of their axes; those laid over the mesh at the end."""
    return sorted(table, key=lambda degree: _last_if_none(degree.axes[0].place))


def _last_if_none(place: float | None) -> float:
    return math.inf if place is None else place
