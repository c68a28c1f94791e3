"""How ranks find each other: a key-value store that only those may reach who must, and the default process group.

The store of a local run listens on the loopback interface. That of a joined job is the launcher's agent's, or rank 0
serves it at the address that the launcher named.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo, Store

from hybridgen.distributed.board import identity
from hybridgen.distributed.place import JoinedRank
from hybridgen.distributed.processes import RankContext
from hybridgen.distributed.signals import held
from hybridgen.errors import RunFailed

T = TypeVar("T")
PATIENCE = timedelta(days=1)
"""How long a collective waits: ranks wait for rank 0 while it decodes. Deaths are noticed by others, not by it."""
SHARED_GLOO = "shared_gloo"
LOOPBACK = "127.0.0.1"
FIRST, LATER = 5.0, 30.0
"""Seconds after which the user is told who is missing, and between further times."""
POLL = 0.1


def init_process_group(context: RankContext, device: torch.device) -> Store:
    """Join the other ranks: NCCL between GPUs, gloo between CPUs. Returns the key-value store of the ranks."""
    store = context.store
    if store is None:
        store = _local_store(context)
        listen_on("lo")
    dist.init_process_group(
        "nccl" if device.type == "cuda" else _gloo(),
        store=PrefixStore("ranks", store),
        rank=context.rank,
        world_size=context.world,
        timeout=PATIENCE,
        device_id=device if device.type == "cuda" else None,
    )
    return PrefixStore("clips", store)


def _gloo() -> str:
    """Register gloo with one device for all groups of this process, and return the name of that backend.

    A device has a thread that wakes a hundred times a second. torch makes one for every group: seven on a rank of four
    strategies.
    """
    named = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    devices = [ProcessGroupGloo.create_device(interface=name) for name in named]
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = devices or [ProcessGroupGloo.create_default_device()]
    options._threads = 2 * len(options._devices)  # as torch has it

    def group(store: Store, rank: int, size: int, timeout: timedelta) -> ProcessGroupGloo:
        options._timeout = timeout
        return ProcessGroupGloo(store, rank, size, options)

    dist.Backend.register_backend(SHARED_GLOO, group, devices=["cpu"])
    return SHARED_GLOO


def _local_store(context: RankContext) -> Store:
    """The key-value store of this machine's ranks, which rank 0 serves.

    It starts after the fork: a thread of the parent could hold a lock that its children would never see released.
    """
    assert context.door is not None
    port = context.door.getsockname()[1]
    if context.rank == 0:
        return _serve(LOOPBACK, port, context.door)
    context.door.close()
    return TCPStore(LOOPBACK, port, is_master=False)


def _serve(address: str, port: int, door: socket.socket) -> Store:
    """Serve a store on a socket that listens, and use it."""
    number = door.detach()
    return TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=number)


def listen_on(interface: str) -> None:
    """Have collectives listen on one network interface, unless the user named one."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, interface)


def interface_to(address: str) -> str | None:
    """Name of the network interface of this machine from which an address is reached."""
    with suppress(OSError), closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.connect((address, 9))  # sends nothing
        own = probe.getsockname()[0]
        for name, addresses in psutil.net_if_addrs().items():
            if any(one.address == own for one in addresses):
                return name
    return None


def part(store: Store, name: str) -> Store:
    """The part of a store whose keys begin with a name."""
    return PrefixStore(name, store)


def meet(here: JoinedRank, say: Callable[[str], None], limit: float) -> Any:
    """The store of a joined job, once all ranks have come to it. A signal ends the wait at once.

    say: is told who is missing, and where.
    limit: seconds to wait.

    Raises RunFailed (launcher).
    """
    waiting = _Waiting(here, say, limit)
    store = waiting.for_(lambda: _met(here, waiting, say))
    interface = interface_to(here.address)
    if interface is not None:
        listen_on(interface)
    return store


def _met(here: JoinedRank, waiting: _Waiting, say: Callable[[str], None]) -> Any:
    """Connect to the store, and wait there for all ranks."""
    store = PrefixStore(f"hybridgen/{here.attempt}", _connected(here, say))
    store.set(f"here/{here.rank}", identity())
    while missing := [rank for rank in range(here.world) if not store.check([f"here/{rank}"])]:
        waiting.who(_some(missing))
        time.sleep(POLL)
    return store


def _some(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (" and others" if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) > 1)} {shown}"


class _Waiting:
    """A wait that says what it is for, ends at its limit, and can be interrupted."""

    def __init__(self, here: JoinedRank, say: Callable[[str], None], limit: float) -> None:
        self.here, self.say, self.limit = here, say, limit
        self.start, self.next = time.monotonic(), FIRST
        self.server = "the launcher" if here.agent_serves else "rank 0"
        self.missing, self.known = self.server, self.start

    def who(self, missing: str) -> None:
        """Note for whom the wait is, as the store has just said."""
        self.missing, self.known = missing, time.monotonic()

    def _say_in_time(self) -> None:
        """Say who is missing, now and then. Raises RunFailed (launcher) at the limit."""
        now, here = time.monotonic(), self.here
        where = f"{here.address}:{here.port}"
        who = self.missing if now - self.known < FIRST else self.server  # which does not answer any more
        if now - self.start > self.limit:
            whom = who if who.startswith("the ") else f"{who} of {here.world}"
            problem = f"{whom} did not come to {where} in {self.limit:g} s (--join-timeout)"
            raise RunFailed("launcher", problem)
        if now - self.start >= self.next:
            self.say(f"rank {here.rank} of {here.world} waits for {who} at {where} ({now - self.start:.0f} s)")
            self.next += LATER

    def for_(self, what: Callable[[], T]) -> T:
        """The result of a function that may block; it runs in a thread, so that signals are heard meanwhile."""
        found: list[T] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                found.append(what())
            except BaseException as error:  # noqa: BLE001 - raised below
                failed.append(error)

        thread = threading.Thread(target=work, daemon=True)
        with held():  # an exception in the midst of a start confuses threading
            thread.start()
        while thread.is_alive():
            thread.join(POLL)
            self._say_in_time()
        if failed:
            if isinstance(failed[0], RunFailed):
                raise failed[0]
            words = str(failed[0]).strip().splitlines() or [type(failed[0]).__name__]
            raise RunFailed("launcher", f"no store at {self.here.address}:{self.here.port}: {words[0]}")
        return found[0]


def _connected(here: JoinedRank, say: Callable[[str], None]) -> Any:
    """The store, which rank 0 serves unless an agent does; elsewhere as soon as it is there."""
    if here.rank == 0 and not here.agent_serves:
        door = _door(here, say)
        return _serve(here.address if door.getsockname()[0] != "0.0.0.0" else LOOPBACK, here.port, door)
    while True:
        try:
            socket.create_connection((here.address, here.port), 2).close()
        except OSError:
            time.sleep(POLL)
        else:
            return TCPStore(here.address, here.port, here.world, False)


def _door(here: JoinedRank, say: Callable[[str], None]) -> socket.socket:
    """A socket that listens at the address that the launcher named. Raises RunFailed (launcher)."""
    try:
        return socket.create_server((here.address, here.port), backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:  # a service in front of this machine, as some clusters have
            say(f"warning: {here.address} is not an address of this machine: listening on all addresses")
            return socket.create_server(("0.0.0.0", here.port), backlog=1024)
        problem = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on: {error.strerror}"
        raise RunFailed("launcher", f"MASTER_PORT {here.port} at {here.address} {problem}") from error
