"""An engine on ranks that torchrun or srun started: rank 0 hands clips of a queue to one or more replicas. No torch.

A replica is a range of ranks with process groups of its own. Each of its ranks waits in the store for the next clip.
Rank 0 has a thread for each replica, which gives it a clip and waits for its end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from hybridgen.distributed.joined import Peers
from hybridgen.distributed.lookout import Lookout
from hybridgen.distributed.place import JoinedRank
from hybridgen.distributed.processes import RankContext
from hybridgen.distributed.progress import Event
from hybridgen.distributed.signals import held, warned
from hybridgen.distributed.status import Status
from hybridgen.engine.handed import Ended, StoreOrders
from hybridgen.engine.job import Job
from hybridgen.engine.options import Limits
from hybridgen.engine.resident import Place
from hybridgen.engine.signed import await_key, signed, verified
from hybridgen.engine.tickets import Ticket
from hybridgen.engine.waiting import Queue, failure_of
from hybridgen.errors import RunFailed


class JoinedReplicas:
    """The replicas of a joined job. A rank that fails ends the job, as its launcher does."""

    def __init__(
        self,
        here: JoinedRank,
        width: int,
        limits: Limits = Limits(),
        on_event: Callable[[Ticket, Event], None] = lambda ticket, event: None,
    ) -> None:
        """width: ranks of a replica. on_event: is told of every event of every clip, on rank 0."""
        self.here, self.width, self.limits = here, width, limits
        self.count = here.world // width
        self.queue = Queue(1, on_event)
        self.feeders: list[Feeder] = []

    def submit(self, job: Job) -> Ticket:
        """Ask for a clip, on rank 0. Raises RunFailed (engine-closed)."""
        return self.queue.submit(job)

    def close(self, at_once: bool = False) -> None:
        """Let the ranks go, after the clips that were asked for, or within two steps."""
        self.queue.close(at_once)
        for feeder in self.feeders:
            if at_once and (ticket := feeder.current) is not None:
                feeder.cancel(ticket)

    def serve(
        self, work: Callable[[], Any], early: Lookout, said: Callable[[], list[str]] = list, warning: int = 0
    ) -> Any:
        """Be one of the ranks until all clips are made; returns what `work` does, on rank 0.

        work: asks for clips; called on rank 0, in a thread.
        early: a lookout that began before.
        said: notes for the user where the job ends early.
        warning: the signal after which the clips keep their state, and the job ends; 0 is none.

        Raises what `work` does on rank 0, and RunFailed naming the first rank that failed, on the rank that tells it.
        """
        from hybridgen.distributed import rendezvous
        from hybridgen.engine.worker import stay

        here, status = self.here, Status(self.here.world, self.here.rank)
        store = rendezvous.meet(here, early.tell, self.limits.join)
        index, rank = divmod(here.rank, self.width)
        own = RankContext(rank, self.width, here.local_rank, status, store=rendezvous.part(store, f"replica/{index}"))
        orders = StoreOrders(own, here, rendezvous.part(store, "orders"), index)
        everyone = RankContext(here.rank, here.world, here.local_rank, status, store=store)
        peers = Peers(here, everyone, self.limits.hang, lambda first: [*orders.kept(first), *said()])
        peers.start()
        early.met()
        try:
            controller = self._control(work, orders) if here.rank == 0 else None
            with warned(warning, lambda: self._preempt(status)):
                stay(own, orders)
        except BaseException as error:  # noqa: BLE001 - whatever ends a rank is told to the others
            peers.failed(error)
        if controller is not None:
            controller.join()
        peers.finish()
        return controller.result() if controller is not None else None

    def preempt(self) -> None:
        """Begin no more clips."""
        self.queue.preempt()

    def _preempt(self, status: Status) -> None:
        """Have the clip that this rank makes keep its state and end; on rank 0, begin no more."""
        status.warn()
        threading.Thread(target=self.preempt).start()  # a handler of a signal must not wait

    def _control(self, work: Callable[[], Any], orders: StoreOrders) -> Controller:
        """Start the threads of rank 0: one that asks for clips, and one for each replica."""
        places = [Place(index, self.count) for index in range(self.count)]
        self.feeders = [Feeder(self.queue, place, orders) for place in places]
        self.queue.takers += self.feeders
        controller = Controller(self, work)
        with held():
            for thread in (controller, *(feeder.thread for feeder in self.feeders)):
                thread.start()
        return controller


class Controller(threading.Thread):
    """The thread of rank 0 that asks for clips, while the main thread makes them."""

    def __init__(self, ranks: JoinedReplicas, work: Callable[[], Any]) -> None:
        super().__init__(name="hybridgen clips", daemon=True)
        self.ranks, self.work = ranks, work
        self.found: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.found = self.work()
        except BaseException as error:  # noqa: BLE001 - raised by the main thread
            self.error = error
        self.ranks.close(at_once=self.error is not None)

    def result(self) -> Any:
        """What the work returned. Raises what it raised."""
        if self.error is not None:
            raise self.error
        return self.found


class Feeder:
    """Rank 0's hand for one replica: gives it one clip after the other, and hears how each ended."""

    has_ranks = True

    def __init__(self, queue: Queue, place: Place, orders: StoreOrders) -> None:
        """orders: those of rank 0, which hears its own replica without the store."""
        self.queue, self.place, self.orders = queue, place, orders
        self.store = orders.store_of_orders.clone()  # this thread waits there
        self.current: Ticket | None = None
        self.number = self.cancels = 0
        self.said: SimpleQueue[Ended] = SimpleQueue()
        self.thread = threading.Thread(target=self._feed, name=f"hybridgen {place.words or 'ranks'}", daemon=True)
        if place.index == orders.index:
            orders.hear = self._heard

    @property
    def is_ready(self) -> bool:
        return self.current is None

    def wake(self) -> None:
        """The thread waits for the queue, which wakes it."""

    def cancel(self, ticket: Ticket) -> bool:
        if ticket is not self.current:
            return False
        if self.place.index == self.orders.index:
            self.orders.cancelled = self.number
        else:
            self.cancels += 1
            self.orders.cancels.set(f"{self.place.index}/cancel/{self.cancels}", str(self.number))
        return True

    def _feed(self) -> None:
        """The thread: give clips until the queue is over."""
        with suppress(RuntimeError):  # the store is gone, which others notice
            while (ticket := self._next()) is not None:
                self._make(ticket)
            self.store.set(f"{self.place.index}/order/{self.number + 1}", signed(self.orders.here, None))

    def _next(self) -> Ticket | None:
        """The next clip; None when all are made."""
        with self.queue.changed:
            while not self.queue.is_over():
                self.current = self.queue.take(self)
                if self.current is not None:
                    return self.current
                self.queue.changed.wait()
        return None

    def _make(self, ticket: Ticket) -> None:
        """Have a clip made, and end its ticket."""
        self.number, ticket.replica = self.number + 1, self.place.index
        ticket.tell(Event("begin", self.place.words))
        if self.place.index == self.orders.index:
            self.orders.inputs[self.number] = ticket.job.inputs
        keys = [f"{self.place.index}/{name}/{self.number}" for name in ("order", "said")]
        self.store.set(keys[0], signed(self.orders.here, ticket.job.without_images()))
        ended = self._result(keys[1])
        for key in keys:
            self.store.delete_key(key)
        with self.queue.changed:
            self.current = None
        ticket.size = ended.size
        if ended.report is not None:
            ticket.end("done", report=ended.report)
        else:
            failure = RunFailed(*ended.failure) if ended.failure else failure_of("cancelled")
            failure.notes += ended.notes
            ticket.end("failed" if ended.failure else "cancelled", failure=failure)

    def _result(self, key: str) -> Ended:
        """How the clip ended, once it has."""
        if self.place.index == self.orders.index:
            return self.said.get()
        ended: Ended = verified(self.orders.here, await_key(self.store, key), Ended.PARTS)
        return ended

    def _heard(self, thing: Event | Ended) -> None:
        """Take in what rank 0's own replica says."""
        if isinstance(thing, Ended):
            self.said.put(thing)
        elif (ticket := self.current) is not None:
            ticket.tell(thing)
