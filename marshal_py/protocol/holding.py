"""What a claimant has and tells: its claims, its appends, its notices to the user."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from marshal_py.protocol.claim_states import ClaimEvent, ClaimState, next_state
from marshal_py.protocol.messages import NO_OFFSET

__all__ = ["Append", "Holding", "Notice", "NoticeKind", "RangeHolding", "metadata_unsent"]


class Holding:
    """One claim of this client, from wanting it to its end."""

    __slots__ = (
        "acquired",
        "check_at_ns",
        "claim_seq",
        "claimed_offset",
        "coordinator",
        "ephemeral",
        "epoch",
        "late_renewals",
        "lease_until_ns",
        "metadata",
        "next_offset",
        "partition",
        "paused",
        "reason",
        "release_at_ns",
        "renewed_ns",
        "reposition_to",
        "reposition_until_ns",
        "sent_metadata",
        "state",
        "stored_metadata",
        "stored_offset",
        "topic",
    )

    def __init__(self, topic: str, partition: int, coordinator: int) -> None:
        self.topic = topic
        self.partition = partition
        self.coordinator = coordinator
        self.state = ClaimState.WAITING
        self.epoch = NO_OFFSET
        self.lease_until_ns = 0
        """The holder may act before this moment; 0 from the decision to release on."""
        self.renewed_ns = 0
        """When the newest record that renewed it was sent; 0: none since it was claimed."""
        self.next_offset = NO_OFFSET
        """What the next heartbeat will say."""
        self.stored_offset = NO_OFFSET
        """What the log says."""
        self.claimed_offset = NO_OFFSET
        self.metadata = b""
        self.stored_metadata = b""
        """What the log says."""
        self.sent_metadata = b""
        """What the last heartbeat that is not known to have failed said."""
        self.ephemeral = False
        """Whether the cell goes when it is released."""
        self.acquired = False
        self.late_renewals = 0
        self.paused = False
        self.reposition_to = NO_OFFSET
        """Its position is being set to this, with which it ends; −1: it is not."""
        self.reposition_until_ns = 0
        """Until when that is tried where the log refuses it for what it is."""
        self.reason: str | None = None
        """Why it ended; None while it has not."""
        self.claim_seq = -1
        self.check_at_ns: int | None = None
        self.release_at_ns: int | None = None

    @property
    def key(self) -> tuple[str, int]:
        return (self.topic, self.partition)

    @property
    def repositioned(self) -> bool:
        """Whether its position is being set."""
        return self.reposition_to != NO_OFFSET

    @property
    def renewable(self) -> bool:
        """Whether heartbeats renew it."""
        return not self.paused and not self.repositioned

    def held(self, now_ns: int) -> bool:
        """Say whether the holder may act at `now_ns`."""
        return self.state is ClaimState.HELD and now_ns < self.lease_until_ns

    def on(self, event: ClaimEvent) -> None:
        """Go to the state that `event` leads to (`claim_states.TRANSITIONS`)."""
        self.state = next_state(self.state, event)

    def __repr__(self) -> str:
        return f"<{self.topic}/{self.partition} {self.state.value} epoch={self.epoch}>"


def metadata_unsent(holding: Holding) -> bool:
    """Whether no heartbeat has carried its metadata yet, as far as is known."""
    return holding.metadata not in (holding.stored_metadata, holding.sent_metadata)


class RangeHolding(Holding):
    """A claim on a range of messages (§5.18): from when it is asked for, or taken over, to its end.

    What was asked for has no cell before it is granted: until then `topic` and `partition` are
    those of the messages.
    """

    __slots__ = ("begun", "end", "granted", "is_asked_for", "source")

    def __init__(
        self, topic: str, partition: int, coordinator: int, source: tuple[str, int] | None = None
    ) -> None:
        super().__init__(topic, partition, coordinator)
        self.source = source or (topic, partition)
        """The topic and the partition of its messages."""
        self.is_asked_for = source is None
        """It has no cell yet: the log decides which."""
        self.end = NO_OFFSET
        """One beyond its last message; what is split off goes at once."""
        self.granted = 0
        """How often in a row it was granted without getting any further; 0 before this time."""
        self.begun = False
        """Whether a message of it was begun under this claim. The holder says so."""

    @property
    def key(self) -> tuple[str, int]:
        """Where it is found: its cell, or a place of its own while it has none."""
        if self.is_asked_for:
            return (self.topic, -1 - self.claim_seq)
        return (self.topic, self.partition)

    def place(self, topic: str, partition: int) -> None:
        """Have the cell that the log granted."""
        self.topic, self.partition, self.is_asked_for = topic, partition, False


class Append(NamedTuple):
    """A record to append to a partition of the coordination topic."""

    coordinator: int
    seq: int
    value: bytes


NoticeKind: TypeAlias = Literal[
    "waiting",
    "acquired",
    "lapsed",
    "regained",
    "paused",
    "stored",
    "messages_claimed",
    "messages_rejected",
    "released",
    "lost",
    "duplicate_client_id",
    "split",
]


class Notice(NamedTuple):
    """Something the user should hear of. `number` is an offset or a seq, by kind."""

    kind: NoticeKind
    holding: Holding
    detail: str = ""
    number: int = NO_OFFSET
