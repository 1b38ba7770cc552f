"""From where a transaction begins, with producers whose answers the test gives."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from marshal_py.client import kafka_clients
from marshal_py.client.kafka_clients import CONNECT_AGAIN_S, RECONNECT, TRANSACTIONAL_PRODUCER
from marshal_py.consumer import transactions as module
from marshal_py.consumer.consumer import Consumer
from marshal_py.consumer.held_partition import Batch
from marshal_py.consumer.transactions import Transactions
from marshal_py.errors import AccessDenied, ConfigurationError, NotInVersion1
from marshal_py.protocol.claim_metadata import ClaimMetadata


@dataclass(frozen=True)
class Past:
    """What a broker answers that was the group's coordinator once, and is not."""

    offset: int


class World:
    """One claimed partition, its batches, and what was asked of Kafka."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *committed: Any) -> None:
        self.group, self.topic = "g", "t"
        self.steps: list[str] = []
        self.acked: list[int] = []
        self.transformed: list[int] = []
        self._committed = list(committed)
        self.second: Any = None
        """The claim of the second batch, if it is another."""
        self._mark: Any = None
        self.told = ClaimMetadata()
        """With the claim."""
        self.committed_with: str | None = None
        """The text that goes with an offset."""
        self.readers = self.closed = 0
        self.config: dict[str, Any] = {}
        """Of the consumer that asks for offsets."""
        self.of_producers: dict[str, Any] | None = None
        """What the program wants of them."""
        self.produces_with: dict[str, Any] = {}
        self.fails: dict[str, list[BaseException | None]] = {}
        """Step → what it raises each time."""
        monkeypatch.setattr(module, "connect", self._connect)

    def work_off(self, *batches: list[int]) -> None:
        claim: Any = SimpleNamespace(
            topic=self.topic,
            partition=3,
            held=True,
            reason=None,
            epoch=12,
            metadata=self.told.encode(),
        )
        self.claim = claim
        claims = [claim, self.second or claim]
        made = [
            Batch([SimpleNamespace(offset=lambda at=at: at) for at in b], claims[n])
            for n, b in enumerate(batches)
        ]
        settings = SimpleNamespace(
            kafka={"bootstrap.servers": "localhost:1"}, topic="log", wire="msgpack"
        )
        consumer: Any = SimpleNamespace(
            mode="at_least_once",
            auto_ack=False,
            sharing="partitions",
            mirror_offsets=False,
            closing=False,
            unfinished=None,
            marshal=SimpleNamespace(group_id=self.group, settings=settings),
            batches=lambda idle_timeout_s: made,
            ack=lambda message: self.acked.append(message.offset()),
        )
        self.consumer = consumer
        with Transactions(consumer, self.of_producers) as self.transactions:
            self.transactions.run(self._transform)

    def _transform(self, batch: Batch, _producer: Any) -> None:
        self._note("transform", "")
        self.transformed += [message.offset() for message in batch]

    def _note(self, step: str, more: str | None = None) -> None:
        if more is None:
            self.steps.append(step)
        failures = self.fails.get(step.partition(" ")[0], [])
        error = failures.pop(0) if failures else None
        if error is not None:
            raise error

    def _connect(self, kind: Any, config: Any) -> Any:
        if kind is KafkaConsumer:
            self.config = config
            self.readers += 1
            return SimpleNamespace(
                commit=self._commit,
                committed=self._answer,
                consumer_group_metadata=lambda: None,
                close=self._close,
            )
        note, self.produces_with = self._note, config
        return SimpleNamespace(
            init_transactions=lambda _: note("fence"),
            begin_transaction=lambda: note("begin"),
            send_offsets_to_transaction=self._send,
            commit_transaction=lambda _: note("commit"),
            abort_transaction=lambda _: note("abort"),
        )

    def _close(self) -> None:
        self.closed += 1

    def _send(self, where: list[TopicPartition], *_: Any) -> None:
        assert where[0].metadata == "12", "the epoch of the claim"
        self._note(f"offset {where[0].offset}")

    def _commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert asynchronous
        (self._mark,) = offsets
        assert (self._mark.topic, self._mark.partition) == ("log", 0)

    def _answer(self, places: list[TopicPartition], timeout: float) -> list[Any]:
        assert [(at.topic, at.partition) for at in places] == [(self.topic, 3), ("log", 0)]
        assert timeout == module.STEP_S
        self.steps.append("read")
        found, mark = self._committed.pop(0), self._mark.metadata
        if isinstance(found, Past):
            found, mark = found.offset, "of another time"
        error = found if isinstance(found, KafkaError) else None
        return [
            SimpleNamespace(
                error=error, offset=-1001 if error else found, metadata=self.committed_with
            ),
            SimpleNamespace(error=None, offset=0, metadata=mark),
        ]


def test_others_are_fenced_before_it_is_read_how_far_they_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, 7)
    world.work_off([5, 6, 7, 8], [9])
    assert world.transformed == [7, 8, 9]
    assert world.acked == [5, 6, 7, 8, 9]
    first = ["fence", "read", "begin", "offset 9", "commit"]
    assert world.steps == [*first, "begin", "offset 10", "commit"]


@pytest.mark.parametrize(
    ("text", "first_epoch_since_set", "transformed"),
    [
        ("9", 9, [7, 8]),
        ("11", 9, [7, 8]),
        ("8", 9, [5, 6, 7, 8]),
        (None, 9, [5, 6, 7, 8]),
        ("", 9, [5, 6, 7, 8]),
        ("of somebody else", 9, [5, 6, 7, 8]),
        (None, -1, [7, 8]),
        ("of somebody else", -1, [7, 8]),
    ],
)
def test_what_was_committed_before_the_position_was_set_means_nothing_any_more(
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    first_epoch_since_set: int,
    transformed: list[int],
) -> None:
    world = World(monkeypatch, 7)
    world.committed_with, world.told = (
        text,
        ClaimMetadata(first_epoch_since_set=first_epoch_since_set),
    )
    world.work_off([5, 6, 7, 8])
    assert world.transformed == transformed
    assert world.acked == [5, 6, 7, 8]


def test_an_offset_that_is_not_told_is_asked_for_again_and_no_reason_to_begin_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS), 9)
    world.work_off([5, 6, 7, 8])
    assert world.transformed == []
    assert world.acked == [5, 6, 7, 8]
    assert world.steps == ["fence", "read", "read"]


def test_one_that_may_not_be_read_is_asked_for_anew_by_another_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one before may be connected to who was the coordinator, and does not answer."""
    world = World(monkeypatch, KafkaError(KafkaError._TIMED_OUT), 9)
    world.work_off([5, 6, 7, 8])
    assert world.transformed == []
    assert world.steps == ["fence", "read", "fence", "read"]
    assert world.readers == 2


def test_a_past_coordinator_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, Past(5), Past(-1001), 7)
    world.work_off([5, 6, 7, 8])
    assert world.transformed == [7, 8]
    assert world.steps[:4] == ["fence", "read", "read", "read"]


def failure(
    code: int, *, aborts: bool = False, retriable: bool = False, fatal: bool = False
) -> KafkaException:
    return KafkaException(KafkaError(code, "", fatal, retriable, aborts))


BEGUN = ["fence", "read", "begin"]


def test_what_the_program_raises_leaves_no_transaction_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Readers would wait for it, until it times out."""
    world = World(monkeypatch, 5)
    world.fails = {"transform": [ValueError("no")]}
    with pytest.raises(ValueError, match="no"):
        world.work_off([5, 6])
    assert world.steps == [*BEGUN, "abort"]
    assert world.acked == []


def test_a_transaction_that_is_to_be_aborted_is_done_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, 5)
    world.fails = {"commit": [failure(KafkaError.NOT_ENOUGH_REPLICAS, aborts=True)]}
    world.work_off([5, 6])
    again = ["begin", "offset 7", "commit"]
    assert world.steps == [*BEGUN, "offset 7", "commit", "abort", *again]
    assert world.acked == [5, 6]
    assert world.transformed == [5, 6, 5, 6]


@pytest.mark.parametrize(
    ("code", "fatal"), [(KafkaError._FENCED, False), (KafkaError.INVALID_PRODUCER_EPOCH, True)]
)
def test_whoever_was_fenced_while_it_produced_makes_another_producer(
    monkeypatch: pytest.MonkeyPatch, code: int, fatal: bool
) -> None:
    """If the claim stands, the one that fenced was of an earlier holder of it."""
    world = World(monkeypatch, 5, 6)
    world.fails = {"transform": [failure(code, fatal=fatal)]}
    world.work_off([5, 6])
    assert world.steps == [*BEGUN, *BEGUN, "offset 7", "commit"]
    assert (world.transformed, world.acked) == ([6], [5, 6])


def test_what_may_help_is_tried_again_while_the_claim_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, 5)
    late = failure(KafkaError._TIMED_OUT, retriable=True)
    world.fails = {"commit": [late, late]}
    world.work_off([5])
    assert world.steps == [*BEGUN, "offset 6", "commit", "commit", "commit"]
    assert world.acked == [5]


@pytest.mark.parametrize("kind", [Producer, KafkaConsumer])
def test_a_client_that_cannot_be_made_now_is_made_a_moment_later(
    monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """While a certificate is being replaced."""
    world = World(monkeypatch, KafkaError(KafkaError._TIMED_OUT), 5)
    waits: list[float] = []
    monkeypatch.setattr("marshal_py.consumer.transactions.time.sleep", waits.append)
    connect, made = world._connect, list[Any]()

    def connect_or_fail(its: Any, config: Any) -> Any:
        made.append(its)
        if made.count(kind) == 2 and its is kind:  # the first proves the settings
            raise ConfigurationError("ssl.key.location failed")
        return connect(its, config)

    monkeypatch.setattr(module, "connect", connect_or_fail)
    world.work_off([5])
    assert waits == [CONNECT_AGAIN_S]
    assert world.acked == [5]


def test_of_a_claim_that_has_ended_nothing_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, 5)

    note = world._note

    def note_and_lose(step: str, more: str | None = None) -> None:
        note(step, more)
        if step == "commit":
            world.claim.reason, world.claim.held = "taken over", False
            raise failure(KafkaError._TIMED_OUT, retriable=True)

    monkeypatch.setattr(world, "_note", note_and_lose)
    world.work_off([5])
    assert world.acked == []
    assert world.steps.count("commit") == 1


def test_who_is_closed_in_an_outage_does_not_wait_for_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The claim cannot be given back then: nobody hears that it has ended."""
    world = World(monkeypatch, 5)
    note = world._note

    def note_and_time_out(step: str, more: str | None = None) -> None:
        note(step, more)
        if step == "commit":
            assert world.steps.count("commit") < 4, "it goes on without end"
            world.claim.held = False
            world.consumer.closing = world.steps.count("commit") == 2
            raise failure(KafkaError._TIMED_OUT, retriable=True)

    monkeypatch.setattr(world, "_note", note_and_time_out)
    world.work_off([5])
    assert world.acked == []
    assert world.steps.count("commit") == 2


@pytest.mark.parametrize("anew", [False, True])
def test_what_the_program_failed_with_comes_first_when_it_runs_again(
    monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    """What is committed with the next batch would say that it was done."""
    world = World(monkeypatch, 5, 5, 9)
    world.fails = {"transform": [ValueError("no")]}
    with pytest.raises(ValueError, match="no"):
        world.work_off([5, 6])
    behind = [SimpleNamespace(offset=lambda at=at: at) for at in (7, 8)]
    world.consumer.batches = lambda idle_timeout_s: [Batch(behind, world.claim)]
    for _ in range(2):
        transactions = Transactions(world.consumer) if anew else world.transactions
        transactions.run(world._transform)
    assert world.transformed == [5, 6, 7, 8]
    assert world.acked == [5, 6, 7, 8, 7, 8]


@pytest.mark.parametrize(
    ("step", "code", "kind", "named"),
    [
        ("fence", KafkaError.INVALID_TRANSACTION_TIMEOUT, ConfigurationError, "= 60000 is more"),
        (
            *("fence", KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, AccessDenied),
            "--transactional-id marshal.g: --resource-pattern-type prefixed",
        ),
        ("read", KafkaError.GROUP_AUTHORIZATION_FAILED, AccessDenied, "--group g"),
        ("offset", KafkaError.GROUP_AUTHORIZATION_FAILED, AccessDenied, "--group g"),
        ("commit", KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDenied, "lacks Write on a topic"),
    ],
)
def test_what_no_other_attempt_mends_is_told(
    monkeypatch: pytest.MonkeyPatch, step: str, code: int, kind: type[Exception], named: str
) -> None:
    """It would be tried without end, and nobody told but in the log."""
    world = World(monkeypatch, *(KafkaError(code) if step == "read" else 5 for _ in range(9)))
    aborts = step in ("offset", "commit")
    world.fails = {step: [failure(code, aborts=aborts) for _ in range(5)]}
    with pytest.raises(kind, match=named):
        world.work_off([5])
    assert world.acked == []
    assert world.steps.count("fence") == 1
    assert world.steps[-1] == ("abort" if aborts else step)


def test_what_is_committed_is_that_of_transactions_that_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, 5)
    world.work_off([5])
    assert world.config["isolation.level"] == "read_committed"
    assert world.config["group.id"] == "g"


def test_producers_have_the_settings_of_the_client_and_before_them_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, 5)
    world.of_producers = {"bootstrap.servers": "elsewhere:1", "linger.ms": 5}
    world.work_off([5])
    assert dict(world.produces_with) == {
        **RECONNECT,
        **TRANSACTIONAL_PRODUCER,
        "bootstrap.servers": "elsewhere:1",
        "linger.ms": 5,
        "transactional.id": "marshal.g:t.3",
        "transaction.timeout.ms": 60_000,
    }
    assert world.config["bootstrap.servers"] == "localhost:1"


def test_no_other_group_has_the_same_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two would fence each other without end."""
    ids = set()
    for group, topic in (("tax", "eu.orders"), ("tax.eu", "orders"), ("tax:eu", "orders")):
        world = World(monkeypatch, 5)
        world.group, world.topic = group, topic
        world.work_off([5])
        ids.add(world.produces_with["transactional.id"])
    assert len(ids) == 3


def test_a_setting_that_no_producer_takes_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later it would count as a file that is being replaced, and be tried without end."""
    world = World(monkeypatch, 5)
    monkeypatch.setattr(module, "connect", kafka_clients.connect)
    world.of_producers = {"max.in.flight": 6}

    def tries_again(_: float) -> None:
        raise AssertionError

    monkeypatch.setattr("marshal_py.consumer.transactions.time.sleep", tries_again)
    with pytest.raises(ConfigurationError, match=r"max\.in\.flight"):
        world.work_off([5])


def test_what_comes_again_is_left_out_and_another_claim_fences_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, 5, 9)
    world.work_off([5, 6], [6, 7])
    assert world.transformed == [5, 6, 7]
    assert world.steps.count("fence") == 1
    second: Any = SimpleNamespace(
        topic="t", partition=3, held=True, reason=None, epoch=12, metadata=b""
    )
    world = World(monkeypatch, 5, 9)
    world.second = second
    world.work_off([5, 6], [8, 9])
    assert world.transformed == [5, 6, 9], "somebody else may have had it meanwhile"
    assert world.steps.count("fence") == 2


def test_what_was_committed_as_ctrl_c_came_is_not_done_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python raises it when librdkafka has returned; the program may catch it and run again."""
    world = World(monkeypatch, 5, 7)
    monkeypatch.setattr(Transactions, "close", lambda _: None)
    world.fails["commit"] = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        world.work_off([5, 6])
    world.consumer.batches = lambda idle_timeout_s: []
    world.transactions.run(world._transform)
    assert world.transformed == [5, 6], "and not twice"
    assert world.acked == [5, 6]


def test_producers_of_claims_that_have_ended_are_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has threads and connections, and partitions come and go."""
    world = World(monkeypatch, 5, 6)
    world.work_off([5])
    gone, mine = (
        SimpleNamespace(claim=SimpleNamespace(reason=reason)) for reason in ("taken over", None)
    )
    others: Any = {("t", 4): gone, ("t", 5): mine}
    world.transactions._producers.update(others)
    batch = Batch([SimpleNamespace(offset=lambda: 6)], world.claim)
    assert world.transactions._work_off(batch, world._transform)
    assert sorted(world.transactions._producers) == [("t", 3), ("t", 5)]


def test_an_abort_that_fails_is_left_to_the_next_producer_of_that_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, 5)
    late = failure(KafkaError._TIMED_OUT, retriable=True)
    world.fails = {
        "commit": [failure(KafkaError.NOT_ENOUGH_REPLICAS, aborts=True)],
        "abort": [late],
    }
    world.work_off([5])
    assert world.steps.count("abort") == 1
    assert world.acked == [5]


def test_what_asks_for_offsets_ends_with_the_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 5)
    world.work_off([5])
    assert (world.readers, world.closed) == (1, 1)


def test_of_a_claim_that_is_lost_it_is_not_asked_on_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, Past(5))
    answer = world._answer

    def answer_and_lose(*asked: Any, **how: Any) -> list[Any]:
        world.claim.reason, world.claim.held = "taken over", False
        return answer(*asked, **how)

    monkeypatch.setattr(world, "_answer", answer_and_lose)
    world.work_off([5])
    assert world.steps == ["fence", "read"]
    assert world.acked == []


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"mode": "at_most_once"}, "mode='at_least_once' and auto_ack=False"),
        ({"auto_ack": True}, "mode='at_least_once' and auto_ack=False"),
        ({"sharing": "keys"}, "leave out sharing='keys'"),
        ({"sharing": "ranges"}, "leave out sharing='ranges'"),
        ({"mirror_offsets": True}, "mirror_offsets would overwrite"),
    ],
)
def test_a_consumer_that_does_not_go_with_transactions_is_refused(
    wrong: dict[str, Any], says: str
) -> None:
    fits = {"mode": "at_least_once", "auto_ack": False, "sharing": "partitions"}
    consumer: Any = SimpleNamespace(**{**fits, "mirror_offsets": False, **wrong})
    with pytest.raises(ConfigurationError, match=says):
        Transactions(consumer)


def test_a_consumer_of_version_1_is_refused_before_anything_is_read() -> None:
    nowhere = "127.0.0.1:1"
    made = Consumer(nowhere, group_id="g", topics="t", auto_ack=False, wire="text")
    with pytest.raises(NotInVersion1, match="have no epoch"):
        Transactions(made)
