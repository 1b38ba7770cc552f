"""Dead letters: shown as they are, put back as shown, and everything done is in the audit trail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")

from marshal_py import Claim, Consumer, Retry
from marshal_py.admin.connection import Connection
from marshal_py.dashboard.audit_trail import AuditTrail
from marshal_py.dashboard.dead_letters import DeadLetterTopics
from marshal_py.dashboard.operations import Action, Operations
from marshal_py.embedded import EmbeddedKafka
from marshal_py.errors import AccessDenied, InvalidArgument, MarshalError
from tests.integration.marshal_py.dashboard.conftest import Served
from tests.support.chromium import Page, find_chromium
from tests.support.secure_kafka import secure_kafka

pytestmark = pytest.mark.kafka
browser = pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium on PATH")

HOSTILE = "\x1b[2J\u202e<img src=x onerror=alert(1)>\n"


class Broken(Exception):
    pass


class Desk:
    """Dead letters of a topic that a consumer has really given up, and what may be done to them."""

    def __init__(self, kafka: EmbeddedKafka, coordination: str) -> None:
        self.kafka, self.coordination = kafka, coordination
        self.orders = f"orders.{coordination.strip('_')}"
        self.dlq = f"{self.orders}.dlq"
        kafka.create_topic(self.orders, 2)
        kafka.create_topic(self.dlq, 1)
        self.connection = Connection.of_servers(kafka.bootstrap_servers, coordination)
        self.letters = DeadLetterTopics(self.connection)
        self.trail = AuditTrail(self.connection)
        self.operations = Operations(self.connection, self.letters, self.trail)

    def produce(self, topic: str, partition: int, key: str, headers: Any = None) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        producer.produce(topic, f"value of {key}", key, partition, headers=headers)
        assert producer.flush(60) == 0

    def give_up(self, messages: int) -> None:
        """Let a consumer give up so many messages."""
        consumer = Consumer(
            self.kafka.bootstrap_servers,
            group_id="mail",
            topics=[self.orders],
            topic=self.coordination,
        )
        seen: list[bytes | str | None] = []

        def refuse(message: Message, _: Claim) -> None:
            seen.append(message.key())
            if len(seen) == messages:
                consumer.stop()  # what runs is finished: it becomes a dead letter
            raise Broken(f"cannot read {message.key()!r} {HOSTILE}")

        consumer.run(refuse, workers=1, retry=Retry(attempts=1), on_failure="dead_letter")

    def end(self, topic: str, partition: int) -> int:
        consumer = KafkaConsumer(
            {"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": "ends"}
        )
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), 60)[1])
        finally:
            consumer.close()

    def read(self, topic: str, partition: int, offset: int) -> Any:
        consumer = KafkaConsumer(
            {"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": "reads"}
        )
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            message = consumer.poll(60)
            assert message is not None
            assert message.error() is None
            return message
        finally:
            consumer.close()

    def replay_of(self, *letters: tuple[int, int]) -> Action:
        return Action("replay", topic=self.dlq, letters=list(letters))


@pytest.fixture
def desk(kafka: EmbeddedKafka, made: str) -> Desk:
    return Desk(kafka, made)


def test_a_letter_goes_back_to_where_it_came_from_as_shown(desk: Desk) -> None:
    desk.produce(desk.orders, 1, "k-1", {"trace": b"1", HOSTILE: None})
    desk.give_up(1)
    ((letter,), _) = desk.letters.latest(desk.dlq, 100)
    assert (letter.topic, letter.source_partition, letter.source_offset) == (desk.orders, 1, 0)
    assert letter.error_class == f"{__name__}.Broken"
    assert (letter.key, letter.value, letter.attempts) == ("k-1", "value of k-1", 1)
    assert {"topic": desk.dlq, "records": 1, "offline": []} in desk.letters.topics()

    shown = desk.operations.preview(desk.replay_of((0, 0)))
    assert shown["letters"] == [
        {
            "letter": (0, 0),
            "topic": desk.orders,
            "partition": 1,
            "end": 1,
            "key": "k-1",
            "replayed": False,
        }
    ]
    assert desk.end(desk.orders, 1) == 1, "a preview writes nothing"
    done = desk.operations.perform(shown["ticket"], "anna at 10.1.2.3")
    assert done["text"] == "1 of 1 replayed."
    message = desk.read(desk.orders, 1, 1)
    assert (message.key(), message.value()) == (b"k-1", b"value of k-1")
    headers = dict(message.headers())
    assert (headers["trace"], headers[HOSTILE]) == (b"1", None)
    assert headers["dlq-replayed-from"] == f"{desk.dlq}/0@0".encode()
    assert headers["dlq-replayed-by"] == b"anna at 10.1.2.3"
    assert "dlq-topic" not in headers

    (entry,) = desk.trail.entries()
    assert (entry.who, entry.phase, entry.letters) == ("anna at 10.1.2.3", "done", [(0, 0)])
    assert entry.what == f"replay of 1 letter of {desk.dlq}"

    # It fails again: the letter tells that it was put back, and the other is known as replayed.
    desk.give_up(1)
    again = desk.letters.latest(desk.dlq, 100)[0][0]
    assert ("dlq-replayed-by", "anna at 10.1.2.3") in again.headers
    assert (again.offset, again.source_offset) == (1, 1)
    shown = desk.operations.preview(desk.replay_of((0, 0), (0, 1)))
    assert [row["replayed"] for row in shown["letters"]] == [True, False]
    assert "1 of them were replayed before" in shown["text"]


def test_what_has_moved_is_refused_and_nothing_is_written(
    desk: Desk, kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    for key in ("a", "b"):
        told = {"dlq-topic": desk.orders, "dlq-partition": "0", "dlq-offset": "7"}
        desk.produce(desk.dlq, 0, key, told)
    first, second = (desk.operations.preview(desk.replay_of((0, 0), (0, 1))) for _ in range(2))
    desk.operations.perform(first["ticket"], "anna")
    assert desk.end(desk.orders, 0) == 2
    with pytest.raises(InvalidArgument, match="was replayed by somebody else meanwhile"):
        desk.operations.perform(second["ticket"], "bert")
    assert "bert: replay of 2 letters" in caplog.text
    assert [(e.who, e.phase) for e in desk.trail.entries()] == [
        ("bert", "failed"),
        ("anna", "done"),
    ]

    third = desk.operations.preview(desk.replay_of((0, 1)))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([desk.orders])[desk.orders].result(60)
    kafka.create_topic(desk.orders, 2)
    with pytest.raises(InvalidArgument, match=r"is not the topic that it was|does not exist"):
        desk.operations.perform(third["ticket"], "bert")
    assert desk.end(desk.orders, 0) == 0


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ({}, "does not say where it came from"),
        ({"dlq-topic": "__consumer_offsets", "dlq-partition": "0"}, "refused"),
        ({"dlq-topic": "x", "dlq-partition": "9" * 40}, "does not say where it came from"),
        ({"dlq-topic": HOSTILE, "dlq-partition": "0"}, "does not exist"),
    ],
)
def test_letters_of_strangers_are_refused(
    desk: Desk, headers: dict[str, str], problem: str
) -> None:
    desk.produce(desk.dlq, 0, "k", headers)
    with pytest.raises(InvalidArgument, match=problem):
        desk.operations.preview(desk.replay_of((0, 0)))
    own = {"dlq-topic": desk.coordination, "dlq-partition": "0"}
    desk.produce(desk.dlq, 0, "k", own)
    with pytest.raises(InvalidArgument, match="refused"):
        desk.operations.preview(desk.replay_of((0, 1)))
    with pytest.raises(InvalidArgument, match="is not there"):
        desk.operations.preview(desk.replay_of((0, 2)))
    with pytest.raises(InvalidArgument, match="no topic of dead letters"):
        desk.operations.preview(Action("replay", topic=desk.orders, letters=[(0, 0)]))
    desk.letters.latest(desk.dlq, 10)  # shown all the same


def test_what_cannot_be_written_down_is_not_done(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.produce(desk.dlq, 0, "k", {"dlq-topic": desk.orders, "dlq-partition": "0"})
    shown = desk.operations.preview(desk.replay_of((0, 0)))
    desk.trail.ensure()
    monkeypatch.setattr(desk.trail, "topic", "no such topic")
    with pytest.raises(MarshalError, match="no such topic"):
        desk.operations.perform(shown["ticket"], "anna")
    assert desk.end(desk.orders, 0) == 0


@browser
def test_an_operator_reads_and_replays_letters(
    desk: Desk, serve: Callable[..., Served], page: Page
) -> None:
    for key in ("k-1", "k-2"):
        desk.produce(desk.orders, 1, key, {"trace": HOSTILE})
    desk.give_up(2)
    served = serve("--write", "--user-header", "X-User")
    page.goto(f"{served.url}#/dead-letters")
    page.until(f"document.querySelector('main option[value=\"{desk.dlq}\"]')")
    page.evaluate(
        "(() => { const select = document.querySelector('main select');"
        f" select.value = {desk.dlq!r}; select.dispatchEvent(new Event('change')); }})()"
    )
    page.until("document.querySelectorAll('main tbody tr').length === 2")
    text = page.evaluate("document.querySelector('main table').textContent")
    assert "Broken" in text
    assert "\\x1b[2J\\u202e<img src=x onerror=alert(1)>" in text, "as text, with escapes"
    assert page.evaluate("document.querySelector('main img')") is None
    assert text.isprintable()

    page.evaluate("document.querySelector('main tbody input').click()")
    click = (
        "[...document.querySelectorAll('button')]"
        ".find((b) => b.checkVisibility() && b.textContent === %r)"
    )
    page.until(click % "Replay 1 letter …")
    page.evaluate(f"({click % 'Replay 1 letter …'}).click()")
    page.until("document.querySelector('dialog td')")
    cells = page.evaluate("[...document.querySelectorAll('dialog td')].map((c) => c.textContent)")
    assert cells == ["0@1", f"{desk.orders}/1", "2", "k-2", ""], "the latest, where it would go"
    assert desk.end(desk.orders, 1) == 2
    page.evaluate(f"({click % 'Do it'}).click()")
    page.until("document.querySelector('dialog [role=status]').textContent === '1 of 1 replayed.'")
    assert desk.end(desk.orders, 1) == 3
    page.evaluate(f"({click % 'Close'}).click()")
    page.until("document.querySelector('main tbody tr').textContent.includes('by 127.0.0.1')")
    page.evaluate("location.hash = '#/audit'")
    page.until(
        "document.querySelector('main tbody')?.textContent"
        f".includes('127.0.0.1replay of 1 letter of {desk.dlq}done1 of 1 replayed.')"
    )
    assert page.errors == []
    own = {"Origin": served.url.rstrip("/"), "Content_Type": "application/json", "X_User": "anna"}
    body = json.dumps({"what": "replay", "topic": desk.dlq, "letters": [[0, 0]]})
    status, seen = served.ask("/api/preview", "POST", body, **own)
    assert status == 200
    ticket = json.dumps({"ticket": seen["ticket"]})
    assert served.ask("/api/perform", "POST", ticket, **own)[0] == 200
    assert served.ask("/api/audit")[1][0]["who"] == "anna at 127.0.0.1"


def test_a_missing_right_is_named_and_the_letters_are_seen_without_the_trails(
    tmp_path: Path,
) -> None:
    with secure_kafka(tmp_path) as secure:
        secure.add_user("eve", "pw-of-eve")
        for name in ("orders.dlq", "__marshal.audit"):
            secure.server.create_topic(name)
        secure.allow("eve", "Read", "orders.dlq")
        connection = Connection(secure.config("eve", "pw-of-eve"))
        assert DeadLetterTopics(connection).latest("orders.dlq", 10) == ([], [])
        trail = AuditTrail(connection)
        with pytest.raises(AccessDenied, match=r"lacks Read on topic '__marshal\.audit'"):
            trail.entries()
        with pytest.raises(
            AccessDenied, match=r"lacks Create and Describe on topic '__marshal\.au"
        ):
            trail.ensure()
        secure.allow("eve", "Read", "__marshal.audit")
        with pytest.raises(AccessDenied, match=r"lacks Write on topic '__marshal\.audit'"):
            trail.begin("eve", "pause for group g")
        assert trail.entries() == []
