"""The records of one large group, as its clients write them: 5 s, one topic, cells shared evenly.

Positions lie around 10^9, so that each takes five bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from marshal_py.protocol.messages import (
    NO_OFFSET,
    VERSION,
    ClaimingPartition,
    Genesis,
    Heartbeat,
    encode,
)
from marshal_py.protocol.rationalizer import PartitionState, apply
from marshal_py.protocol.subscription import Subscription
from marshal_py.protocol.world import coordinating_partition

Sender: TypeAlias = tuple[Literal[2], str, str, str, int]

GROUP = "billing"
TOPIC = "orders.v1.events"
INTERVAL_MS = 5_000
BASE = 1_790_000_000_000_000
"""Of epochs: microseconds since 1970, as a client that founds a log takes them."""
FAR = 20_000_000
"""An offset that a log of 200 records a second reaches in a day."""


@dataclass(frozen=True)
class SyntheticGroup:
    """A group whose records begin at `first` of its coordination partition, with the genesis.

    `absent`: so many of the first clients write nothing here; their cells are never claimed.
    """

    clients: int
    cells: int
    first: int = 0
    absent: int = 0
    partitions: int = 1
    home: int = 0

    @property
    def each(self) -> int:
        """How many cells a client holds."""
        return self.cells // self.clients

    @property
    def present(self) -> range:
        """The clients that write."""
        return range(self.absent, self.clients)

    def sender(self, client: int, seq: int) -> Sender:
        name = f"billing-worker-{client:04d}"
        return (VERSION, name, f"{0x9E3779B97F4A7C15 * (client + 1) % 2**64:016x}", GROUP, seq)

    def opening(self) -> Iterator[bytes]:
        """Yield the genesis, a claim of each cell, and each client's first heartbeat."""
        founding = (f"{7:032x}", "", BASE, self.partitions, BASE // 1_000)
        yield encode(Genesis(*self.sender(0, 0), *founding))
        for client in self.present:
            for cell in range(client * self.each, (client + 1) * self.each):
                yield self.claim(client, cell, NO_OFFSET)
        wants = Subscription(frozenset({TOPIC})).encode()
        for client in self.present:
            sender = self.sender(client, self.each)
            yield encode(Heartbeat(*sender, INTERVAL_MS, 1, [], [], wants))

    def claim(self, client: int, cell: int, version: int) -> bytes:
        sender = self.sender(client, cell % self.each)
        return encode(ClaimingPartition(*sender, TOPIC, cell, INTERVAL_MS, version))

    def heartbeat(self, client: int, turn: int, *, moving: bool) -> bytes:
        """Return the heartbeat of an interval; with `moving`, all positions moved since the last.

        Once all is told, this is what a client says of itself in each.
        """
        positions: list[int] = []
        if moving:
            claims = self.first + 1 - self.absent * self.each
            for cell in range(client * self.each, (client + 1) * self.each):
                positions += (claims + cell, position(cell, turn))
        sender = self.sender(client, 20_000 + turn)
        return encode(Heartbeat(*sender, INTERVAL_MS, 1, positions))

    def interval(self, turn: int, *, moving: bool) -> list[bytes]:
        """Return what all clients write in one interval."""
        return [self.heartbeat(client, turn, moving=moving) for client in self.present]

    def state(self) -> PartitionState:
        """Return what the opening leads to."""
        state = PartitionState(self.home)
        for offset, record in enumerate(self.opening(), self.first):
            apply(state, offset, record)
        return state


def group_of(clients: int, cells: int, *, absent: int = 0, partitions: int = 8) -> SyntheticGroup:
    """Return a group in a log of so many coordination partitions."""
    home = coordinating_partition(GROUP, partitions)
    return SyntheticGroup(clients, cells, absent=absent, partitions=partitions, home=home)


def position(cell: int, turn: int) -> int:
    """Return where the consumer of a partition is: all differ, and move at rates of their own."""
    return 10**9 + cell * 7_919 % 10**8 + turn * (500 + cell % 97)
