"""The coordination topic is made anew, grown, cut off or restored under running clients (§7).

Never do two clients hold one cell for longer than a lease, and everybody goes on in the new log.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from marshal_py import Closed, Leader, Marshal
from marshal_py.client.kafka_clients import read_to_end
from marshal_py.client.log_reader import LogReader, Truncated
from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.protocol.messages import Genesis, decode
from tests.support.consumers import until
from tests.support.remade_topics import create, delete, fill
from tests.support.spec import spec

pytestmark = pytest.mark.kafka

INTERVAL_MS = 500
_topics = iter(range(10_000))

Client = Callable[..., Marshal]


@pytest.fixture
def topic(kafka: EmbeddedKafka) -> str:
    kafka.start()
    name = f"__marshal.anew.{os.getpid()}.{next(_topics)}"
    create_topics(kafka.bootstrap_servers, topic=name, partitions=2)
    return name


@pytest.fixture
def client(kafka: EmbeddedKafka, topic: str) -> Iterator[Client]:
    started: list[Marshal] = []

    def start(client_id: str, **settings: Any) -> Marshal:
        settings = {"group_id": "g", "interval_ms": INTERVAL_MS, "topic": topic, **settings}
        started.append(Marshal(kafka.bootstrap_servers, client_id=client_id, **settings).start())
        return started[-1]

    yield start
    for marshal in started:
        marshal.close(timeout_s=5)


MEMBER = """
import sys
from marshal_py import Marshal
servers, topic = sys.argv[1:]
with Marshal(servers, group_id="g", client_id="a", topic=topic, interval_ms=500) as marshal:
    claim = marshal.claim("t", 0, timeout_s=60)
    for offset in range(20):
        claim.commit(offset, wait=True)
    print(marshal._driver.claimant.home, flush=True)
    while claim.held or claim.reason is None:
        claim.wait_lost(0.05)
    again = marshal.claim("t", 1, timeout_s=60)
    cell = marshal.cell("t", 0)
    print("went on", again.epoch > claim.epoch, cell and cell.holder, claim.reason, flush=True)
"""


@spec("L-4")
@pytest.mark.parametrize("records", [0, 21, 200], ids=["below", "about at", "above"])
@pytest.mark.parametrize("suspended", [True, False])
def test_a_topic_made_anew_ends_the_leases_on_the_old_one(
    kafka: EmbeddedKafka, topic: str, client: Client, records: int, suspended: bool
) -> None:
    argv = [sys.executable, "-c", MEMBER, kafka.bootstrap_servers, topic]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as member:
        assert member.stdout is not None
        home = int(member.stdout.readline())
        if suspended:
            member.send_signal(signal.SIGSTOP)
        try:
            delete(kafka, topic, f"{topic}.snapshots")
            create(kafka, topic, 2)
            fill(kafka, topic, [(home, b"x")] * records)
            successor = client("b")
            claim = successor.claim("t", 0, timeout_s=60)
            if suspended:  # for longer than its lease: what it says from here on is worth nothing
                time.sleep(2 * INTERVAL_MS / 1000)
        finally:
            member.send_signal(signal.SIGCONT)
        told = member.stdout.read()
        assert member.wait(60) == 0
    assert told.startswith("went on True b" if suspended else "went on True"), told
    assert "was made anew" in told or "was deleted" in told, told
    assert claim.wait_held(60), claim.reason  # its lease may lapse for a moment, and is regained


@spec("L-4")
@pytest.mark.parametrize("group_id", ["g", "h"], ids=["home 0", "home 1"])
@pytest.mark.parametrize("partitions", [1, 5])
def test_a_topic_made_anew_may_have_another_number_of_partitions(
    kafka: EmbeddedKafka, topic: str, client: Client, partitions: int, group_id: str
) -> None:
    marshal = client("a", group_id=group_id, member_metadata=b"m")
    claim = marshal.claim("t", 0, timeout_s=60)
    delete(kafka, topic, f"{topic}.snapshots")
    create(kafka, topic, partitions)
    until(lambda: claim.reason is not None)  # it may lapse before
    again = marshal.claim("t", 0, timeout_s=60)
    assert again.epoch > claim.epoch
    other = client("b", group_id=group_id)
    with other.world() as world:
        assert world.partitions == partitions
        cell = world.cell(group_id, "t", 0)
        assert cell is not None
        assert cell.holder == "a"
    assert marshal.failure is None


@spec("L-4")
def test_a_deleted_topic_ends_the_leases_and_a_new_one_lets_clients_go_on(
    kafka: EmbeddedKafka, topic: str, client: Client
) -> None:
    marshal = client("a")
    claim = marshal.claim("t", 0, timeout_s=60)
    delete(kafka, topic)
    assert claim._core.ended.wait(60)
    assert "deleted" in str(claim.reason) or "made anew" in str(claim.reason)
    create(kafka, topic, 2)
    assert marshal.claim("t", 0, timeout_s=60).epoch > claim.epoch


@spec("L-5")
def test_an_older_prefix_restored_does_not_give_out_epochs_again(
    kafka: EmbeddedKafka, topic: str, client: Client
) -> None:
    marshal = client("a")
    claim = marshal.claim("t", 0, timeout_s=60)
    home = marshal._driver.claimant.home
    config = {"bootstrap.servers": kafka.bootstrap_servers}
    ends = {home: marshal._driver.world.states[home].next_offset}
    records = read_to_end(config, topic, {home: 0}, ends, time.monotonic() + 60)
    prefix = [(home, message.value()) for message in records]
    later = [marshal.claim("t", n, timeout_s=60) for n in range(1, 10)]
    with marshal._driver.lock:  # it does not look before all is there
        delete(kafka, topic, f"{topic}.snapshots")
        create(kafka, topic, 2)
        fill(kafka, topic, prefix)
    assert all(c._core.ended.wait(60) for c in (claim, *later))
    again = [marshal.claim("t", n, timeout_s=8) for n in range(10)]
    assert min(c.epoch for c in again) > max(c.epoch for c in (claim, *later))


def test_a_leader_watch_and_a_listener_start_over(
    kafka: EmbeddedKafka, topic: str, client: Client
) -> None:
    watcher, leader = client("w"), client("a")
    restarts: list[str] = []
    changes: list[tuple[Leader | None, Leader | None]] = []
    restarted, gone = threading.Event(), threading.Event()

    def on_restart(why: str) -> None:
        restarts.append(why)
        restarted.set()

    def on_change(old: Leader | None, new: Leader | None) -> None:
        changes.append((old, new))
        if new is None:
            gone.set()

    leadership = leader.leader("job").campaign(timeout_s=60)
    watcher.listen(lambda *_: None, on_restart)
    with watcher.watch_leader("job", on_change) as watch:
        assert watch.wait(timeout_s=60) is not None
        before = leadership.epoch
        delete(kafka, topic, f"{topic}.snapshots")
        create(kafka, topic, 2)
        assert restarted.wait(60)
        assert gone.wait(60)
        leadership = leader.leader("job").campaign(timeout_s=60)
        found = watch.wait(epoch_above=before, timeout_s=60)
        assert found is not None
        assert (found.client_id, found.epoch) == ("a", leadership.epoch)
    assert "was made anew" in restarts[0] or "deleted" in restarts[0]


def read_on(reader: LogReader) -> None:
    while True:
        for _ in reader.fold(reader.poll(0.1)):
            pass


def test_a_reader_notices_whoever_it_is(kafka: EmbeddedKafka, topic: str) -> None:
    reader = LogReader(
        {"bootstrap.servers": kafka.bootstrap_servers},
        topic=topic,
        snapshot_topic=f"{topic}.snapshots",
        look_every_s=0.1,
    )
    try:
        reader.open(60)
        reader.replay()
        delete(kafka, topic)
        create(kafka, topic, 2)
        fill(kafka, topic, [(0, b"x")] * 10)
        with pytest.raises(Truncated, match=r"made anew|deleted"):
            read_on(reader)
        reader.open(60)
        reader.replay()
        assert reader.world.states[0].next_offset == 10
    finally:
        reader.close()


@spec("L-4")
def test_a_topic_made_anew_is_read_though_its_leaders_have_changed_less_often(
    kafka: EmbeddedKafka, topic: str, client: Client
) -> None:
    for _ in range(2):  # each restart has the partitions led anew
        kafka.stop()
        kafka.start()
    marshal = client("a")
    before = marshal.claim("t", 0, timeout_s=60)
    delete(kafka, topic, f"{topic}.snapshots")
    create(kafka, topic, 2)
    until(lambda: before.reason is not None)  # it may lapse before
    assert marshal.claim("t", 0, timeout_s=60).epoch > before.epoch


def test_a_replay_that_never_ends_is_given_up_when_the_client_is_closed(
    kafka: EmbeddedKafka, topic: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    marshal = client("a")
    claim = marshal.claim("t", 0, timeout_s=60)
    reads = threading.Event()

    def is_behind(*_: object) -> bool:
        reads.set()
        return True

    monkeypatch.setattr(LogReader, "_is_behind", is_behind)
    delete(kafka, topic, f"{topic}.snapshots")
    create(kafka, topic, 2)
    assert claim.wait_lost(60)
    assert reads.wait(60)
    closing = threading.Thread(target=marshal.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()

    other = Marshal(kafka.bootstrap_servers, client_id="b", group_id="g", topic=topic)
    reads.clear()
    ended: list[BaseException] = []

    def start() -> None:
        try:
            other.start()
        except Closed as error:
            ended.append(error)

    starting = threading.Thread(target=start, daemon=True)
    starting.start()
    assert reads.wait(60)
    other.close()
    starting.join(60)
    assert "closed while it read the log" in str(ended[0])


def test_who_is_told_that_something_is_closed_and_is_not_closing_itself_has_failed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    marshal = client("a")
    claim = marshal.claim("t", 0, timeout_s=60)

    def turn(*_: object) -> None:
        raise Closed("something else")

    monkeypatch.setattr("marshal_py.client.driver.Driver._turn", turn)
    assert claim.wait_lost(60)
    with pytest.raises(Closed, match="something else"):
        marshal.claim("t", 1, timeout_s=60)


@spec("T-6")
def test_a_client_reads_the_partition_of_its_group_and_no_other(
    kafka: EmbeddedKafka, topic: str, client: Client
) -> None:
    marshal = client("a")
    home = marshal._driver.claimant.home
    fill(kafka, topic, [(1 - home, b"x")] * 10)
    marshal.claim("t", 0, timeout_s=60)
    late = client("late")
    with late.world() as world:
        assert world.states[home].next_offset > 0
        assert world.states[1 - home].next_offset == 0
        assert late._driver.observers[1 - home].caught_up_at_offset is None
    assert late._driver.reader.partitions == (home,)


@spec("C-46")
def test_a_client_founds_a_log_that_has_no_genesis_and_claims_after_it(
    kafka: EmbeddedKafka, topic: str, client: Client
) -> None:
    fill(kafka, topic, [(0, b"x"), (1, b"x")])  # somebody was here, but nobody who founds logs
    clients = [client(f"c{n}") for n in range(3)]
    claim = clients[0].claim("t", 0, timeout_s=60)
    genesis, *others = geneses(kafka, topic, clients[0])
    assert (genesis.previous, genesis.partitions) == ("", 2)
    assert claim.epoch > genesis.base
    assert {identity_of(c) for c in clients} == {genesis.identity}
    assert others == []


@spec("C-46")
def test_who_replayed_for_long_founds_no_log_that_others_have_founded_meanwhile(
    kafka: EmbeddedKafka, topic: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(kafka, topic, [(0, b"x"), (1, b"x")])
    replay, first = LogReader.replay, []

    def and_another_begins(self: LogReader, **options: Any) -> None:
        replay(self, **options)
        monkeypatch.setattr(LogReader, "replay", replay)
        first.append(client("first"))

    monkeypatch.setattr(LogReader, "replay", and_another_begins)
    late = client("late")
    late.claim("t", 0, timeout_s=60)
    assert [genesis.client_id for genesis in geneses(kafka, topic, late)] == ["first"]
    assert identity_of(late) == identity_of(*first)


@spec("C-46")
def test_a_log_that_ends_with_a_transaction_is_founded(
    kafka: EmbeddedKafka, topic: str, client: Client
) -> None:
    """Its last offset is that of a marker, at which no record will come."""
    stranger = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"strange.{topic}"}
    )
    stranger.init_transactions(60)
    stranger.begin_transaction()
    for p in (0, 1):
        stranger.produce(topic, b"x", partition=p)
    stranger.commit_transaction(60)
    claim = client("a", connect_timeout_ms=30_000).claim("t", 0, timeout_s=60)
    assert claim.held


def identity_of(client: Marshal) -> str | None:
    return client._driver.world.states[client._driver.claimant.home].identity


def geneses(kafka: EmbeddedKafka, topic: str, client: Marshal) -> list[Genesis]:
    """Of the coordination partition that a client reads, up to where it is."""
    home = client._driver.claimant.home
    config = {"bootstrap.servers": kafka.bootstrap_servers}
    ends = {home: client._driver.world.states[home].next_offset}
    read = read_to_end(config, topic, {home: 0}, ends, time.monotonic() + 60)
    records = [decode(message.value()) for message in read if message.value() != b"x"]
    return [record for record in records if isinstance(record, Genesis)]
