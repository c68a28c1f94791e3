"""Machines as the planner sees them: every constant with its unit and where it comes from. No torch.

The machines known by name stand in machines.py; a YAML file describes any other (format: docs/planner.md).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from hybridgen.errors import RequestError


@dataclass(frozen=True)
class Constant:
    """One figure of a machine, in SI units."""

    value: float
    origin: str
    """One of "measured ...", "fitted ...", "datasheet ..." and "assumed ...", and where or from what."""

    def times(self, factor: float, why: str) -> Constant:
        return Constant(self.value * factor, f"{self.origin}; {why}")


@dataclass(frozen=True)
class Link:
    """What joins some GPUs."""

    name: str
    bandwidth: Constant
    """Bytes a second that one GPU sends in collectives, in practice (B/s)."""
    latency: Constant
    """Seconds a collective takes beyond its bytes: its launch, and waiting for the slowest rank (s)."""
    hop: Constant
    """Seconds that an exchange with a neighbour takes beyond its bytes, when what follows waits for it (s)."""


@dataclass(frozen=True)
class Hardware:
    """One kind of GPU and how many of them are joined."""

    name: str
    title: str
    memory: Constant
    """Memory of a GPU (B); 0 where the limit is the machine's own."""
    reserve: Constant
    """Memory that context and communicators take on every rank (B)."""
    first: Constant
    """What rank 0 takes beside that: tokenizer and writer, where they live in the same memory (B)."""
    workspace: Constant
    """How many times its tensors decoding takes, with what the convolutions need to work in (1)."""
    attention: Constant
    """Rate of the attention kernel in bf16 (FLOP/s)."""
    matmul: Constant
    """Rate of matrix products in bf16 (FLOP/s)."""
    float32: Constant
    """Share of these two rates that is left in fp32 (1)."""
    bandwidth: Constant
    """Bandwidth of a GPU's memory (B/s)."""
    launch: Constant
    """Seconds the host needs to start one kernel (s)."""
    step: Constant
    """Seconds of every denoising step that no split shortens: scheduler, time embedding, Python (s)."""
    ring: Constant
    """Seconds that one step of a ring takes at least: its exchange, attention and merge are started one by one (s)."""
    slowdown: Constant
    """What computing loses as soon as several GPUs work together (1)."""
    decoder: Constant
    """Rate of the VAE's convolutions (FLOP/s)."""
    pixels: Constant
    """Seconds the decoding rank needs to take in a latent frame's pixels from one other rank (s)."""
    fixed: Constant
    """Seconds of a clip for the text encoder and transport (s)."""
    writing: Constant
    """Pixels a second that are encoded and written (1/s)."""
    inside: Link
    """Between the GPUs of a domain."""
    outside: Link
    """Between domains."""
    domain: int
    """GPUs that the inside link joins."""
    per_node: int
    """GPUs of one host."""
    error: Constant
    """How far a predicted latency may be off without an anchor, as a share of it (1)."""
    anchored: Constant
    """The same, given a measured one-GPU latency (1)."""

    def constants(self) -> Iterator[tuple[str, Constant]]:
        """Every constant with its name, those of links as inside.bandwidth."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Constant):
                yield field.name, value
            elif isinstance(value, Link):
                yield from ((f"{field.name}.{f}", getattr(value, f)) for f in ("bandwidth", "latency", "hop"))

    def slower(self, factor: float, why: str) -> Hardware:
        """The machine whose GPUs compute this many times slower, all else as it is."""
        rates = {name: getattr(self, name).times(1 / factor, why) for name in ("attention", "matmul", "bandwidth")}
        return replace(self, **rates, error=self.anchored)

    def joined(self, per_node: int | None) -> Hardware:
        """With another number of GPUs in a host; a domain wider than a host stays as it is."""
        if per_node is None:
            return self
        return replace(self, per_node=per_node, domain=self.domain if self.domain > self.per_node else per_node)


def find(name: str) -> Hardware:
    """A machine by name, or from a YAML file. Raises RequestError (unknown-hardware, hardware-file)."""
    from hybridgen.planner.machines import ALIASES, MACHINES

    if name.endswith((".yaml", ".yml")):
        return read(Path(name))
    wanted = ALIASES.get(name.lower(), name.lower())
    if wanted in MACHINES:
        return MACHINES[wanted]
    close = difflib.get_close_matches(name, [*MACHINES, *ALIASES], n=2) or list(MACHINES)
    raise RequestError(
        "unknown-hardware",
        f"--hardware {name} is no known machine or YAML file; nearest: {', '.join(close)}",
        tries=[{"hardware": close[0]}],
    )


def read(path: Path) -> Hardware:
    """A machine from a YAML file: `base:` names a known one, the other keys replace what differs.

    A constant is a number or {value: X, origin: TEXT}. Raises RequestError (hardware-file).
    """
    import yaml

    def refuse(problem: str) -> RequestError:
        return RequestError("hardware-file", f"--hardware {path}: {problem}")

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise refuse(f"cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise refuse("is not YAML") from error
    if not isinstance(content, dict) or not isinstance(content.get("base"), str):
        raise refuse("needs base: NAME, a known machine from which the other constants are taken")
    base = find(content.pop("base"))
    machine: Hardware = _changed(base, {"name": path.stem, "title": path.stem, **content}, path.name, "", refuse)
    return machine


def _changed(base: Any, values: dict[str, Any], file: str, prefix: str, refuse: Any) -> Any:
    """A copy of a Hardware or Link with some fields replaced, each checked."""
    known = {f.name for f in fields(base)}
    changes = {}
    for key, value in values.items():
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known))}"
            raise refuse(f"unknown key {prefix}{key}; {hint}")
        old = getattr(base, key)
        if isinstance(old, Link):
            if not isinstance(value, dict):
                raise refuse(f"{key} must hold bandwidth, latency or hop")
            changes[key] = _changed(old, value, file, f"{key}.", refuse)
        elif isinstance(old, Constant):
            changes[key] = _constant(value, file, prefix + key, refuse)
        else:
            changes[key] = _plain(value, type(old), prefix + key, refuse)
    return replace(base, **changes)


def _constant(value: Any, file: str, key: str, refuse: Any) -> Constant:
    origin = f"given in {file}"
    if isinstance(value, dict):
        if unknown := sorted(map(str, value.keys() - {"value", "origin"})):
            raise refuse(f"unknown key {key}.{unknown[0]}; known: value, origin")
        value, origin = value.get("value"), str(value.get("origin", origin))
    try:
        number = float(value)  # YAML reads 80e9 as text
    except (TypeError, ValueError):
        raise refuse(f"{key} is {value!r} and must be a number in SI units") from None
    least = 0.0 if key in ("memory", "reserve", "first", "slowdown") or key.split(".")[-1] in _MAY_BE_ZERO else None
    if not (number > 0 if least is None else number >= least) or number == float("inf"):
        raise refuse(f"{key} is {value!r} and must be above 0")
    return Constant(number, origin)


_MAY_BE_ZERO = ("latency", "hop", "launch", "step", "ring", "pixels", "fixed", "error", "anchored")


def _plain(value: Any, kind: type, key: str, refuse: Any) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, int) and value < 1):
        raise refuse(f"{key} is {value!r} and must be {'a whole number above 0' if kind is int else 'text'}")
    return value
