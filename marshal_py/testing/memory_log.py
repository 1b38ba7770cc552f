"""Without a broker: an in-memory coordination log and clocks that obey.

The protocol does no I/O, so a test can drive it record by record: append to a `MemoryLog`, fold it
with `marshal_py.protocol.rationalizer.apply`, and give a `Claimant` whatever time a `VirtualClock`
shows. The simulator of this project (tests/simulation) does exactly that.

`MemoryLog` is what a Kafka topic is to a careful writer, and can lose its end as a topic with
unsafe settings can. It has no network: delays, losses and cuts belong to whoever drives it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

from marshal_py.errors import InvalidArgument
from marshal_py.protocol.messages import Message, encode

__all__ = ["MemoryLog", "MemoryPartition", "Record", "VirtualClock"]

MILLION: Final = 1_000_000


class Record(NamedTuple):
    """One record of a `MemoryLog`. `stamp_ms` is the broker's append time."""

    offset: int
    value: bytes | None
    stamp_ms: int


class MemoryPartition:
    """One partition of a `MemoryLog`: records in offset order, with gaps where you made some.

    `offsets`, `values` and `stamps_ms` are parallel lists, for drivers that want speed; change them
    with `append`, `skip` and `truncate` alone.
    """

    __slots__ = ("end", "offsets", "stamps_ms", "truncations", "values")

    def __init__(self, first_offset: int = 0) -> None:
        self.offsets: list[int] = []
        self.values: list[bytes | None] = []
        self.stamps_ms: list[int] = []
        self.end = first_offset
        """The offset that the next record gets."""
        self.truncations = 0
        """How often the end of this partition was lost."""

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, value: bytes | None, stamp_ms: int = 0) -> int:
        """Append a record and return its offset."""
        offset = self.end
        self.offsets.append(offset)
        self.values.append(value)
        self.stamps_ms.append(stamp_ms)
        self.end = offset + 1
        return offset

    def skip(self, offsets: int) -> None:
        """Leave a gap of so many offsets, as transaction markers and compaction do."""
        if offsets < 0:
            raise InvalidArgument(f"offsets = {offsets} must be 0 or more")
        self.end += offsets

    def truncate(self, records: int) -> list[Record]:
        """Lose the last `records` records, as after an unclean leader election; return them."""
        if not 0 <= records <= len(self):
            raise InvalidArgument(f"records = {records} must be 0 to {len(self)}")
        if not records:
            return []
        lost = self.read(self.offsets[-records])
        self.end = self.offsets[-records]
        del self.offsets[-records:], self.values[-records:], self.stamps_ms[-records:]
        self.truncations += 1
        return lost

    def read(self, offset: int, limit: int | None = None) -> list[Record]:
        """Return up to `limit` records from `offset` on (the next one, where there is a gap)."""
        start = bisect_left(self.offsets, offset)
        stop = None if limit is None else start + limit
        return list(
            map(
                Record,
                self.offsets[start:stop],
                self.values[start:stop],
                self.stamps_ms[start:stop],
            )
        )


class MemoryLog:
    """A topic in memory: `partitions` partitions, each in one order that every reader sees.

    Not thread-safe.
    """

    def __init__(self, partitions: int = 1, *, first_offset: int = 0) -> None:
        if partitions < 1:
            raise InvalidArgument(f"partitions = {partitions} must be 1 or more")
        self.partitions: list[MemoryPartition] = [
            MemoryPartition(first_offset) for _ in range(partitions)
        ]

    def append(self, partition: int, value: bytes | Message | None, stamp_ms: int = 0) -> int:
        """Append a record, or its bytes, and return the offset. Raises `MalformedRecord`."""
        if value is not None and not isinstance(value, bytes):
            value = encode(value)
        return self.partitions[partition].append(value, stamp_ms)

    def read(self, partition: int, offset: int = 0, limit: int | None = None) -> list[Record]:
        """Return up to `limit` records of a partition from `offset` on."""
        return self.partitions[partition].read(offset, limit)

    def end(self, partition: int) -> int:
        """Return the offset that the next record of a partition gets."""
        return self.partitions[partition].end


class VirtualClock:
    """A monotonic clock of one process: it starts where it likes and runs at its own rate.

    True time is what the driver of the test says it is, in nanoseconds; `rate_ppm` is how many
    millionths of a local second pass in one true second. All arithmetic is in integers.
    """

    __slots__ = ("_local_ns", "_true_ns", "rate_ppm")

    def __init__(self, local_ns: int = 0, *, rate_ppm: int = MILLION, true_ns: int = 0) -> None:
        self._local_ns = local_ns
        self._true_ns = true_ns
        self.rate_ppm = rate_ppm

    def at(self, true_ns: int) -> int:
        """Return what this clock shows at `true_ns`."""
        return self._local_ns + (true_ns - self._true_ns) * self.rate_ppm // MILLION

    def when(self, local_ns: int) -> int:
        """Return the earliest true time, after the last change of rate, with `at` >= `local_ns`."""
        passed = max(0, local_ns - self._local_ns)
        return self._true_ns - (-passed * MILLION // self.rate_ppm)

    def jump(self, true_ns: int, by_ns: int) -> None:
        """Go ahead by `by_ns` at `true_ns`, as no monotonic clock should."""
        self._local_ns = self.at(true_ns) + by_ns
        self._true_ns = true_ns

    def change_rate(self, true_ns: int, rate_ppm: int) -> None:
        """Run at another rate from `true_ns` on."""
        if rate_ppm < 1:
            raise InvalidArgument(f"rate_ppm = {rate_ppm} must be 1 or more: clocks do not stop")
        self._local_ns = self.at(true_ns)
        self._true_ns = true_ns
        self.rate_ppm = rate_ppm
