"""One partition of Kafka, read once for all the ranges of it that a consumer holds.

Kafka is read on beyond the ranges that are held, as the next ones follow soon. What came of it
that is in none of them is kept for a while (`KEPT` messages, `KEPT_BYTES`): a range that is granted
later finds its messages there. Kafka is asked again only for what is not there any more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Message, TopicPartition

from marshal_py.consumer.held_partition import HeldPartition
from marshal_py.consumer.stream import LEAP, known_end
from marshal_py.protocol.balance import Unit

__all__ = ["RangeStream"]

KEPT: Final = 10_000
"""Messages that are kept for ranges to come, at most; the oldest go first."""

KEPT_BYTES: Final = 16 * 1024 * 1024

_message: Final[Any] = Message
_offset_of: Callable[[Any], int] = _message.offset


class RangeStream:
    """The ranges of one partition that are fetched. All of it is called between two fetches."""

    def __init__(self, source: Unit) -> None:
        self.source: Final[Unit] = source
        self.parts: dict[int, HeldPartition] = {}
        """By where the range starts."""
        self.is_lost = False
        """Kafka has ended the fetching: there is nothing where it was."""
        self.end = -1
        """There are messages below it, as far as is known."""
        self.is_of_use: Final = True
        """Ranges come and go: what was read is kept for the next."""
        self._truncated_at = -1
        """Kafka said while no range was held that there is nothing from there on; −1: it did not.
        It may have grown again since then."""
        self._wanting: list[HeldPartition] = []
        self._at: int | None = None
        """What Kafka brings next; None: it is not asked."""
        self._is_paused = False
        self._kept: list[Any] = []
        """Messages in order, in no range that was held when they came."""
        self._kept_bytes = 0
        self._kept_from = 0
        self._given: list[tuple[int, int]] = []
        """From `_kept_from` to `_at` all messages are kept, but those of these offsets, in order,
        which some range was given."""

    def add(self, number: int, part: HeldPartition) -> None:
        """Fetch a range, too."""
        self.parts[number] = part
        if 0 <= self._truncated_at < part.read_to:
            part.out_of_range, part.truncated_at = True, self._truncated_at

    def lose(self, end: int) -> None:
        """Kafka has nothing where it was to read, and perhaps nothing from `end` on; −1: unknown.

        It may have grown again when the next range comes, which must hear of it.
        """
        self.is_lost = True
        if not self.parts:
            self.end, self._truncated_at = min(self.end, end), end

    def truncated(self, end: int) -> None:
        """There are no messages from `end` on any more."""
        self.end, self._truncated_at = min(self.end, end), -1

    def renew(self) -> None:
        """The topic was made anew."""
        self.end = self._truncated_at = -1

    def note(self, messages: list[Any]) -> int:  # noqa: ARG002 (see `Stream`)
        """Nothing is known of what there was before."""
        return -1

    def follow(self, kafka: Any) -> None:
        """Have Kafka bring what the ranges want now."""
        self._wanting = sorted(
            (part for part in self.parts.values() if _wants(part)),
            key=lambda part: part.read_to,
        )
        if not self._wanting:
            self._pause(kafka)
            return
        if any(part.out_of_range for part in self._wanting):
            return  # once it is known where each of them goes on
        at, first = self._at, self._wanting[0]  # the others follow when it has all of its own
        is_near = at is not None and not self.is_lost and 0 <= first.read_to - at <= LEAP
        if not is_near and not self._is_there(first):
            self._seek(kafka, first.read_to)
        elif self._is_paused:
            kafka.resume([TopicPartition(*self.source)])
            self._is_paused = False

    def _is_there(self, part: HeldPartition) -> bool:
        """Whether what a range still wants is kept, or comes next."""
        at, first = self._at, part.read_to
        if at is None or self.is_lost or not self._kept_from <= first <= at:
            return False
        following = bisect_right(self._given, first, key=itemgetter(1))
        end = min(at, part.end_offset or 0)
        return following == len(self._given) or self._given[following][0] >= end

    def _pause(self, kafka: Any) -> None:
        """Nothing is wanted: read on a little all the same, the next range is about to come."""
        if self._at is None or self._is_paused:
            return
        if self._is_full:
            kafka.pause([TopicPartition(*self.source)])
            self._is_paused = True

    @property
    def _is_full(self) -> bool:
        """Whether no more should be kept. It is at half of what can be: the next range needs it."""
        return len(self._kept) >= KEPT // 2 or self._kept_bytes >= KEPT_BYTES // 2

    def _seek(self, kafka: Any, first: int) -> None:
        """Have Kafka begin at `first`, or at the end, if that comes before."""
        if self.end >= 0:
            first = min(first, self.end)
        self.stop(kafka)
        where = TopicPartition(*self.source)
        where.offset = OFFSET_BEGINNING if first < 0 else first
        kafka.incremental_assign([where])
        self._at = self._kept_from = first

    def stop(self, kafka: Any) -> None:
        """Have Kafka bring nothing more, and keep nothing."""
        if self._at is not None:
            where = [TopicPartition(*self.source)]
            kafka.resume(where)  # a pause would outlive the assignment
            kafka.incremental_unassign(where)
        self._at, self._is_paused, self.is_lost = None, False, False
        self._kept, self._kept_bytes, self._given = [], 0, []

    def kept_for_parts(self) -> Iterator[tuple[HeldPartition, list[Any]]]:
        """Yield what is kept of the messages that are wanted now."""
        at = self._at
        if at is None or self.is_lost:
            return
        for part in self._wanting:
            end = part.end_offset or 0
            if part.read_to >= at or not self._is_there(part):
                continue
            first = bisect_left(self._kept, part.read_to, key=_offset_of)
            last = bisect_left(self._kept, end, first, key=_offset_of)
            mine = self._kept[first:last]
            if mine:
                del self._kept[first:last]
                self._kept_bytes -= sum(map(len, mine))
                yield part, mine
            self._read(part, min(at, end))
        self._wanting = list(filter(_wants, self._wanting))

    def sort(self, messages: list[Any]) -> Iterator[tuple[HeldPartition, list[Any]]]:
        """Yield what of these messages, which are in order, belongs to which range."""
        first, last = messages[0].offset(), messages[-1].offset()
        done = 0  # so many are some range's, or kept
        at = first if self._at is None else self._at
        for part in self._wanting:
            end = part.end_offset or 0
            if not at <= part.read_to <= last or end <= first:
                continue
            begins = bisect_left(messages, part.read_to, done, key=_offset_of)
            ends = bisect_left(messages, end, begins, key=_offset_of)
            self._keep(messages[done:begins])
            if begins < ends:
                yield part, messages if ends - begins == len(messages) else messages[begins:ends]
            done = ends
        self._keep(messages[done:])

    def _keep(self, messages: list[Any]) -> None:
        if not messages:
            return
        self._kept += messages
        self._kept_bytes += sum(map(len, messages))
        while self._kept and (len(self._kept) > KEPT or self._kept_bytes > KEPT_BYTES):
            gone = max(1, len(self._kept) - KEPT, len(self._kept) // 8)
            self._kept_bytes -= sum(map(len, self._kept[:gone]))
            self._kept_from = self._kept[gone - 1].offset() + 1
            del self._kept[:gone]
            del self._given[: bisect_right(self._given, self._kept_from, key=itemgetter(1))]

    def _read(self, part: HeldPartition, end: int) -> None:
        """What there is of a range below `end` was fetched, and given to it."""
        first = part.read_to
        if end <= first:
            return
        part.read_to = end
        part.reached(end)
        part.fetched = max(part.fetched, end)
        at = bisect_left(self._given, first, key=itemgetter(1))
        after = bisect_right(self._given, end, at, key=itemgetter(0))
        touching = self._given[at:after]
        if touching:
            first, end = min(first, touching[0][0]), max(end, touching[-1][1])
        self._given[at:after] = [(first, end)]

    def ended(self, end: int, kafka: Any) -> bool:
        """Kafka has nothing more to bring: ranges may be granted before there is any of it."""
        return self.passed(end, kafka)

    def passed(self, end: int, kafka: Any) -> bool:
        """Kafka has brought what there is below `end`, and each range was given its messages.

        Returns whether it is time to `follow`: some range has all of its own by that, or so much
        is kept that no more should come before something is wanted.
        """
        at = end if self._at is None else self._at
        self._at = max(at, end)
        self.end = max(self.end, end)
        for part in self._wanting:
            if at <= part.read_to < end:
                self._read(part, min(end, part.end_offset or 0))
        wanting, self._wanting = self._wanting, list(filter(_wants, self._wanting))
        self.end = max(self.end, known_end(self.source, kafka))  # how many messages wait
        is_full = not self._wanting and not self._is_paused and self._is_full
        return is_full or len(self._wanting) < len(wanting)


def _wants(part: HeldPartition) -> bool:
    return part.wants_messages and part.read_to < (part.end_offset or 0)
