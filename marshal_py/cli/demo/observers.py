"""Two observers that take no part: one of the coordination log, one of the topic."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, Literal

from confluent_kafka import Consumer, KafkaError, TopicPartition

from marshal_py.cli.demo.compare import Record
from marshal_py.cli.demo.config import PARTITIONS, DemoConfig
from marshal_py.client.leader_election import leader_topic
from marshal_py.client.log_reader import LogReader, Truncated
from marshal_py.errors import BrokerUnavailable
from marshal_py.protocol import events as ev

__all__ = ["CellName", "Hold", "LogObserver", "TopicObserver", "read_topic"]

CellName = tuple[str, int]
"""(topic, partition) of a claim in the demo."""

_KEPT_EVENTS: Final = 8


@dataclass
class Hold:
    """One holder's time with a claim, as seen here, on the machine's monotonic clock."""

    holder: str
    epoch: int
    from_ns: int
    until_ns: int | None = None
    end: Literal["held", "released", "taken over"] = "held"


class LogObserver:
    """Folds the coordination log in a thread, and keeps who held what when."""

    def __init__(self, config: DemoConfig) -> None:
        self.leader_cell: CellName = (leader_topic(f"harvest:{config.outbox}"), 0)
        self.cells: dict[CellName, list[Hold]] = {self.leader_cell: []}
        self.cells |= {(config.topic, p): [] for p in range(PARTITIONS)}
        self.members: set[str] = set()
        """Every client that has been seen, dead or alive."""
        self.recent: deque[tuple[int, ev.Event]] = deque(maxlen=_KEPT_EVENTS)
        """(broker's time in ms, event) of what is worth telling."""
        self.failure: str | None = None
        self.changed = threading.Condition()
        self._groups = {config.harvest_group, config.consumer_group}
        self._reader = LogReader(
            config.kafka,
            topic=config.coordination_topic,
            snapshot_topic=f"{config.coordination_topic}.snapshots",
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-log", daemon=True)

    def start(self) -> None:
        """Connect and begin."""
        self._reader.open(timeout_s=20)
        self._reader.replay()
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(5)
        self._reader.close()

    def holder(self, cell: CellName) -> Hold | None:
        """Return who holds a claim now, according to the log."""
        with self.changed:
            holds = self.cells[cell]
            return holds[-1] if holds and holds[-1].until_ns is None else None

    def held_by(self, name: str) -> list[CellName]:
        """Return what a process holds, according to the log."""
        with self.changed:
            return [
                cell
                for cell, holds in self.cells.items()
                if holds and holds[-1].until_ns is None and holds[-1].holder == name
            ]

    def successor(self, cell: CellName, epoch: int) -> Hold | None:
        """Return the first hold of a cell after the one of `epoch`."""
        with self.changed:
            return next((hold for hold in self.cells[cell] if hold.epoch > epoch), None)

    def _run(self) -> None:
        while not self._over.is_set():
            messages = self._reader.poll(0.1)
            if not messages:
                continue
            stamps = {
                (m.partition(), m.offset()): m.timestamp()[1]
                for m in messages
                if m.error() is None and m.topic() == self._reader.topic
            }
            now_ns = time.monotonic_ns()
            try:
                with self.changed:
                    for batch in self._reader.fold(messages):
                        for event in batch.events:
                            self._note(event, stamps[batch.coordinator, event.offset], now_ns)
                    self.changed.notify_all()
            except Truncated as error:
                self.failure = f"the coordination log lost records: {error}"
                return

    def _note(self, event: ev.Event, at_ms: int, now_ns: int) -> None:
        if getattr(event, "group_id", None) not in self._groups:
            return
        if isinstance(event, ev.MemberJoined):
            self.members.add(event.client_id)
        elif isinstance(event, ev.Claimed | ev.Released):
            holds = self.cells.setdefault((event.topic, event.partition), [])
            if holds and holds[-1].until_ns is None:
                holds[-1].until_ns = now_ns
                holds[-1].end = "released" if isinstance(event, ev.Released) else "taken over"
            if isinstance(event, ev.Claimed):
                holds.append(Hold(event.client_id, event.epoch, now_ns))
        if not isinstance(event, ev.Beat | ev.Renewed):
            self.recent.append((at_ms, event))


class TopicObserver:
    """Counts what becomes visible in the topic, and when."""

    def __init__(self, config: DemoConfig) -> None:
        self.seen_ns: list[int] = []
        """When each record was seen, on the machine's monotonic clock; in order."""
        self.rows: set[str] = set()
        self._config = config
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-topic", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(5)

    def first_after(self, at_ns: int) -> int | None:
        """Return when the first record after `at_ns` was seen."""
        return next((seen for seen in list(self.seen_ns) if seen > at_ns), None)

    def _run(self) -> None:
        with contextlib.closing(_reader(self._config, eof=False)) as consumer:
            while not self._over.is_set():
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    self.rows.add(_record(message).row_id)
                    self.seen_ns.append(time.monotonic_ns())


def read_topic(config: DemoConfig, timeout_s: float = 30.0) -> list[Record]:
    """Read the whole topic anew, as a read_committed consumer sees it.

    Raises `BrokerUnavailable` after `timeout_s`.
    """
    deadline_s = time.monotonic() + timeout_s
    records: list[Record] = []
    behind = set(range(PARTITIONS))
    with contextlib.closing(_reader(config, eof=True)) as consumer:
        while behind:
            if time.monotonic() > deadline_s:
                raise BrokerUnavailable(f"{config.topic!r} could not be read in {timeout_s:g} s")
            message = consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is None:
                records.append(_record(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                behind.discard(message.partition())
    return records


def _reader(config: DemoConfig, *, eof: bool) -> Consumer:
    consumer = Consumer(
        {
            **config.kafka,
            "group.id": f"{config.consumer_group}-check",  # nothing is stored in it
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": eof,
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.assign([TopicPartition(config.topic, p, 0) for p in range(PARTITIONS)])
    return consumer


def _record(message: Any) -> Record:
    try:
        value = json.loads(message.value())
        seq, row_id = int(value["seq"]), str(value["row"])
    except (TypeError, ValueError, KeyError):
        seq, row_id = -1, f"no row of the demo, at {message.partition()}/{message.offset()}"
    key = (message.key() or b"").decode(errors="replace")
    return Record(message.partition(), message.offset(), key, seq, row_id)
