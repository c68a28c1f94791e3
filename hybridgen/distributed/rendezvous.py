"""How ranks find each other: a key-value store that only those may reach who must, and the default process group.

The store of a local run listens on the loopback interface. That of a joined job is the launcher's agent's, or rank 0
serves it at the address that the launcher named.
"""

from __future__ import annotations

import errno
import os
import signal
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

from hybridgen.distributed.joined import identity
from hybridgen.distributed.place import JoinedRank
from hybridgen.distributed.processes import RankContext
from hybridgen.distributed.signals import held
from hybridgen.distributed.watch import LOOK, stopped_sibling
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


def meet(here: JoinedRank, say: Callable[[str], None], limit: float) -> Any:
    """The store of a joined job, once all ranks have come to it. A signal ends the wait at once.

    say: is told who is missing, and where.
    limit: seconds to wait.

    Raises RunFailed (launcher).
    """
    waiting = _Waiting(here, say, time.monotonic() + limit, limit)
    tcp = waiting.for_("the launcher" if here.agent_serves else "rank 0", lambda: _connected(here, say))
    store = PrefixStore(f"hybridgen/{here.attempt}", tcp)
    store.set(f"here/{here.rank}", identity())
    while missing := [rank for rank in range(here.world) if not store.check([f"here/{rank}"])]:
        _end_if_stopped(here, missing)
        waiting.say_in_time(_some(missing))
        time.sleep(POLL)
    interface = interface_to(here.address)
    if interface is not None:
        listen_on(interface)
    return store


def _end_if_stopped(here: JoinedRank, missing: list[int]) -> None:
    """Raise RunFailed (launcher) where a missing rank of this machine is stopped; its launcher would wait for it."""
    found = stopped_sibling(here.variable, missing)
    if found is None:
        return
    time.sleep(LOOK)  # Ctrl-Z and `fg` stop and continue all, one after the other
    if stopped_sibling(here.variable, missing) == found:
        with suppress(OSError):
            os.kill(found[1], signal.SIGKILL)
        problem = f"rank {found[0]} of {here.world} failed: process {found[1]} was stopped (SIGSTOP) before it came"
        raise RunFailed("launcher", problem)


def _some(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (" and others" if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) > 1)} {shown}"


class _Waiting:
    """A wait that says what it is for, ends at its limit, and can be interrupted."""

    def __init__(self, here: JoinedRank, say: Callable[[str], None], end: float, limit: float) -> None:
        self.here, self.say, self.end, self.limit = here, say, end, limit
        self.start, self.next = time.monotonic(), FIRST

    def say_in_time(self, who: str) -> None:
        """Say who is missing, now and then. Raises RunFailed (launcher) at the limit."""
        now, here = time.monotonic(), self.here
        where = f"{here.address}:{here.port}"
        if now > self.end:
            problem = f"{who} of {here.world} did not come to {where} in {self.limit:g} s (--join-timeout)"
            raise RunFailed("launcher", problem)
        if now - self.start >= self.next:
            self.say(f"rank {here.rank} of {here.world} waits for {who} at {where} ({now - self.start:.0f} s)")
            self.next += LATER

    def for_(self, who: str, what: Callable[[], T]) -> T:
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
            self.say_in_time(who)
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
