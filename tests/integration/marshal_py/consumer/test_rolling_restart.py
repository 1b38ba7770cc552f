"""Rolling restarts: consumers that come back under their names keep what they held."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from marshal_py import Marshal
from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.protocol import events as ev
from tests.support.consumers import Process, delivered, fill, pid_suffix, processes, until

pytestmark = pytest.mark.kafka

PARTITIONS = 12
INTERVAL_MS = 10_000
"""Long: a restart that had to wait for staleness would take 20 s, and time the test out."""


class Observer:
    """Reads the coordination log, and is no member."""

    def __init__(self, marshal: Marshal) -> None:
        self.events: list[ev.Event] = []
        marshal.listen(lambda _, events: self.events.extend(events))

    def of(self, kind: type[ev.Event]) -> list[ev.Event]:
        return [event for event in list(self.events) if type(event) is kind]

    def holders(self) -> dict[int, str]:
        """Who claimed each partition last, and did not release it since."""
        found: dict[int, str] = {}
        for event in list(self.events):
            if isinstance(event, ev.Claimed):
                found[event.partition] = event.client_id
            elif isinstance(event, ev.Released):
                found.pop(event.partition, None)
        return found


@pytest.mark.parametrize("way", ["keep_on_close", "SIGKILL"])
def test_a_rolling_restart_moves_no_partition(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str], tmp_path: Path, way: str
) -> None:
    topic = kafka_topic(partitions=PARTITIONS)
    coordination = f"__marshal.restart.{pid_suffix()}.{way}"
    create_topics(kafka.bootstrap_servers, topic=coordination, partitions=4)
    settings = {
        "group_id": "g",
        "topics": [topic],
        "topic": coordination,
        "interval_ms": INTERVAL_MS,
        "keep_on_close": way == "keep_on_close",
    }
    consumers = [Process(kafka.bootstrap_servers, tmp_path, name, settings) for name in "abc"]
    watcher = Marshal(
        kafka.bootstrap_servers, group_id="g", client_id="w", topic=coordination, member=False
    )
    with watcher, processes(*consumers):
        log = Observer(watcher)
        for consumer in consumers:
            consumer.start()
        until(
            lambda: sorted(map(list(log.holders().values()).count, "abc")) == [4, 4, 4],
            what="no fair share",
        )
        before, claims = log.holders(), len(log.of(ev.Claimed))
        released = len(log.of(ev.Released))
        fill(kafka.bootstrap_servers, topic, 240, partitions=PARTITIONS)
        until(lambda: len(delivered(*consumers)) == 240)
        for done, consumer in enumerate(consumers, start=1):
            if way == "SIGKILL":
                consumer.kill()
            else:
                assert consumer.stop() == 128 + signal.SIGTERM
            consumer.start()
            until(
                lambda n=claims + 4 * done: len(log.of(ev.Claimed)) == n,  # type: ignore[misc]
                what="it did not resume what it held",
            )
            fill(kafka.bootstrap_servers, topic, 240, partitions=PARTITIONS, start=240 * done)
            until(lambda n=240 * (done + 1): len(delivered(*consumers)) == n)  # type: ignore[misc]
        for event in log.of(ev.Claimed)[claims:]:
            assert isinstance(event, ev.Claimed)
            assert event.client_id == event.previous_holder
        assert len(log.of(ev.Claimed)) == claims + PARTITIONS, "each was claimed once, by its own"
        assert len(log.of(ev.Released)) == released
        assert log.holders() == before
    counts = delivered(*consumers)
    assert sorted(counts) == list(range(240 * 4)), "nothing was missed"
    if way == "keep_on_close":
        # What was in hand, at most, when the loop was left: the position was stored by the close.
        assert sum(counts.values()) <= 240 * 4 + PARTITIONS
