"""Machines as the planner sees them: every constant with its unit and where it comes from. No torch.

The machines known by name are in known.py; lookup.py finds them, and reads YAML files of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import NamedTuple


class Constant(NamedTuple):
    """One figure of a machine, in SI units."""

    value: float
    origin: str
    """One of "measured ...", "fitted ...", "datasheet ..." and "assumed ...", and where or from what."""

    def times(self, factor: float, why: str) -> Constant:
        return Constant(self.value * factor, f"{self.origin}; {why}")


ALIKE = Constant(1.0, "assumed: as an all-to-all")


@dataclass(frozen=True)
class Link:
    """A link that joins GPUs."""

    name: str
    bandwidth: Constant
    """Bytes a second that one GPU sends in an all-to-all, in practice (B/s)."""
    latency: Constant
    """Seconds a collective takes beyond its bytes: its launch, and waiting for the slowest rank (s)."""
    hop: Constant
    """Seconds that an exchange with a neighbour takes beyond its bytes, when what follows waits for it (s)."""
    gather: Constant = ALIKE
    """Bandwidth of an all-gather or a broadcast, in units of `bandwidth` (1)."""
    reduce: Constant = ALIKE
    """Bandwidth of an all-reduce, by the bytes that a rank of a ring would send, in units of `bandwidth` (1)."""
    neighbour: Constant = ALIKE
    """Bandwidth to one neighbour, in units of `bandwidth` (1)."""

    def rate(self, collective: str) -> float:
        """Bytes a second that one GPU sends in this kind of message."""
        if collective == "all_to_all":
            return self.bandwidth.value
        share = {"all_reduce": self.reduce, "p2p": self.neighbour}.get(collective, self.gather)
        return self.bandwidth.value * share.value

    def constants(self) -> Iterator[tuple[str, Constant]]:
        """Every constant with its name."""
        found = ((field.name, getattr(self, field.name)) for field in fields(self))
        yield from ((name, value) for name, value in found if isinstance(value, Constant))

    def beyond(self, inner: Link, shared_bus: bool) -> Link:
        """This link for groups that also use an inner one: no earlier than that, and on a shared bus no faster."""

        def value(constant: Constant) -> float:
            return constant.value

        bandwidths = (self.bandwidth, inner.bandwidth) if shared_bus else (self.bandwidth,)
        return replace(
            self,
            bandwidth=min(bandwidths, key=value),
            latency=max(self.latency, inner.latency, key=value),
            hop=max(self.hop, inner.hop, key=value),
        )


@dataclass(frozen=True)
class Near(Link):
    """A faster link that joins neighbouring GPUs of a domain: a bridge of NVLink, a PCIe switch, a socket."""

    size: int = 2
    """GPUs that it joins, in the order of the ranks."""
    shared_bus: bool = False
    """Whether what leaves these GPUs crosses this link as well, as in a socket; beside a bridge it does not."""


@dataclass(frozen=True)
class Hardware:
    """One kind of GPU and how many of them are joined."""

    name: str
    title: str
    generation: str
    """What its kernels have in common with other GPUs: a name of rates.py."""
    memory: Constant
    """Memory of a GPU (B); 0 where the limit is the machine's own."""
    reserve: Constant
    """Memory that context and communicators take on every rank (B)."""
    attention: Constant
    """Rate of the generation's usual attention kernel in bf16 (FLOP/s); rates.py has the others."""
    matmul: Constant
    """Rate of matrix products in bf16 (FLOP/s)."""
    fp8: Constant
    """How many times as fast matrix products are with fp8 weights; 1 where these are cast back before (1)."""
    int8: Constant
    """The same with int8 weights (1)."""
    nvfp4: Constant
    """The same with weights of 4 bits; 0 where the GPU cannot (1)."""
    float32: Constant
    """Share of the attention and matmul rates that is left in fp32 (1)."""
    bandwidth: Constant
    """Bandwidth of a GPU's memory (B/s)."""
    passes: Constant
    """How many times as long norms, rope, residuals and activations take as their bytes alone: changes of layout, fp32
    in between, short kernels; for compiled blocks (1)."""
    eager: Constant
    """How many times as long these passes take where blocks run eagerly (1)."""
    launch: Constant
    """Seconds the host needs to start one kernel (s)."""
    step: Constant
    """Seconds of every denoising step that no split shortens: scheduler, time embedding, Python (s)."""
    ring: Constant
    """Seconds that one step of a ring takes at least: its exchange, attention and merge are started one by one (s)."""
    slowdown: Constant
    """Standard deviation of the speeds of GPUs that work together, all of which wait for the slowest (1)."""
    crowd: Constant
    """What computing loses for every further GPU at work on the same host: its cores, power and air are shared (1)."""
    decoder: Constant
    """Rate of the VAE's convolutions in bf16 (FLOP/s)."""
    decoder32: Constant
    """Share of that rate that is left in fp32, where convolutions may round to TF32, as by torch's default (1)."""
    decoder_passes: Constant
    """How many times the inputs of the VAE's convolutions are read or written beside these (1)."""
    pixels: Constant
    """Seconds the decoding rank needs to take in a latent frame's pixels from one other rank (s)."""
    fixed: Constant
    """Seconds of a clip that belong to neither model nor GPU: tokenizer, Python, transport (s)."""
    writing: Constant
    """Pixels a second that are encoded and written (1/s)."""
    inside: Link
    """The link between the GPUs of a domain."""
    outside: Link
    """The link between domains."""
    shared_bus: bool
    """Whether what leaves a domain crosses the inside link as well, as on PCIe, where the network's adapters hang."""
    domain: int
    """GPUs that the inside link joins."""
    per_node: int
    """GPUs of one host; of the largest where hosts differ."""
    error: Constant
    """How far a predicted latency may be off without an anchor, as a share of it (1)."""
    anchored: Constant
    """How far a predicted latency may be off, given a measured one-GPU latency, as a share of it (1)."""
    near: Near | None = None
    """The faster link within a domain; None where all GPUs of a domain are joined alike."""
    hosts: tuple[int, ...] = ()
    """GPUs of every host, in the order in which ranks fill them, where hosts differ."""
    cards: tuple[str, ...] = ()
    """The kinds of cards with their numbers, where there are several; every figure is that of the worst of them."""

    def __hash__(self) -> int:
        """A hash of two fields: what is remembered by machine is asked for too often to hash every constant."""
        return hash((self.name, self.attention.value))

    def constants(self) -> Iterator[tuple[str, Constant]]:
        """Every constant with its name, those of links as inside.bandwidth."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Constant):
                yield field.name, value
            elif isinstance(value, Link):
                yield from ((f"{field.name}.{name}", one) for name, one in value.constants())

    @cached_property
    def between(self) -> Link:
        """The link of a group within a domain that spans near groups; of any group in it where there are none."""
        return self.inside.beyond(self.near, self.near.shared_bus) if self.near else self.inside

    @cached_property
    def across(self) -> Link:
        """The link of a group that spans domains."""
        return self.outside.beyond(self.between, self.shared_bus)

    def slower(self, factor: float, why: str) -> Hardware:
        """The machine with GPUs that compute this many times slower; everything else is unchanged."""
        rates = {name: getattr(self, name).times(1 / factor, why) for name in ("attention", "matmul", "bandwidth")}
        return replace(self, **rates, error=self.anchored)

    def joined(self, hosts: tuple[int, ...]) -> Hardware:
        """The machine with other hosts: GPUs of each, or one number for all; a domain wider than a host is unchanged.

        Without a number the machine is unchanged.
        """
        if not hosts:
            return self
        most = max(hosts)
        domain = self.domain if self.domain > self.per_node else most
        return replace(self, per_node=most, domain=domain, hosts=hosts if len({*hosts}) > 1 else ())
