"""Group operations against a real broker: pauses, positions, imports, forgetting."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer, TopicPartition

from marshal_py import (
    ClaimTimeout,
    Consumer,
    GroupAdmin,
    GroupInUse,
    InvalidArgument,
    MalformedRecord,
    Marshal,
    TopicMissing,
)
from marshal_py.admin.positions import Change, committed_offsets
from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.protocol import events as ev
from marshal_py.protocol.rationalizer import Cell
from tests.support.consumers import Loop, fill, pid_suffix, until
from tests.support.spec import spec

pytestmark = pytest.mark.kafka

INTERVAL_MS = 1_000
_names = itertools.count()
Client = Callable[..., Marshal]
Admin = Callable[..., GroupAdmin]


@pytest.fixture
def coordination(kafka: EmbeddedKafka) -> str:
    kafka.start()
    name = f"__marshal.groups.{pid_suffix()}.{next(_names)}"
    create_topics(kafka.bootstrap_servers, topic=name, partitions=4)
    return name


@pytest.fixture
def client(kafka: EmbeddedKafka, coordination: str) -> Iterator[Client]:
    started: list[Marshal] = []

    def start(client_id: str, group_id: str = "g", **settings: Any) -> Marshal:
        settings = {"interval_ms": INTERVAL_MS, "topic": coordination, **settings}
        servers = kafka.bootstrap_servers
        started.append(Marshal(servers, group_id=group_id, client_id=client_id, **settings).start())
        return started[-1]

    yield start
    for marshal in started:
        marshal.close(timeout_s=5)


@pytest.fixture
def admin(kafka: EmbeddedKafka, coordination: str) -> Iterator[Admin]:
    opened: list[GroupAdmin] = []

    def open_(group_id: str = "g", **settings: Any) -> GroupAdmin:
        admin = GroupAdmin(kafka.bootstrap_servers, group_id, topic=coordination, **settings)
        opened.append(admin.start())
        return admin

    yield open_
    for one in opened:
        one.close()


def crash(marshal: Marshal) -> None:
    """Stop a client as a crash would: nothing is released, nobody is told."""
    marshal._driver._stop.set()
    marshal._driver._thread.join(60)
    marshal._driver.running = False


def history(kafka: EmbeddedKafka, coordination: str) -> list[ev.Event]:
    """Everything that the fold says of the log, partition by partition."""
    from marshal_py.client.log_reader import LogReader

    reader = LogReader(
        {"bootstrap.servers": kafka.bootstrap_servers},
        topic=coordination,
        snapshot_topic=f"{coordination}.snapshots",
        use_snapshots=False,
    )
    reader.open(10)
    events = [e for _, batches in reader.history() for batch in batches for e in batch.events]
    reader.close()
    return events


# Pause and resume


@spec("O-2")
def test_a_pause_is_one_record_and_complete_when_it_was_read(client: Client, admin: Admin) -> None:
    marshal = client("a")
    claims = marshal.claim_many([("t", n) for n in range(8)], timeout_s=60)
    operator = admin()
    until_ms = operator.pause(60)
    assert operator.paused_until_ms == until_ms
    assert operator.paused
    assert operator.await_released(10) == {}
    assert not any(claim.held for claim in claims)
    assert marshal.try_claim("t", 0) is None
    assert operator.resume()
    assert not operator.paused
    assert not operator.resume(), "it was over already"
    assert marshal.claim("t", 0, timeout_s=60).held


@spec("O-7")
def test_a_resume_ends_the_pause_that_it_means(
    client: Client, admin: Admin, kafka: EmbeddedKafka, coordination: str
) -> None:
    client("a").claim("t", 0, timeout_s=60)
    one, other = admin(), admin(client_id="another-operator")
    one.pause(60)
    meant = one.standing_pause
    assert meant is not None
    until_ms = other.pause(90)
    with pytest.raises(GroupInUse, match="was paused anew meanwhile, by somebody else"):
        one.resume(meant.version)
    one.refresh()
    assert one.paused_until_ms == until_ms
    assert one.resume(), "who looks again may end that one"
    assert not other.resume(meant.version)
    pauses = [e for e in history(kafka, coordination) if isinstance(e, ev.GroupPaused)]
    assert [e.client_id for e in pauses] == ["marshal-operator", "another-operator"]


@spec("O-8")
def test_a_level_is_set_when_every_client_can_follow(client: Client, admin: Admin) -> None:
    marshal = client("a")
    marshal.claim("t", 0, timeout_s=60)
    operator = admin()
    assert operator.level == 1
    with pytest.raises(InvalidArgument, match="level = 2 is not known to this version"):
        operator.set_level(2)
    with pytest.raises(InvalidArgument, match="level = 0 must be a number from 1 to 255"):
        operator.set_level(0)
    with pytest.raises(GroupInUse, match=r"a \(levels 1 to 1\) cannot follow level 2"):
        operator.set_level(2, even_if_unknown=True)
    assert list(operator.levels_of_clients().values()) == [(1, 1)]
    marshal.close(timeout_s=60)
    operator.set_positions({("t", 0): 5}, timeout_s=60)
    assert operator.set_level(2, even_if_unknown=True) == 1
    assert operator.level == 2
    operator.refresh()  # its own records go by no level
    assert operator.set_level(1) == 2
    assert operator.set_level(1) == 1
    assert client("b").claim("t", 0, timeout_s=60).position == 5


@spec("O-1")
def test_a_pause_that_nobody_ends_is_ended_by_the_members(client: Client, admin: Admin) -> None:
    marshals = [client(name) for name in "abc"]
    claim = marshals[0].claim("t", 0, timeout_s=60)
    admin().pause(1.0)
    assert claim._core.ended.wait(60)
    again = marshals[1].want("t", 0)
    assert again.wait_held(10)
    until(lambda: not marshals[0]._driver.reader.world.paused("g"), 10)


@spec("O-1")
def test_a_pause_that_expired_while_nobody_was_there_ends_when_somebody_comes(
    client: Client, admin: Admin
) -> None:
    admin().pause(0.01)
    assert client("a").claim("t", 0, timeout_s=60).held


def test_a_paused_consumer_stops_and_goes_on_where_it_was(
    kafka: EmbeddedKafka, coordination: str, kafka_topic: Callable[..., str], admin: Admin
) -> None:
    topic = kafka_topic(partitions=2)
    fill(kafka.bootstrap_servers, topic, 100, partitions=2)
    loop = Loop(
        Consumer(
            kafka.bootstrap_servers,
            group_id="g",
            client_id="c",
            topics=[topic],
            topic=coordination,
            interval_ms=INTERVAL_MS,
        )
    )
    until(lambda: len(loop.got) == 100)
    operator = admin()
    operator.pause(60)
    assert operator.await_released(10) == {}
    fill(kafka.bootstrap_servers, topic, 100, partitions=2, start=100)
    assert [cell.position for cell in operator.cells().values()] == [50, 50]
    assert len(loop.got) == 100
    operator.resume()
    until(lambda: len(loop.got) == 200)
    loop.close()
    assert sorted(loop.numbers) == list(range(200))


# Positions


def test_positions_are_planned_and_set_while_the_group_works(
    kafka: EmbeddedKafka, coordination: str, kafka_topic: Callable[..., str], admin: Admin
) -> None:
    topic = kafka_topic(partitions=2)
    fill(kafka.bootstrap_servers, topic, 100, partitions=2)
    loop = Loop(
        Consumer(
            kafka.bootstrap_servers,
            group_id="g",
            client_id="c",
            topics=[topic],
            topic=coordination,
            interval_ms=INTERVAL_MS,
        )
    )
    until(lambda: len(loop.got) == 100)
    loop.consumer.commit()
    operator = admin()
    operator.refresh()
    planned = operator.plan({(topic, 0): "-10", (topic, 1): "earliest"})
    assert [(c.before, c.after, c.holder) for c in planned] == [(50, 40, "c"), (50, 0, "c")]
    done = operator.set_positions({(topic, 0): "-10", (topic, 1): "earliest"}, timeout_s=60)
    assert [(c.before, c.after) for c in done] == [(50, 40), (50, 0)]
    assert operator.paused_until_ms is None
    until(lambda: len(loop.got) == 160)
    loop.close()
    again = [offset for _, offset, _ in loop.got[100:]]
    assert sorted(again) == sorted([*range(40, 50), *range(50)])


@pytest.fixture
def dated(kafka: EmbeddedKafka, kafka_topic: Callable[..., str]) -> str:
    """One partition with ten messages, a second of message time between two.

    They are so old that Kafka would delete them when it looks round, every five minutes.
    """
    topic = kafka_topic(partitions=1, config={"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for n in range(10):
        producer.produce(topic, str(n), partition=0, timestamp=1_700_000_000_000 + n * 1_000)
    producer.flush(60)
    return topic


@pytest.mark.parametrize(
    ("to", "after", "moved"),
    [
        ("earliest", 0, False),
        ("latest", 10, False),
        (7, 7, False),
        ("7", 7, False),
        ("+3", 8, False),
        ("-3", 2, False),
        ("+300", 10, True),
        ("-300", 0, True),
        (datetime.fromtimestamp(1_700_000_003.5, UTC), 4, False),
        (datetime.fromtimestamp(1_800_000_000, UTC), 10, False),
    ],
)
def test_what_a_target_comes_to(admin: Admin, dated: str, to: Any, after: int, moved: bool) -> None:
    operator = admin()
    operator.set_positions({(dated, 0): 5})
    (change,) = operator.plan({(dated, 0): to})
    assert (change.before, change.after, change.moved_into_range) == (5, after, moved)


def test_what_cannot_be_meant_is_refused_before_anything_is_paused(
    kafka: EmbeddedKafka, coordination: str, admin: Admin, dated: str
) -> None:
    operator = admin()
    with pytest.raises(InvalidArgument, match=f"{dated}/0: offset 11 lies outside .*0 to 10"):
        operator.set_positions({(dated, 0): 11})
    with pytest.raises(InvalidArgument, match=r"'first' must be an offset"):
        operator.set_positions({(dated, 0): "first"})
    with pytest.raises(InvalidArgument, match=r"no such partition in Kafka"):
        operator.set_positions({("nowhere", 0): "latest"})
    with pytest.raises(InvalidArgument, match="there is no partition 1; it has 1"):
        operator.keys_of(dated, [1])
    with pytest.raises(TopicMissing, match="'nowhere' does not exist"):
        operator.keys_of("nowhere")
    with pytest.raises(InvalidArgument, match="for_s = 0"):
        operator.pause(0)
    assert not any(isinstance(e, ev.GroupPaused) for e in history(kafka, coordination))


def test_a_claim_that_is_about_no_topic_has_a_position_too(client: Client, admin: Admin) -> None:
    client("a").claim("invoices", 3, timeout_s=60).commit(7, wait=True)
    operator = admin()
    operator.set_positions({("invoices", 3): 2}, timeout_s=60)
    assert operator.keys_of("invoices")[-1] == ("invoices", 3)
    assert client("b").claim("invoices", 3, timeout_s=60).position == 2


def test_a_pause_does_not_wait_for_the_dead(client: Client, admin: Admin) -> None:
    """While the group is paused nobody can take what they hold."""
    dead, living = client("dead", interval_ms=1_000), client("living")
    dead.claim("t", 0, timeout_s=60)
    living.claim("t", 1, timeout_s=60)
    operator = admin(cold_start_skew_ms=None)
    operator.refresh()
    crash(dead)
    operator.pause(60)
    assert operator.await_released(0) == operator.held()
    assert operator.await_released(60) == {}
    assert operator.held() == {("t", 0): "dead"}


@spec("O-3")
def test_a_position_of_a_dead_holders_cell_waits_for_two_intervals(
    client: Client, admin: Admin, kafka: EmbeddedKafka, coordination: str
) -> None:
    marshal = client("a", interval_ms=1_500)
    marshal.claim("t", 0, timeout_s=60)
    operator = admin(cold_start_skew_ms=None)
    operator.refresh()
    crash(marshal)
    started = time.monotonic()
    with pytest.raises(ClaimTimeout, match="t/0 is held by a"):
        operator.set_positions({("t", 0): 5}, timeout_s=0.5)
    assert operator.paused_until_ms is None, "it was not paused before"
    operator.set_positions({("t", 0): 5}, timeout_s=60)
    assert time.monotonic() - started >= 3.0 - 1.5  # the last heartbeat came before the crash
    events = history(kafka, coordination)
    last = max(e.offset for e in events if isinstance(e, ev.Beat) and e.cells)
    (done,) = [e for e in events if isinstance(e, ev.PositionSet)]
    assert done.offset > last
    assert not any(isinstance(e, ev.Rejected) for e in events)


@spec("O-3")
def test_a_position_of_a_long_dead_holders_cell_is_set_at_once_by_broker_time(
    client: Client, admin: Admin
) -> None:
    marshal = client("a", interval_ms=1_000)
    marshal.claim("t", 0, timeout_s=60)
    crash(marshal)
    time.sleep(2.0)  # two intervals and the skew of a second, by the broker's clock
    operator = admin()
    operator.set_positions({("t", 0): 5}, timeout_s=60)
    assert operator.cells()["t", 0].position == 5


@spec("O-4")
def test_the_group_is_left_as_it_was_found(client: Client, admin: Admin) -> None:
    marshal = client("a")
    marshal.claim("t", 0, timeout_s=60)
    operator = admin()
    operator.set_positions({("t", 0): 5}, timeout_s=60)
    assert operator.paused_until_ms is None
    until_ms = operator.pause(30)
    operator.set_positions({("t", 0): 6}, timeout_s=60)  # its own pause would last longer
    assert operator.paused_until_ms == until_ms
    assert operator.cells()["t", 0].position == 6


@spec("O-4")
def test_a_failure_leaves_the_group_as_it_was_found(client: Client, admin: Admin) -> None:
    operator = admin()
    with contextlib.suppress(RuntimeError), operator.while_paused(60):
        assert operator.paused
        raise RuntimeError
    assert operator.paused_until_ms is None
    with operator.while_paused(60):
        until_ms = admin().pause(120)  # somebody else, meanwhile
        operator.refresh()
    assert operator.paused_until_ms == until_ms


@spec("O-4")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_leaves_the_group_as_it_was_found(
    kafka: EmbeddedKafka, coordination: str, client: Client, admin: Admin, number: int
) -> None:
    marshal = client("a", interval_ms=30_000)
    claim = marshal.claim("t", 0, timeout_s=60)
    crash(marshal)
    arguments = ["set-position", "g", "-t", "t", "--to", "5", "--wait", "50"]
    command = subprocess.Popen(
        [sys.executable, "-m", "marshal_py.cli", "group", *arguments],
        env=environment(kafka, coordination),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stderr is not None
    assert "waiting: t/0 is held by a" in command.stderr.readline()
    operator = admin()
    assert operator.paused
    command.send_signal(number)
    assert command.wait(60) == 130
    operator.refresh()
    assert operator.paused_until_ms is None
    assert operator.cells()["t", 0].epoch == claim.epoch


# Kafka's own groups


@pytest.fixture
def kafka_group(kafka: EmbeddedKafka, kafka_topic: Callable[..., str]) -> tuple[str, str]:
    """A topic of three partitions, and a consumer group that has worked on two of them."""
    topic = kafka_topic(partitions=3)
    fill(kafka.bootstrap_servers, topic, 90, partitions=3)
    name = f"old-{pid_suffix()}-{next(_names)}"
    consumer = KafkaConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": name})
    where = [TopicPartition(topic, 0, 10), TopicPartition(topic, 2, 30)]
    consumer.commit(offsets=where, asynchronous=False)
    consumer.close()
    return name, topic


def test_a_kafka_groups_positions_are_imported(admin: Admin, kafka_group: tuple[str, str]) -> None:
    name, topic = kafka_group
    operator = admin()
    found = operator.import_positions(name)
    changes = operator.set_positions(found)
    assert [(c.partition, c.before, c.after) for c in changes] == [(0, -1, 10), (2, -1, 30)]
    assert operator.cells()[topic, 2].position == 30
    with pytest.raises(InvalidArgument, match="has committed no offsets of other"):
        operator.import_positions(name, topics=["other"])
    with pytest.raises(InvalidArgument, match="has committed no offsets; check the name"):
        operator.import_positions("nobody")


def test_what_transactions_commit_beside_positions_is_not_imported(
    kafka: EmbeddedKafka, admin: Admin, kafka_group: tuple[str, str]
) -> None:
    name, topic = kafka_group
    operator = admin()
    consumer = KafkaConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": name})
    consumer.commit(offsets=[TopicPartition(operator.topic, 0, 0)], asynchronous=False)
    consumer.close()
    assert operator.import_positions(name).keys() == {(topic, 0), (topic, 2)}


def test_an_active_kafka_group_is_not_imported_unless_told(
    kafka: EmbeddedKafka, admin: Admin, kafka_group: tuple[str, str]
) -> None:
    name, topic = kafka_group
    member = KafkaConsumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": name, "client.id": "busy"}
    )
    member.subscribe([topic])
    until(lambda: member.poll(0.1) is not None or bool(member.assignment()))
    try:
        with pytest.raises(GroupInUse, match=r"1 active members \(busy\)"):
            admin().import_positions(name)
        found = admin().import_positions(name, even_if_active=True)
        assert found.keys() >= {(topic, 0), (topic, 2)}
    finally:
        member.close()


def test_kafkas_own_committed_offsets_follow_where_there_are_any(
    admin: Admin, kafka_group: tuple[str, str]
) -> None:
    name, topic = kafka_group
    operator = admin(name)
    operator.set_positions({(topic, 0): 25, (topic, 1): 25})
    assert committed_offsets(operator._admin, name, 10) == {(topic, 0): 25, (topic, 2): 30}


def test_positions_are_mirrored_for_the_tools_that_read_kafkas_own(
    kafka: EmbeddedKafka, coordination: str, kafka_topic: Callable[..., str], admin: Admin
) -> None:
    topic = kafka_topic(partitions=2)
    fill(kafka.bootstrap_servers, topic, 100, partitions=2)
    group = f"mirrored-{next(_names)}"
    common: dict[str, Any] = {
        "group_id": group,
        "topics": [topic],
        "topic": coordination,
        "interval_ms": INTERVAL_MS,
        "mirror_offsets": True,
    }
    loop = Loop(Consumer(kafka.bootstrap_servers, client_id="c", **common))
    assert loop.consumer._core.mirror is not None
    loop.consumer._core.mirror._every_s = 0.1
    operator = admin(group)
    both = {(topic, 0): 50, (topic, 1): 50}
    until(lambda: len(loop.got) == 100)
    loop.consumer.commit()
    loop.close()
    assert committed_offsets(operator._admin, group, 10, even_if_active=False) == both
    fill(kafka.bootstrap_servers, topic, 10, partitions=2, start=100)
    loop = Loop(Consumer(kafka.bootstrap_servers, client_id="c", mode="at_most_once", **common))
    until(lambda: len(loop.got) == 10)
    assert loop.consumer._core.mirror is not None
    loop.consumer._core.mirror._round()
    assert set(committed_offsets(operator._admin, group, 10).values()) == {55}
    loop.close()


def test_a_mirror_that_fails_is_a_warning_and_stops_nothing(
    kafka: EmbeddedKafka,
    coordination: str,
    kafka_group: tuple[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    name, topic = kafka_group
    member = KafkaConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": name})
    member.subscribe([topic])
    until(lambda: member.poll(0.1) is not None or bool(member.assignment()))
    consumer = Consumer(
        kafka.bootstrap_servers,
        group_id="g",
        topics=[topic],
        topic=coordination,
        interval_ms=INTERVAL_MS,
        mirror_offsets=name,
    )
    loop = Loop(consumer)
    until(lambda: len(loop.got) == 90)
    loop.close()
    assert loop.error is None
    assert "give the marshal group another name" in caplog.text
    member.close()


# Forget


@spec("O-5", "O-6")
def test_a_dead_group_is_forgotten(client: Client, admin: Admin) -> None:
    marshal = client("a")
    marshal.claim_many([("t", n) for n in range(8)], timeout_s=60)
    client("other", "h").claim("t", 0, timeout_s=60)
    operator = admin()
    with pytest.raises(GroupInUse, match="group 'g' is in use by a: stop its clients first"):
        operator.forget(timeout_s=60)
    assert operator.paused_until_ms is None, "nobody was disturbed"
    assert len(marshal.claims()) == 8
    crash(marshal)
    assert operator.forget(timeout_s=60) == 8
    assert not operator.exists()
    assert operator.paused_until_ms is None
    assert operator.world.groups() == ["h"]
    with pytest.raises(InvalidArgument, match="knows no group 'g'"):
        operator.forget()
    assert client("b").claim("t", 0, timeout_s=60).position == -1


@spec("O-9")
def test_a_group_that_somebody_paused_anew_is_not_forgotten(
    client: Client, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    marshal = client("a")
    marshal.claim("t", 0, timeout_s=60)
    marshal.close(timeout_s=60)
    operator, other = admin(), admin(client_id="another-operator")
    look, until_ms = operator.cells, list[int]()

    def look_and_be_late() -> dict[tuple[str, int], Cell]:
        if operator.paused and not until_ms:
            until_ms.append(other.pause(3_600))
        return look()

    monkeypatch.setattr(operator, "cells", look_and_be_late)
    with pytest.raises(GroupInUse, match="paused anew meanwhile, by somebody else: that pause"):
        operator.forget(timeout_s=60)
    assert operator.paused_until_ms == until_ms[0], "theirs stands"
    assert list(operator.cells()) == [("t", 0)]
    assert operator.forget(timeout_s=60) == 1, "who runs it again means that pause"
    assert not operator.exists()


@spec("O-5")
def test_a_group_of_silent_members_is_in_use(client: Client, admin: Admin) -> None:
    """A member that holds nothing is a client, too."""
    client("a", interval_ms=2_000)
    with pytest.raises(GroupInUse, match="in use by a"):
        admin().forget(timeout_s=0.1)


# The commands


def environment(kafka: EmbeddedKafka, coordination: str) -> dict[str, str]:
    return os.environ | {
        "MARSHAL_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "MARSHAL_TOPIC": coordination,
    }


@pytest.fixture
def cli(kafka: EmbeddedKafka, coordination: str) -> Callable[..., Any]:
    """Run `marshal group …`; return (exit code, the JSON printed or None, standard error)."""

    def run(*arguments: str) -> tuple[int, Any, str]:
        done = subprocess.run(
            [sys.executable, "-m", "marshal_py.cli", "group", *arguments],
            env=environment(kafka, coordination),
            capture_output=True,
            text=True,
            timeout=120,
        )
        try:
            return done.returncode, json.loads(done.stdout), done.stderr
        except json.JSONDecodeError:
            return done.returncode, done.stdout, done.stderr

    return run


def test_the_commands_tell_a_story(
    cli: Callable[..., Any], client: Client, kafka_group: tuple[str, str]
) -> None:
    name, topic = kafka_group
    code, shown, _ = cli("import", "g", "--from-kafka-group", name, "--dry-run")
    assert code == 0
    assert [line.split() for line in shown.splitlines()[1:]] == [
        [topic, "0", "–", "10", "–", "20"],
        [topic, "2", "–", "30", "–", "0"],
    ]
    assert cli("list", "--json")[1] == []
    code, found, _ = cli("import", "g", "--from-kafka-group", name, "--json")
    assert (code, len(found["changes"]), found["dry_run"]) == (0, 2, False)
    claim = client("a").claim(topic, 2, timeout_s=60)
    assert claim.position == 30
    code, found, _ = cli("describe", "g", "--json")
    assert [(p["partition"], p["position"], p["lag"]) for p in found["partitions"]] == [
        (0, 10, 20),
        (1, None, None),
        (2, 30, 0),
    ]
    assert [member["client_id"] for member in found["members"]] == ["a"]
    code, found, _ = cli("set-position", "g", "-t", topic, "-p", "2", "--to", "-5", "--json")
    assert code == 0
    assert [(c["before"], c["after"]) for c in found["changes"]] == [(30, 25)]
    code, found, _ = cli("pause", "g", "--for", "2h", "--wait", "10", "--json")
    assert (code, found["held"]) == (0, [])
    code, rows, _ = cli("list", "--json")
    assert [(r["group"], r["members"], r["held"], r["free"]) for r in rows] == [("g", 1, 0, 2)]
    assert rows[0]["paused_until_ms"] > time.time() * 1000 + 7_000_000
    assert cli("resume", "g", "--json")[1] == {"group": "g", "was_paused": True}
    code, found, _ = cli("level", "g", "--json")
    assert (code, found["level"], found["before"]) == (0, 1, 1)
    assert [(c["client_id"], c["lowest"], c["highest"]) for c in found["clients"]] == [("a", 1, 1)]
    code, _, error = cli("level", "g", "--set", "2", "--even-if-unknown")
    assert code == 1
    assert "cannot follow level 2" in error
    code, _, error = cli("level", "g", "--set", "2")
    assert code == 2
    assert "is not known to this version" in error
    code, _, error = cli("forget", "g", "--yes", "--wait", "5")
    assert code == 1
    assert "in use by a" in error


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["pause", "gg"], 2, "did you mean 'g'?"),
        (["pause", "g", "--for", "soon"], 2, "--for 'soon' must be a duration"),
        (["set-position", "g", "-t", "t", "--to", "first"], 2, "--to 'first' must be earliest"),
        (["set-position", "g", "-t", "nowhere", "--to", "0"], 3, "'nowhere' does not exist"),
        (["set-position", "g", "-t", "t", "-p", "x", "--to", "0"], 2, "--partitions 'x'"),
        (["describe", "gg"], 2, "did you mean 'g'?"),
        (["import", "g", "--from-kafka-group", "none"], 2, "has committed no offsets"),
    ],
)
def test_what_is_wrong_is_one_line(
    cli: Callable[..., Any], admin: Admin, arguments: list[str], code: int, says: str
) -> None:
    admin().set_positions({("t", 0): 1})
    found, shown, error = cli(*arguments)
    assert found == code, error
    assert says in error.replace("\n", " ")
    assert "Traceback" not in error
    assert shown == ""


def test_a_name_that_no_record_can_carry_is_refused_before_the_network() -> None:
    with pytest.raises(MalformedRecord, match="group_id"):
        GroupAdmin("127.0.0.1:1", "")


def test_a_change_shows_what_moves() -> None:
    change = Change("t", 0, -1, 5, None, None)
    assert change.key == ("t", 0)
