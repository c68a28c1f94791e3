"""What a strategy declares of its ranks: axes of the mesh, degrees, options, shorthands. No torch, no process group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from hybridgen.errors import RequestError
from hybridgen.plan.numbers import divisors, parse_pair

if TYPE_CHECKING:
    from hybridgen.plan.plan import Plan

Value = int | tuple[int, int]
"""A degree: a number of ranks, or rows x columns of them."""


@dataclass(frozen=True)
class Axis:
    """A dimension of the mesh, or a group of ranks laid over it."""

    name: str
    divides: Literal["branches", "blocks", "weights", "keys", "heads", "picture", "nothing"]
    """What each rank has a part of. With "keys" and "heads" this is the token sequence: the ranks exchange K/V, or
    trade heads for tokens."""
    exchanges: str
    """What the ranks of the axis send each other, in a few words."""
    place: float | None
    """Place in the default order of the mesh, where the slowest axis has the smallest. None for an axis that is laid
    over the mesh: it does not multiply the number of ranks."""
    why: str
    """Why the axis stands at this place."""
    drawn: Literal["apart", "beside", "down", "across", "inside"] = "apart"
    """How the mesh is drawn along the axis: as separate blocks, as blocks side by side, as rows or columns of a block,
    or inside a cell.
    """
    members: tuple[str, ...] = ()
    """Names of the coordinates, for an axis whose coordinates have names."""
    alike: bool = False
    """Whether a rank at coordinate 0 of the axis holds and sends as much as any other of its group. Where it is not
    declared, the planner counts memory and messages of one rank at every coordinate.
    """

    @property
    def shares_sequence(self) -> bool:
        """Whether the ranks of the axis hold different tokens of one sequence."""
        return self.divides in ("keys", "heads")


@dataclass(frozen=True)
class Setting:
    """Something of a strategy that can be set: a flag and a key of a recipe."""

    name: str
    help: str
    listed: float
    """Place among the flags of --help and the keys of a recipe."""
    metavar: str = "N"
    peers: Mapping[str, tuple[str, str]] = field(default_factory=dict, hash=False)
    """Flags of other tools that mean the same: {"--use_cfg_parallel": ("xDiT", "--cfg 2")}."""

    @property
    def type(self) -> Any:
        """The type of the flag and of the key in a recipe."""
        return int


@dataclass(frozen=True)
class Option(Setting):
    """A whole number above 0 that a strategy takes besides its degrees. Plan.option() gives its value."""

    default: Callable[[Plan], int] = lambda plan: 1
    """The value in a plan where none is given."""


@dataclass(frozen=True)
class Shorthand(Setting):
    """A flag RxC that sets two degrees at once."""

    sets: tuple[str, str] = ("", "")

    @property
    def rule(self) -> str:
        """Id of the rule that the degrees are not given as well."""
        return f"{self.name}-parts"

    @property
    def type(self) -> Any:
        return str

    def parse(self, text: str) -> dict[str, int]:
        """Read "4x2" as {"ulysses": 4, "ring": 2}. Raises RequestError (degree-format)."""
        return dict(zip(self.sets, parse_pair(self.name, text, " x ".join(self.sets)), strict=True))


@dataclass(frozen=True)
class Degree(Setting):
    """How many ranks a strategy uses: a number for one axis, rows x columns for two."""

    axes: tuple[Axis, ...] = ()
    exact: Callable[[Plan], bool] | None = None
    """Whether the result of a plan differs from one rank's by rounding only. None: it always does."""
    engines: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Names of this degree in other engines, by target of `recipes export`. Other targets do not have it."""
    reads: Callable[[str], Value] | None = None
    """Reads the degree from a flag that says more than the degree."""

    @property
    def type(self) -> Any:
        return int | str if self.reads else int if len(self.axes) == 1 else str

    @cached_property
    def one(self) -> Value:
        """The value that splits nothing."""
        return 1 if len(self.axes) == 1 else (1, 1)

    @cached_property
    def is_overlaid(self) -> bool:
        """Whether the ranks of the degree are laid over the mesh."""
        return all(axis.place is None for axis in self.axes)

    def parse(self, given: int | str) -> Value:
        """Read the value of a flag or key. Raises RequestError (degree, degree-format)."""
        if self.reads is not None:
            value = self.reads(str(given))
        elif len(self.axes) == 2:
            return parse_pair(self.name, str(given), "rows x columns")
        else:
            value = int(given)
        if isinstance(value, int) and value < 1:
            raise RequestError("degree", self.name, value, "is not a number of ranks", [1])
        return value

    def text(self, value: Value) -> str:
        """The value as a flag or key has it: "4", "3x3"."""
        return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)

    def divisions(self, ranks: int) -> list[Value]:
        """Every value that divides a number of ranks; pairs of most ranks first."""
        if len(self.axes) == 1:
            return list(divisors(ranks))
        return [(rows, size // rows) for size in reversed(divisors(ranks)) for rows in divisors(size)]
