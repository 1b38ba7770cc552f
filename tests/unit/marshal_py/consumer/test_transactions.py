"""From where a transaction begins, with producers whose answers the test gives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError

from marshal_py.consumer import transactions as module
from marshal_py.consumer.held_partition import Batch
from marshal_py.consumer.transactions import Transactions


class World:
    """One claimed partition, its batches, and what was asked of Kafka."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *committed: Any) -> None:
        self.steps: list[str] = []
        self.acked: list[int] = []
        self.transformed: list[int] = []
        self._committed = list(committed)
        monkeypatch.setattr(module, "connect", self._connect)

    def work_off(self, *batches: list[int]) -> None:
        claim: Any = SimpleNamespace(topic="t", partition=3, held=True, reason=None)
        made = [
            Batch([SimpleNamespace(offset=lambda at=at: at) for at in b], claim) for b in batches
        ]
        settings = SimpleNamespace(kafka={"bootstrap.servers": "localhost:1"})
        consumer: Any = SimpleNamespace(
            mode="at_least_once",
            auto_ack=False,
            sharing="partitions",
            mirror_offsets=False,
            closing=False,
            marshal=SimpleNamespace(group_id="g", settings=settings),
            batches=lambda idle_timeout_s: made,
            ack=lambda message: self.acked.append(message.offset()),
        )
        with Transactions(consumer) as transactions:
            transactions.run(self._transform)

    def _transform(self, batch: Batch, _producer: Any) -> None:
        self.transformed += [message.offset() for message in batch]

    def _connect(self, kind: Any, _config: Any) -> Any:
        if kind is KafkaConsumer:
            return SimpleNamespace(
                committed=self._answer, consumer_group_metadata=lambda: None, close=lambda: None
            )
        note = self.steps.append
        return SimpleNamespace(
            init_transactions=lambda _: note("fence"),
            begin_transaction=lambda: note("begin"),
            send_offsets_to_transaction=lambda where, *_: note(f"offset {where[0].offset}"),
            commit_transaction=lambda _: note("commit"),
            abort_transaction=lambda _: note("abort"),
        )

    def _answer(self, _where: Any, _timeout_s: float) -> list[Any]:
        self.steps.append("read")
        found = self._committed.pop(0)
        error = found if isinstance(found, KafkaError) else None
        return [SimpleNamespace(error=error, offset=-1001 if error else found)]


def test_others_are_fenced_before_it_is_read_how_far_they_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, 7)
    world.work_off([5, 6, 7, 8], [9])
    assert world.transformed == [7, 8, 9]
    assert world.acked == [5, 6, 7, 8, 9]
    first = ["fence", "read", "begin", "offset 9", "commit"]
    assert world.steps == [*first, "begin", "offset 10", "commit"]


def test_an_offset_that_is_not_told_is_asked_for_again_and_no_reason_to_begin_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS), 9)
    world.work_off([5, 6, 7, 8])
    assert world.transformed == []
    assert world.acked == [5, 6, 7, 8]
    assert world.steps == ["fence", "read", "fence", "read"]
