"""Dead letters: what strangers wrote into them is shown, and trusted in nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from marshal_py.admin.connection import Connection
from marshal_py.client.headers import UNREADABLE
from marshal_py.consumer.topics import Described
from marshal_py.dashboard import dead_letters as module
from marshal_py.dashboard.appending import Appended, NewRecord
from marshal_py.dashboard.dead_letters import MAX_TEXT, DeadLetterTopics, Letter
from marshal_py.errors import AccessDenied, BrokerUnavailable, InvalidArgument
from tests.support.unreadable import make_unreadable

Headers = list[tuple[str, bytes | None]]
FROM_ORDERS: Headers = [("dlq-topic", b"orders"), ("dlq-partition", b"2"), ("mine", b"x")]


class Message:
    """As Kafka's clients give one."""

    def __init__(
        self,
        offset: int,
        headers: Headers | None = None,
        value: bytes | None = b"value",
        stamp: tuple[int, int] = (1, 1_000),
    ) -> None:
        self.topic = lambda: "orders.dlq"
        self.partition = lambda: 0
        self.offset: Callable[[], int] = lambda: offset
        self.headers = lambda: headers
        self.value = lambda: value
        self.key = lambda: b"key"
        self.timestamp = lambda: stamp


class Cluster:
    """Has one topic of dead letters, and the topic that they came from."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.first = 0
        self.offline: list[int] = []
        self.written: list[NewRecord] = []
        self.answers: list[Appended] = []
        self.known = {"orders": Described(4, b"id")}

    def read(
        self, _kafka: object, _topic: str, starts: dict[int, int], ends: dict[int, int], _: float
    ) -> list[Message]:
        return [m for m in self.messages if starts[0] <= m.offset()]

    def append(self, _: object, records: list[NewRecord]) -> list[Appended]:
        self.written += records
        return self.answers or [Appended(100 + n, None) for n in range(len(records))]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster()
    ends: Callable[..., Any] = lambda *_: (  # noqa: E731
        {0: (found.first, len(found.messages))},
        found.offline,
    )
    monkeypatch.setattr(module, "admin_client", lambda _: None)
    monkeypatch.setattr(module, "extent_of_led", ends)
    monkeypatch.setattr(module, "read_to_end", found.read)
    monkeypatch.setattr(module, "append", found.append)
    monkeypatch.setattr(module, "describe", lambda _admin, _names, _timeout: found.known)
    monkeypatch.setattr(
        module, "offset_ranges", lambda _admin, parts, _timeout: dict.fromkeys(parts, (0, 50))
    )
    monkeypatch.setattr(module, "denied", lambda *_: AccessDenied("no right to Write"))
    return found


@pytest.fixture
def topics() -> DeadLetterTopics:
    return DeadLetterTopics(Connection.of_servers("nowhere:1"))


def only(cluster: Cluster, topics: DeadLetterTopics, *messages: Message) -> Letter:
    cluster.messages = list(messages)
    return topics.latest("orders.dlq", 5)[0][0]


def test_a_letter_tells_why_it_failed_and_where_it_came_from(
    cluster: Cluster, topics: DeadLetterTopics
) -> None:
    headers: Headers = [
        *FROM_ORDERS, ("dlq-offset", b"17"), ("dlq-attempts", b"3"), ("dlq-failed-at", b"5000"),
        ("dlq-error-class", b"OSError"), ("dlq-error-message", b"no disk"),
        ("dlq-group-id", b"g"), ("dlq-client-id", b"a"),
    ]  # fmt: skip
    letter = only(cluster, topics, Message(0, headers))
    assert (letter.topic, letter.source_partition, letter.source_offset) == ("orders", 2, 17)
    assert (letter.attempts, letter.at_ms, letter.group, letter.client) == (3, 5_000, "g", "a")
    assert (letter.error_class, letter.error_message) == ("OSError", "no disk")
    assert (letter.key, letter.value, letter.size) == ("key", "value", 5)


def test_one_whose_headers_are_no_text_is_shown_and_hides_no_other(
    cluster: Cluster, topics: DeadLetterTopics
) -> None:
    cluster.messages = [Message(0, FROM_ORDERS), make_unreadable(Message(1))]
    (of_no_text, other), _ = topics.latest("orders.dlq", 5)
    assert [name for name, _ in of_no_text.headers] == [UNREADABLE]
    assert (of_no_text.topic, other.topic) == (None, "orders")


@pytest.mark.parametrize("number", [b"", b"-1", b"1e3", b"9" * 19, "٣".encode(), None])
def test_what_is_no_number_is_not_told(
    cluster: Cluster, topics: DeadLetterTopics, number: bytes | None
) -> None:
    letter = only(
        cluster, topics, Message(0, [("dlq-partition", number), ("dlq-failed-at", number)])
    )
    assert (letter.source_partition, letter.at_ms) == (None, 1_000)


def test_without_a_time_none_is_told(cluster: Cluster, topics: DeadLetterTopics) -> None:
    assert only(cluster, topics, Message(0, None, stamp=(0, -1))).at_ms is None


def test_long_values_are_cut_and_bytes_that_are_no_text_escaped(
    cluster: Cluster, topics: DeadLetterTopics
) -> None:
    letter = only(cluster, topics, Message(0, None, b"x" * (MAX_TEXT + 1)))
    assert letter.value == "x" * MAX_TEXT + "…"
    assert letter.size == MAX_TEXT + 1
    assert only(cluster, topics, Message(0, None, b"x" * MAX_TEXT)).value == "x" * MAX_TEXT
    assert only(cluster, topics, Message(0, None, b"\xffx")).value == "\\xffx"
    assert only(cluster, topics, Message(0, None, None)).value is None


def test_the_latest_come_first(cluster: Cluster, topics: DeadLetterTopics) -> None:
    cluster.messages = [Message(n, None, stamp=(1, 1_000)) for n in range(9)]
    assert [letter.offset for letter in topics.latest("orders.dlq", 3)[0]] == [8, 7, 6]
    assert topics.latest("orders.dlq", 0) == ([], [])


def test_whoever_wants_all_is_shown_so_many(
    cluster: Cluster, topics: DeadLetterTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is held in memory, and whoever asks says how many."""
    monkeypatch.setattr(module, "MAX_SHOWN", 4)
    cluster.messages = [Message(n, None, stamp=(1, 1_000)) for n in range(9)]
    assert [letter.offset for letter in topics.latest("orders.dlq", 2**40)[0]] == [8, 7, 6, 5]


def test_a_partition_without_a_leader_hides_no_letter_of_another_and_is_named(
    cluster: Cluster, topics: DeadLetterTopics
) -> None:
    cluster.messages, cluster.offline = [Message(0, FROM_ORDERS)], [1]
    letters, offline = topics.latest("orders.dlq", 5)
    assert ([letter.topic for letter in letters], offline) == (["orders"], [1])
    with pytest.raises(BrokerUnavailable, match=r"no leader for orders\.dlq/1"):
        topics.targets("orders.dlq", [(0, 0), (1, 3)])


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        (None, "does not say where it came from"),
        ([("dlq-topic", b"orders")], "does not say where it came from"),
        ([("dlq-topic", b"__marshal"), ("dlq-partition", b"0")], "'__marshal': refused"),
        ([("dlq-topic", b"__marshal.audit"), ("dlq-partition", b"0")], "refused"),
        ([("dlq-topic", b"__consumer_offsets"), ("dlq-partition", b"0")], "refused"),
        ([("dlq-topic", b"orders.dlq"), ("dlq-partition", b"0")], "'orders.dlq': refused"),
        ([("dlq-topic", b"gone"), ("dlq-partition", b"0")], "does not exist"),
        ([("dlq-topic", b"orders"), ("dlq-partition", b"4")], "only 4 partitions"),
    ],
)
def test_where_no_consumers_message_came_from_none_is_put(
    cluster: Cluster, topics: DeadLetterTopics, headers: Headers | None, why: str
) -> None:
    cluster.messages = [Message(0, headers)]
    with pytest.raises(InvalidArgument, match=why):
        topics.targets("orders.dlq", [(0, 0)])


@pytest.mark.parametrize("letter", [(0, 3), (0, 0), (1, 1)])
def test_a_letter_that_is_not_there_any_more_is_told(
    cluster: Cluster, topics: DeadLetterTopics, letter: tuple[int, int]
) -> None:
    cluster.messages, cluster.first = [Message(n, FROM_ORDERS) for n in range(3)], 1
    with pytest.raises(InvalidArgument, match="is not there"):
        topics.targets("orders.dlq", [letter])


def test_a_topic_of_no_dead_letters_is_not_read(cluster: Cluster, topics: DeadLetterTopics) -> None:
    for ask in (lambda: topics.latest("orders", 5), lambda: topics.targets("orders", [(0, 0)])):
        with pytest.raises(InvalidArgument, match=r"these are \*\.dlq"):
            ask()


def test_a_message_goes_back_as_it_was_to_the_partition_that_it_came_from(
    cluster: Cluster, topics: DeadLetterTopics
) -> None:
    """With who put it there, and without the headers of its failure."""
    cluster.messages = [Message(n, FROM_ORDERS) for n in range(3)]
    targets = topics.targets("orders.dlq", [(0, 2), (0, 0)])
    assert [(t.letter, t.topic, t.partition, t.end, t.key) for t in targets] == [
        ((0, 0), "orders", 2, 50, "key"),
        ((0, 2), "orders", 2, 50, "key"),
    ]
    done = topics.replay("orders.dlq", targets, "ann")
    assert (done.done, done.text, done.failed) == ([(0, 0), (0, 2)], "2 of 2 replayed.", False)
    record = cluster.written[1]
    assert (record.topic, record.partition, record.key, record.value) == (
        "orders", 2, b"key", b"value",
    )  # fmt: skip
    told = dict(record.headers)
    assert told.pop("dlq-replayed-at")
    assert told == {
        "mine": b"x", "dlq-replayed-from": b"orders.dlq/0@2", "dlq-replayed-by": b"ann",
    }  # fmt: skip


def test_another_message_at_its_place_is_not_put_back(
    cluster: Cluster, topics: DeadLetterTopics
) -> None:
    cluster.messages = [Message(n, FROM_ORDERS) for n in range(2)]
    targets = topics.targets("orders.dlq", [(0, 0), (0, 1)])
    cluster.messages[1] = Message(1, FROM_ORDERS, b"another")
    with pytest.raises(InvalidArgument, match=r"orders\.dlq/0@1 is another record by now"):
        topics.replay("orders.dlq", targets, "ann")
    assert cluster.written == []


def test_of_those_that_were_not_written_it_is_told_why(
    cluster: Cluster, topics: DeadLetterTopics
) -> None:
    cluster.messages = [Message(n, FROM_ORDERS) for n in range(4)]
    cluster.answers = [
        Appended(7, None),
        Appended(-1, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)),
        Appended(-1, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)),
        Appended(-1, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)),
    ]
    targets = topics.targets("orders.dlq", [(0, n) for n in range(4)])
    done = topics.replay("orders.dlq", targets, "ann")
    assert (done.done, done.failed) == ([(0, 0)], True)
    assert done.text.startswith("1 of 4 replayed; not the others: no right to Write; orders/2: ")
    assert done.text.count("no right") == 1


@pytest.mark.parametrize("code", [KafkaError._MSG_TIMED_OUT, KafkaError._FATAL])
def test_one_that_may_have_been_written_counts_as_replayed_and_is_told_apart(
    cluster: Cluster, topics: DeadLetterTopics, code: int
) -> None:
    """Who replays it again is warned."""
    cluster.messages = [Message(n, FROM_ORDERS) for n in range(3)]
    cluster.answers = [
        Appended(7, None),
        Appended(-1, KafkaError(code)),
        Appended(-1, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)),
    ]
    targets = topics.targets("orders.dlq", [(0, n) for n in range(3)])
    done = topics.replay("orders.dlq", targets, "ann")
    assert (done.done, done.failed) == ([(0, 0), (0, 1)], True)
    assert done.text.startswith("1 of 3 replayed; of 1 it is not known: orders/2: ")
    assert "; not the others: orders/2: " in done.text


@pytest.mark.parametrize("name", [b".", b"..", b"a/b"])
def test_of_a_name_that_no_topic_has_the_brokers_are_not_asked(
    cluster: Cluster, topics: DeadLetterTopics, monkeypatch: pytest.MonkeyPatch, name: bytes
) -> None:
    """They would refuse to answer, for all letters."""
    asked: list[set[str]] = []

    def describe(_admin: object, names: set[str], _timeout_s: float) -> dict[str, Any]:
        asked.append(names)
        return {}

    monkeypatch.setattr(module, "describe", describe)
    cluster.messages = [Message(0, [("dlq-topic", name), ("dlq-partition", b"0")])]
    with pytest.raises(InvalidArgument, match="does not exist"):
        topics.targets("orders.dlq", [(0, 0)])
    assert asked == [set()]


def listed_topic(*leaders: int, error: KafkaError | None = None) -> SimpleNamespace:
    """A topic as the brokers list it, by the leaders of its partitions; −1: there is none."""
    parts = {p: SimpleNamespace(leader=leader) for p, leader in enumerate(leaders)}
    return SimpleNamespace(error=error, partitions=parts)


def test_topics_of_dead_letters_are_found_by_name_the_fullest_first(
    cluster: Cluster, topics: DeadLetterTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = {("a.dlq", 0): (5, 9), ("a.dlq", 1): (0, 3), ("b.dlq", 0): (0, 8)}
    listed = {
        "a.dlq": listed_topic(0, 0, -1),
        "b.dlq": listed_topic(0),
        "c.dlq": listed_topic(-1),
        "lost.dlq": listed_topic(0, error=KafkaError(3)),
        "orders": listed_topic(0),
    }
    admin = SimpleNamespace(list_topics=lambda **_: SimpleNamespace(topics=listed))
    monkeypatch.setattr(module, "admin_client", lambda _: admin)
    monkeypatch.setattr(
        module, "offset_ranges", lambda _admin, parts, _timeout: {p: ranges[p] for p in parts}
    )
    assert topics.topics() == [
        {"topic": "b.dlq", "records": 8, "offline": []},
        {"topic": "a.dlq", "records": 7, "offline": [2]},
        {"topic": "c.dlq", "records": 0, "offline": [0]},
    ]
