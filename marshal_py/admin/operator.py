"""Writing to the coordination log as an operator does: a record, and what the fold made of it.

`Operator` is no member of a group and holds nothing, so there is no thread and no lease: the log is
read while a call waits, and only then. That is safe for what it measures: a record that is read
late counts as seen late, never early (specs/PROTOCOL.md §5.1).
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

from marshal_py.client.log_reader import LogReader, Truncated, boottime_ns
from marshal_py.client.log_writer import LogWriter
from marshal_py.client.settings import KafkaConfig, new_instance_id
from marshal_py.errors import BrokerUnavailable
from marshal_py.protocol import events as ev
from marshal_py.protocol.messages import (
    MAX_LEVEL,
    VERSION,
    Heartbeat,
    Message,
    ReleaseGroup,
    encode,
)
from marshal_py.protocol.world import MS, World

__all__ = ["Head", "Make", "Operator"]

Head: TypeAlias = tuple[Literal[2], str, str, str, int]
"""What every record begins with: version, client_id, instance_id, group_id, seq."""

Make: TypeAlias = Callable[[Head], Message]
K = TypeVar("K", bound=Hashable)


class Operator:
    """Reads the log up to its end, and writes records about one group. For one thread.

    Raises `MalformedRecord` for a name that no record can carry, before anything is connected.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        group_id: str,
        *,
        topic: str,
        snapshot_topic: str,
        client_id: str,
        cold_start_skew_ms: int | None,
        connect_timeout_s: float,
    ) -> None:
        self.group_id = group_id
        self.topic = topic
        self.alive: set[str] = set()
        """Clients of the group that were heard since the log was replayed, and did not leave."""
        self._who = (client_id, new_instance_id())
        self._seq = itertools.count()
        encode(ReleaseGroup(*self._head(0), 0))
        self._skew_ms = cold_start_skew_ms
        self._connect_timeout_s = connect_timeout_s
        self._reader = LogReader(
            kafka,
            topic=topic,
            snapshot_topic=snapshot_topic,
            compare_snapshots=False,
            is_polled=False,
        )
        self._writer = LogWriter(
            kafka, topic=topic, snapshot_topic=snapshot_topic, timeout_ms=5_000
        )
        self.pauses: set[int] = set()
        """Offsets of the pauses that we began."""
        self._answers: dict[int, ev.Event] = {}
        """seq → what became of a record of ours."""
        self._failed: set[int] = set()
        self._probe = -1
        """Offset of a heartbeat of ours (§5.3)."""

    def start(self) -> None:
        """Connect and replay. Raises `TopicMissing`, `BrokerUnavailable`, `LogHole`."""
        try:
            self.replay()
        except BaseException:
            self._reader.close()
            raise

    def close(self) -> None:
        """Disconnect."""
        self._writer.flush(5.0)
        self._reader.close()

    def replay(self) -> None:
        """Read the log anew, from the newest snapshots."""
        for _ in range(3):
            with contextlib.suppress(Truncated):
                self._reader.open(self._connect_timeout_s)
                self._reader.replay()
                self._probe = -1
                return
        raise BrokerUnavailable(f"topic {self.topic!r} changes while it is read")

    @property
    def world(self) -> World:
        """The world as of the last `turn`."""
        return self._reader.world

    def turn(self) -> None:
        """Read what has come, for at most a tenth of a second. Raises `BrokerUnavailable`."""
        try:
            for batch in self._reader.fold(self._reader.poll(0.1)):
                for event in batch.events:
                    self._hear(event)
        except Truncated as error:
            self.replay()
            raise BrokerUnavailable(
                f"{error}: the coordination log lost records meanwhile; look, and run it again"
            ) from None
        if self._reader.partition_count_error is not None:
            raise self._reader.partition_count_error
        self._writer.serve()
        self._failed.update(seq for seq, _ in self._writer.take_failures())

    def _hear(self, event: Any) -> None:
        if isinstance(event, ev.Ignored) or event.group_id != self.group_id:
            return
        if event.instance_id == self._who[1]:
            if isinstance(event, ev.GroupPaused):
                self.pauses.add(event.offset)
            self._answers[event.seq] = event
        elif isinstance(event, ev.MemberLeft):
            self.alive.discard(event.client_id)
        elif isinstance(event, ev.Beat | ev.Claimed | ev.MessagesClaimed):
            self.alive.add(event.client_id)

    @property
    def home(self) -> int:
        """The coordination partition of the group."""
        return self.world.home(self.group_id)

    # Writing

    def _head(self, seq: int) -> Head:
        return (VERSION, *self._who, self.group_id, seq)

    def write_one(self, make: Make, timeout_s: float) -> ev.Event:
        """Append one record; return what the fold made of it. As `write` does."""
        return self.write({0: make}, timeout_s)[0]

    def write(self, records: Mapping[K, Make], timeout_s: float) -> dict[K, ev.Event]:
        """Append records to the group's coordination partition; return what the fold made of each.

        What an append that failed has come to is not known (§5.12): it is made again, and the one
        that was accepted counts. Only for records that bear to be written twice. Raises
        `BrokerUnavailable` after `timeout_s`, `AccessDenied`.
        """
        deadline = time.monotonic() + timeout_s
        tries: dict[K, list[int]] = {name: [] for name in records}
        done: dict[K, ev.Event] = {}
        while True:
            for name, make in records.items():
                if name not in done:
                    self._try(make, tries[name])
            for name, seqs in tries.items():
                answer = self._answer(seqs)
                if answer is not None:
                    done[name] = answer
            if len(done) == len(records):
                return done
            if self._writer.refusal is not None:
                raise self._writer.refusal
            if time.monotonic() >= deadline:
                raise BrokerUnavailable(
                    f"{len(records) - len(done)} of {len(records)} records about group "
                    f"{self.group_id!r} were not seen in {self.topic!r} within {timeout_s:.0f} s; "
                    "they may yet turn up"
                )
            self.turn()

    def _try(self, make: Make, seqs: list[int]) -> None:
        """Append a record, unless an append of it is on its way or was answered."""
        if all(seq in self._failed and seq not in self._answers for seq in seqs):
            seq = next(self._seq)
            seqs.append(seq)
            self._writer.append(self.home, seq, encode(make(self._head(seq))))

    def _answer(self, seqs: list[int]) -> ev.Event | None:
        """What became of a record that was appended under these numbers, None if not known yet."""
        known = [self._answers[seq] for seq in seqs if seq in self._answers]
        accepted = [answer for answer in known if not isinstance(answer, ev.Rejected)]
        return next(iter([*accepted, *known]), None)

    # Judging silence

    def probe(self, timeout_s: float) -> None:
        """Write an empty heartbeat: all that lies before it is read then, and its time compares.

        It says that it can follow any level: an operator holds nothing, and is no member.
        """
        answer = self.write_one(
            lambda head: Heartbeat(*head, 0, highest=MAX_LEVEL), max(1.0, timeout_s)
        )
        self._probe = answer.offset

    def is_stale(self, version: int, interval_ms: int) -> bool:
        """Whether the client that wrote `version` last counts as dead (§5.1, §5.3)."""
        observer = self._reader.observers[self.home]
        silence_ns = observer.silence_ns(version, boottime_ns())
        if silence_ns is not None and silence_ns > 2 * interval_ms * MS:
            return True
        if self._skew_ms is None or self._probe <= version:
            return False
        own_ms, last_ms = observer.stamped.at(self._probe), observer.stamped.at(version)
        if own_ms is None or last_ms is None:
            return False
        own_ms -= observer.stamped.resolution  # `at` may answer late, and ours must not be too late
        return own_ms - last_ms > 2 * interval_ms + self._skew_ms
