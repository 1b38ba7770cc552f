"""When a topic is gone, by an admin client whose answers the test gives."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

from marshal_py.client.structured_logs import Fields
from marshal_py.consumer.topics import GONE_AFTER, Topics
from marshal_py.protocol.subscription import Subscription


class Kafka:
    """Stands for an `AdminOnDemand` and its client: knows the topics in `there`."""

    tells_ids = False

    def __init__(self) -> None:
        self.there: dict[str, int] = {}

    def get(self) -> Kafka:
        return self

    def list_topics(self, timeout: float) -> Any:
        assert timeout > 0
        found = {
            name: SimpleNamespace(partitions=dict.fromkeys(range(count)), error=None)
            for name, count in self.there.items()
        }
        return SimpleNamespace(topics=found)


def looking(kafka: Kafka, changes: list[bool]) -> Topics:
    fakes: Any = SimpleNamespace(client_id="me")
    admin: Any = kafka
    log = Fields(logging.getLogger("marshal_py.consumer"), {})
    wanted = Subscription(frozenset({"a"}))
    topics = Topics(fakes, admin, fakes, log, wanted, discovery_interval_s=60)
    topics._on_look = changes.append
    return topics


def test_a_topic_is_gone_when_looks_in_a_row_have_not_found_it() -> None:
    """One answer may be of a broker that does not know yet, however often that happens."""
    kafka, changes = Kafka(), list[bool]()
    topics = looking(kafka, changes)
    for there in [True] + ([False] * (GONE_AFTER - 1) + [True]) * 3:
        kafka.there = {"a": 4} if there else {}
        topics._look()
        assert topics.counts == {"a": 4}
    assert changes.count(True) == 1
    kafka.there = {}
    for _ in range(GONE_AFTER):
        assert topics.counts == {"a": 4}
        topics._look()
    assert topics.counts == {}
    assert changes.count(True) == 2
