"""A consumer that shares partitions by ranges, as `Consumer` sees it: see `shared.Shared`."""

from __future__ import annotations

from typing import Any, Final

from marshal_py.client.marshal import Claim
from marshal_py.consumer.held_partition import HeldPartition
from marshal_py.consumer.ranges import RangeClaims
from marshal_py.errors import InvalidArgument, NotHeld
from marshal_py.protocol.balance import Unit
from marshal_py.protocol.subscription import Subscription

__all__ = ["ByRanges"]


class ByRanges:
    """Any number of members work on each partition, on ranges of its messages.

    `releases`: messages may be released, one by one.
    """

    def __init__(self, ranges: RangeClaims, subscription: Subscription, *, releases: bool) -> None:
        self.subscription: Final = subscription
        self._ranges = ranges
        self._releases = releases

    def part_of(self, message: Any) -> HeldPartition | None:
        """Return the range that a message was handed out from, if it is held."""
        part = self._ranges.part_of(message.topic(), message.partition(), message.offset())
        return part if part is not None and part.is_of(message) else None

    def standing_of(self, claim: Claim) -> tuple[Unit, int] | None:
        """Return the first message that is not done, for the claim on the first open range."""
        return self._ranges.standing_of(claim)

    def pause(self, topic: str, partition: int) -> None:
        """Give back what was not begun of a partition, and claim nothing more of it."""
        self._ranges.pause((topic, partition), True)

    def resume(self, topic: str, partition: int) -> None:
        """Claim ranges of it again."""
        self._ranges.pause((topic, partition), False)

    def paused(self) -> list[Unit]:
        """Return the partitions of which nothing is claimed."""
        return sorted(self._ranges.paused)

    def seek(self, topic: str, partition: int, offset: int, timeout_s: float) -> None:  # noqa: ARG002 (see `Shared`)
        """Raise `InvalidArgument`."""
        raise InvalidArgument(
            "seek: with sharing='ranges' no member has a partition to itself; use `marshal group "
            "set-position`, which pauses the group for it"
        )

    def lag(self, timeout_s: float) -> dict[Unit, int]:
        """Return how far each partition of the topics is behind. Raises `BrokerUnavailable`."""
        return self._ranges.lags(timeout_s)

    def set_max_claims(self, max_claims: int | None) -> None:  # noqa: ARG002 (see `Shared`)
        """Raise `InvalidArgument`."""
        raise InvalidArgument(
            "max_claims: with sharing='ranges' a member takes what it gets done; use `pause`"
        )

    def release(self, message: Any, delay_s: float) -> None:
        """Have a message that was handed out come again. Raises `InvalidArgument`."""
        if not self._releases:
            raise InvalidArgument(
                "kind = RELEASE: a message is released with auto_ack=False and "
                "mode='at_least_once' alone; otherwise leave it unacknowledged"
            )
        part = self.part_of(message)
        if part is not None:
            self._ranges.release(part, message.offset(), delay_s)

    def delivery_count(self, message: Any) -> int:
        """Return how often its range was claimed without having got further. Raises `NotHeld`."""
        part = self.part_of(message)
        if part is None or part.range is None:
            raise NotHeld(f"{message.topic()}/{message.partition()} is not held any more")
        return part.delivery_count(message.offset())
