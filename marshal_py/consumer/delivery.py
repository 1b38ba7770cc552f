"""What a delivery guarantee decides: which fetched messages go out, and when.

`AtLeastOnce` and `AtMostOnce` stand beside each other behind this interface. The loop over messages
and the handlers ask what goes out next; the assignment asks what must go out before a partition is
given back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from marshal_py.consumer.held_partition import HeldPartition, Run
from marshal_py.protocol.claimant import Notice

__all__ = ["Delivery"]


class Delivery(Protocol):
    """One delivery guarantee, for all partitions of one consumer."""

    @property
    def claims_messages(self) -> bool:
        """Whether messages are claimed in the log before they go out (at most once).

        If so, all that was claimed goes out before a partition is given back, and the claims say
        where it goes on: no position is stored.
        """

    @property
    def dropped(self) -> int:
        """How many messages were claimed and will never be handed out."""

    is_behind: bool
    """Many messages wait in Kafka, and how many is worth knowing: see `HeldPartition.end`."""

    # The thread that hands out

    @property
    def fetch_size(self) -> int:
        """How many messages to ask Kafka for when there is nothing to hand out."""

    @property
    def awaits_log(self) -> bool:
        """Whether something goes out as soon as the log has answered: no need to fetch."""

    @property
    def is_full(self) -> bool:
        """Whether nothing more can go out before handlers have done something: no need to fetch."""

    @property
    def owes(self) -> bool:
        """Whether messages were claimed, or are being, that did not go out yet."""

    def next_run(self) -> Run | None:
        """Return what goes out next, None if there is nothing now. May fetch."""

    def began(self) -> None:
        """The run that `next_run` returned is in the user's hands (`HeldPartition.begin`)."""

    def delivers(self, part: HeldPartition) -> bool:
        """Whether messages of `part` still go out, as far as its stage says."""

    def park(self, run: Run) -> None:
        """Keep what could not go out, as the lease has lapsed, until it is regained."""

    def take_back(self, run: Run) -> None:
        """Have what was not taken go out first."""

    def end(self) -> None:
        """No more messages are to be claimed; what was claimed goes out."""

    def drop(self, count: int) -> None:
        """So many messages that went out to be handled were not."""

    def close(self, in_hand: Run | None) -> None:
        """Nothing goes out any more. `in_hand`: what the loop has, and has not finished."""

    # Handlers

    def serve(self, workers: int, in_hands: Callable[[], int]) -> None:
        """From now on handlers take the messages, so many at a time.

        `in_hands` tells how many they have, or wait for them.
        """

    def done(self, count: int, took_s: float) -> None:
        """A handler has done so many messages, in so long. Called under one lock."""

    # The thread of the assignment, and the driver

    def has_claimed(self, part: HeldPartition) -> bool:
        """Whether claimed messages of `part` are on their way to the user."""

    def position(self, part: HeldPartition) -> int:
        """Return up to where `part` is done; −1 while nothing is known."""

    def give_up(self, part: HeldPartition) -> None:
        """`part` goes: nothing more of it will be fetched."""

    def on_notice(self, notice: Notice) -> None:
        """Hear what happens to the claims. Called by the driver, under its lock."""
