"""A YAML file: its content in declared types, and its faults at the line and column of the key. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hybridgen.distributed.files import read_bytes
from hybridgen.errors import Place, RequestError
from hybridgen.recipe import typed
from hybridgen.recipe.typed import LARGEST, Keys, Misfit, dotted

T = TypeVar("T")
MOST_BYTES, MOST_KEYS, MOST_LEVELS = 2**20, 10_000, 50
"""Most bytes, keys and levels of a file. Aliases of YAML can make many keys from a few bytes."""


class Kind(NamedTuple):
    """A kind of file: the flag that names it, how it starts, and the rules that its faults break."""

    flag: str
    start: str
    unreadable: str
    key: str
    value: str


@dataclass(frozen=True)
class Source:
    """A YAML file with keys."""

    file: Path
    kind: Kind
    text: str
    content: dict[str, Any]
    places: dict[Keys, Place]
    repeated: tuple[Keys, ...]
    """Keys that were given before, of which YAML would silently take the last."""

    def place(self, keys: Keys) -> Place:
        """The place of a key, or else of what holds it."""
        while keys and keys not in self.places:
            keys = keys[:-1]
        return self.places.get(keys, Place(str(self.file), 1, 1))

    def fault(self, keys: Keys, problem: str, value: object = None, nearest: Any = (), rule: str = "") -> RequestError:
        """The error of a key at its place; the rule is that of wrong values unless another is named."""
        return RequestError(rule or self.kind.value, dotted(keys), value, problem, nearest, [], self.place(keys))

    def read_as(self, declared: type[T]) -> tuple[T | None, list[RequestError]]:
        """The content as an instance of a dataclass, without keys that do not fit, and every fault of its form.

        The instance is None where the rest does not fit either. Faults are in the order of the file; missing keys come
        last.
        """
        value, misfits = typed.convert(declared, self.content)
        if misfits:
            value, _ = typed.convert(declared, _without(self.content, {one.keys for one in misfits}))
        misfits += [Misfit(keys, None, "is given twice", is_key=True) for keys in self.repeated]
        misfits.sort(key=lambda one: (one.keys not in self.places, self.place(one.keys)))
        kind = self.kind
        return value, [
            self.fault(one.keys, one.problem, one.value, one.nearest, kind.key if one.is_key else kind.value)
            for one in misfits
        ]

    def as_(self, declared: type[T]) -> T:
        """The content as an instance of a dataclass. Raises RequestError, with every fault of its form."""
        value, faults = self.read_as(declared)
        if faults or value is None:
            faults[0].others = tuple(faults[1:])
            raise faults[0]
        return value


def _without(content: Any, gone: set[Keys], above: Keys = ()) -> Any:
    """Content without some keys; the entries of a list that hold one are left out whole."""
    if isinstance(content, dict):
        kept = {name: value for name, value in content.items() if (*above, name) not in gone}
        return {name: _without(value, gone, (*above, name)) for name, value in kept.items()}
    if isinstance(content, list):
        return [one for n, one in enumerate(content) if not any(keys[: len(above) + 1] == (*above, n) for keys in gone)]
    return content


def read(file: Path, kind: Kind) -> Source:
    """Read a file of this kind. Raises RequestError (its rule for unreadable files)."""
    import yaml

    try:
        text = _text(file)
        reader = loader()(text)
        node = reader.get_single_node()
        keys = list(_keys(node)) if node is not None else []
        content = reader.construct_document(node) if node is not None else None
    except (OSError, RecursionError, OverflowError, ValueError, yaml.YAMLError) as error:
        raise _unreadable(file, kind, error) from error
    if not isinstance(content, dict):
        raise RequestError(kind.unreadable, kind.flag, file, f"holds no keys; it starts with {kind.start}")
    places = {one: Place(str(file), mark.line + 1, mark.column + 1) for one, mark, _ in keys}
    return Source(file, kind, text, content, places, tuple(one for one, _, again in keys if again))


def _unreadable(file: Path, kind: Kind, error: Exception) -> RequestError:
    """The error of a file that is missing, not YAML, or too large."""
    if (mark := getattr(error, "problem_mark", None)) is not None:
        place = Place(str(file), mark.line + 1, mark.column + 1)
        problem = f"is not YAML: {getattr(error, 'problem', '')}"
        return RequestError(kind.unreadable, "", None, problem, place=place)
    if isinstance(error, OSError):
        problem = f"cannot be read: {error.strerror}"
    elif isinstance(error, RecursionError):
        problem = "is nested too deeply, or holds itself by an alias"
    elif isinstance(error, UnicodeDecodeError):
        problem = "is not YAML: not text"
    else:  # too long, or characters that YAML does not have
        problem = f"cannot be used: {str(error).splitlines()[0]}"
    return RequestError(kind.unreadable, kind.flag, file, problem)


def _text(file: Path) -> str:
    """The text of a file. Raises OSError, ValueError."""
    found = read_bytes(file, MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES:,} bytes")
    return found.decode()


def _keys(node: Any) -> Iterator[tuple[Keys, Any, bool]]:
    """Path, mark, and whether it is a repetition, of every key and list entry. Raises ValueError for too many."""
    for number, found in enumerate(_below(node, ())):
        if number == MOST_KEYS:
            raise ValueError(f"more than {MOST_KEYS:,} keys with its aliases expanded")
        if len(found[0]) > MOST_LEVELS:
            raise RecursionError
        yield found


def _below(node: Any, above: Keys) -> Iterator[tuple[Keys, Any, bool]]:
    if node.id == "sequence":
        for number, value in enumerate(node.value):
            yield (*above, number), value.start_mark, False
            yield from _below(value, (*above, number))
    if node.id == "mapping":
        seen = set()
        for key, value in node.value:
            if key.id == "scalar" and not key.tag.endswith(":merge"):
                key.tag = "tag:yaml.org,2002:str"  # keys are names, also those that look like numbers
            keys = (*above, str(key.value))
            yield keys, key.start_mark, keys in seen
            seen.add(keys)
            yield from _below(value, keys)


@cache
def loader() -> Any:
    """A YAML loader for text, numbers, booleans, lists and mappings; dates stay text."""
    import yaml

    safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    tags = [f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map")]

    class Loader(safe):  # type: ignore[misc]
        yaml_constructors = {tag: safe.yaml_constructors[tag] for tag in (*tags, None)}
        yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
            for first, found in safe.yaml_implicit_resolvers.items()
        }

    def whole(reader: Any, node: Any) -> int | str:
        if ":" in node.value or re.match("[-+]?0[0-9_]", node.value):  # 1:30 would be 90, and 010 would be 8
            return str(node.value)
        try:
            number = reader.construct_yaml_int(node)
        except ValueError:  # 0x_, or more digits than Python reads
            return str(node.value)
        return number if abs(number) <= LARGEST else str(node.value)

    Loader.add_constructor("tag:yaml.org,2002:int", whole)
    return Loader
