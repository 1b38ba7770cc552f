"""The sinks that users run, over a Kafka that fails: nothing lost, nothing doubled, all in order.

Whoever harvests does as the schedulers do: it delivers rows in order, and after a failure opens the
sink again, or another process does, and goes on behind what was committed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harvest.core.failure import Failure
from harvest.core.row import Row
from harvest.errors import SinkUnavailable
from harvest.sinks.kafka import producers
from harvest.sinks.kafka import sink as kafka_sink
from harvest.sinks.kafka.idempotent import IdempotentSink
from harvest.sinks.kafka.sink import TransactionalSink
from tests.support.failing_kafka import Died, Kafka

SERVERS = {"bootstrap.servers": "nowhere:1"}
ROWS = [Row(n, "t", b"k%d" % (n % 3), b"%d" % n) for n in range(24)]
WAIT_S = 60.0


class Harvest:
    """Delivers `ROWS` by one transactional sink after the other; any of them may come back."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.sinks: list[TransactionalSink] = []
        self.failures: list[Failure] = []
        self._nested = 0
        kafka.at_any_call = self._somebody_else

    def sink(self) -> TransactionalSink:
        made = TransactionalSink(SERVERS, base_config=SERVERS, name="x", checkpoint_topic="t")
        self.sinks.append(made)
        return made

    def deliver(self, sink: TransactionalSink, most: int) -> bool:
        """Open, and deliver up to so many batches; False if that did not go well."""
        dice = self.kafka.dice
        try:
            at = int(sink.open(lambda: dice.random() > self.kafka.trouble * 0.05) or 0)
        except SinkUnavailable:
            return False
        for _ in range(most):
            rows = ROWS[at : at + dice.randint(1, 5)]
            if not rows:
                return True
            failure = sink.deliver(rows, str(at + len(rows)))
            if failure is not None:
                self.failures.append(failure)
                after = sink.deliver(rows, str(at + len(rows)))
                assert after is not None, "after a failure nothing is delivered until it is opened"
                return False
            at += len(rows)
        return True

    def _somebody_else(self) -> None:
        """At any call of one sink, another process may open its own, and deliver."""
        if self._nested < 2 and self.kafka.happens("another comes in", 0.2):
            self._nested += 1
            try:
                self.deliver(self.sink(), 2)
            except Died:
                pass
            finally:
                self._nested -= 1

    def run(self) -> None:
        """Until all is published; in the end nothing fails any more."""
        sink, dice = self.sink(), self.kafka.dice
        for attempt in range(60):
            if attempt == 50:
                self.kafka.trouble = 0.0
            try:
                self.deliver(sink, 4)
                if dice.random() < 0.2:
                    sink = dice.choice(self.sinks)  # an earlier leader is elected again
            except Died:
                sink = self.sink()
        assert self.deliver(self.sink(), len(ROWS))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a broker that is on its way need not here."""
    monkeypatch.setattr("harvest.sinks.kafka.refusals._APPEARS_WITHIN_S", 0.0)


def over(kafka: Kafka, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(producers, "Producer", kafka.producer)
    patch.setattr(kafka_sink, "Consumer", kafka.reader)


@given(st.integers(0, 2**32), st.sampled_from([0.02, 0.1, 0.3]))
@settings(max_examples=150, deadline=None)
def test_with_transactions_each_row_is_there_once_and_in_order(seed: int, trouble: float) -> None:
    kafka = Kafka(seed, trouble)
    with pytest.MonkeyPatch.context() as patch:
        over(kafka, patch)
        harvest = Harvest(kafka)
        harvest.run()
    assert [value for _, value in kafka.records] == [row.value for row in ROWS]
    assert kafka.checkpoint == str(len(ROWS))


def test_each_trouble_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation in which nothing happens shows nothing."""
    seen: dict[str, int] = {}
    for seed in range(80):
        kafka = Kafka(seed, 0.1)
        over(kafka, monkeypatch)
        Harvest(kafka).run()
        for what, count in kafka.seen.items():
            seen[what] = seen.get(what, 0) + count
    assert not [what for what, count in seen.items() if not count]
    assert len(seen) >= 15


class Line:
    """One opening of the idempotent sink: what was submitted, and what it said of it."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.first = len(kafka.records)
        self.changed = threading.Condition()
        self.settled: list[tuple[list[Row], Failure | None]] = []

    def settle(self, rows: list[Row]) -> Any:
        def heard(failure: Failure | None) -> None:
            with self.changed:
                self.settled.append((rows, failure))
                self.changed.notify_all()

        return heard

    def wait(self, count: int) -> None:
        """Until so many deliveries are settled."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.settled) >= count, WAIT_S)

    def undelivered(self) -> set[int]:
        """The rows that are to come again, by what the sink said."""
        found: set[int] = set()
        for rows, failure in self.settled:
            if failure is not None:
                ids = {row.id for row in rows}
                named = failure.undelivered
                found |= ids if named is None else ids & named
        return found


def batches(kafka: Kafka, rows: list[Row]) -> Iterator[list[Row]]:
    while rows:
        count = kafka.dice.randint(1, 5)
        yield rows[:count]
        rows = rows[count:]


@pytest.mark.parametrize("trouble", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(8))
def test_without_transactions_no_row_is_lost_and_keys_end_in_order(
    monkeypatch: pytest.MonkeyPatch, seed: int, trouble: float
) -> None:
    kafka = Kafka(seed, trouble)
    monkeypatch.setattr(Kafka, "call", lambda _: None)  # who dies is another's affair
    over(kafka, monkeypatch)
    sink, left = IdempotentSink(SERVERS), list(ROWS)
    for attempt in range(100):
        if attempt == 50:
            kafka.trouble = 0.0
        try:
            sink.open(lambda: True)
        except SinkUnavailable:
            continue
        line, given = Line(kafka), list(batches(kafka, left))
        for rows in given:
            sink.submit(rows, line.settle(rows))
        line.wait(len(given))
        assert [rows for rows, _ in line.settled] == given, "settled in order, each once"
        failed = [failure is not None for _, failure in line.settled]
        assert failed == sorted(failed), "none succeeds behind one that failed"
        written = [value for _, value in kafka.records[line.first :]]
        assert written == sorted(written, key=int), "in order, under one producer"
        undelivered = line.undelivered()
        for row in left:
            assert row.id in undelivered or row.value in written, "lost"
        # As the schedulers do: what is behind a row of its key comes again with it.
        first: dict[bytes | None, int] = {}
        for row in left:
            if row.id in undelivered:
                first.setdefault(row.key, row.id)
        left = [row for row in left if row.id >= first.get(row.key, len(ROWS))]
        if not left:
            break
    assert not left
    for key in {row.key for row in ROWS}:
        last = {value: n for n, (k, value) in enumerate(kafka.records) if k == key}
        in_order = sorted(last, key=last.__getitem__)
        assert in_order == [row.value for row in ROWS if row.key == key]
    sink.close()
