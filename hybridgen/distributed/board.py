"""What the ranks of a joined job tell each other, in the launcher's key-value store. No torch.

Every function raises RuntimeError once the store is gone, and waits without end while its server is stopped.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from hybridgen.distributed.signals import held
from hybridgen.distributed.status import Cause
from hybridgen.distributed.watch import Said

T = TypeVar("T")


def identity() -> str:
    """This process as others of its machine find it: machine and process namespace, and process id."""
    space = Path("/proc/self/ns/pid").readlink()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return json.dumps([f"{boot} {space}", os.getpid(), socket.gethostname()])


class Board:
    """The store as ranks use it."""

    def __init__(self, store: Any) -> None:
        self.store = store.clone()  # a connection of its own: the other one waits while groups are made

    def identity(self, rank: int) -> tuple[str, int, str]:
        """Where a rank runs: machine, process id, host."""
        machine, pid, host = json.loads(self.store.get(f"here/{rank}"))
        return machine, pid, host

    def beat(self, rank: int, said: Said) -> None:
        """Say what a rank does."""
        self.store.set(f"beat/{rank}", json.dumps(said))

    def heard_of(self, rank: int) -> Said:
        """What a rank said last."""
        if not self.store.check([f"beat/{rank}"]):
            return Said(0, False, "")
        return Said(*json.loads(self.store.get(f"beat/{rank}")))

    def tell(self, causes: Iterable[Cause]) -> None:
        """Say why ranks end."""
        for cause in causes:
            self.store.append("causes", json.dumps(asdict(replace(cause, traceback=""))) + "\n")

    def told(self) -> list[Cause]:
        """Causes that ranks have told, in the order in which they did."""
        if not self.store.check(["causes"]):
            return []
        return [Cause(**json.loads(line)) for line in self.store.get("causes").decode().splitlines()]

    def is_first_to_report(self) -> bool:
        """Whether no rank has asked this before: one of them tells the user."""
        return int(self.store.add("reports", 1)) == 1

    def marks(self, rank: int) -> dict[str, str]:
        """The marks that a rank has left, such as where the latents are."""
        key = f"marks/{rank}"
        return dict(json.loads(self.store.get(key))) if self.store.check([key]) else {}

    def done(self, rank: int) -> None:
        """Say that a rank asks for nothing more."""
        self.store.set(f"done/{rank}", "")

    def is_done(self, rank: int) -> bool:
        """Whether a rank has said so."""
        return bool(self.store.check([f"done/{rank}"]))


def in_time(what: Callable[[], T], seconds: float) -> T | None:
    """What a function that asks the store returns; None where that takes longer, or the store is gone."""
    found: list[T] = []

    def work() -> None:
        with suppress(RuntimeError):
            found.append(what())

    thread = threading.Thread(target=work, daemon=True)
    with held():
        thread.start()
    thread.join(seconds)
    return found[0] if found else None
