"""Appends that a claimant has sent and not read yet: their outcome is unknown (§5.12)."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Final, Literal, NamedTuple, TypeAlias

from marshal_py.protocol.holding import Holding

__all__ = ["AppendKind", "Sent", "UnreadAppends"]

MAX_UNREAD: Final = 20_000
"""Appends per coordination partition that are remembered: what an endless outage can pile up."""


AppendKind: TypeAlias = Literal["claim", "heartbeat", "release", "messages", "split", "position"]


class Sent(NamedTuple):
    """What is remembered of an append. `t_send_ns` was taken before it was handed over."""

    t_send_ns: int
    coordinator: int
    kind: AppendKind
    holding: Holding | None


class UnreadAppends:
    """Appends by their seq, oldest first."""

    __slots__ = ("by_seq", "order")

    def __init__(self, partitions: int) -> None:
        self.by_seq: dict[int, Sent] = {}
        self.order: list[deque[int]] = [deque() for _ in range(partitions)]

    def __len__(self) -> int:
        return len(self.by_seq)

    def add(self, seq: int, sent: Sent) -> list[Sent]:
        """Remember an append. Returns those that are forgotten for it, because of `MAX_UNREAD`."""
        self.by_seq[seq] = sent
        order = self.order[sent.coordinator]
        order.append(seq)
        forgotten: list[Sent] = []
        while len(order) > MAX_UNREAD:
            oldest = self.by_seq.pop(order.popleft(), None)
            if oldest is not None:
                forgotten.append(oldest)
        return forgotten

    def get(self, seq: int) -> Sent | None:
        """Return what is remembered of an append, None if it was read or is forgotten."""
        return self.by_seq.get(seq)

    def pop(self, seq: int) -> Sent | None:
        """As `get`, and forget it: its outcome is known."""
        return self.by_seq.pop(seq, None)

    def disown(self, seq: int) -> None:
        """Keep when it was sent, should it turn up; but nobody waits for it any more."""
        self.by_seq[seq] = self.by_seq[seq]._replace(holding=None)

    def oldest_ns(self) -> int | None:
        """Return when the oldest was sent, None if there is none."""
        return next(iter(self.by_seq.values())).t_send_ns if self.by_seq else None

    def sent_by(self, t_send_ns: int) -> list[int]:
        """Return the seqs of those that were sent by this time."""
        late = itertools.takewhile(lambda item: item[1].t_send_ns <= t_send_ns, self.by_seq.items())
        return [seq for seq, _ in late]

    def clear(self) -> None:
        """Forget all."""
        self.by_seq.clear()
        for order in self.order:
            order.clear()
