"""The live client against a real broker: claims, leases, hand-over, take-over, outages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, OffsetSpec

from marshal_py import (
    BrokerUnavailable,
    Claim,
    ClaimTimeout,
    Closed,
    ConfigurationError,
    DuplicateClientId,
    InvalidArgument,
    Marshal,
    NotHeld,
    TopicMissing,
)
from marshal_py.client.log_reader import LogReader
from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.support.spec import spec

pytestmark = pytest.mark.kafka

INTERVAL_MS = 1_000
_topics = iter(range(10_000))

Client = Callable[..., Marshal]


@pytest.fixture
def topic(kafka: EmbeddedKafka) -> str:
    """A coordination topic of its own for each test."""
    kafka.start()
    name = f"__marshal.{os.getpid()}.{next(_topics)}"
    create_topics(kafka.bootstrap_servers, topic=name, partitions=4)
    return name


@pytest.fixture
def client(kafka: EmbeddedKafka, topic: str) -> Iterator[Client]:
    """Start clients that are closed after the test."""
    started: list[Marshal] = []

    def start(client_id: str, **settings: Any) -> Marshal:
        settings = {"group_id": "g", "interval_ms": INTERVAL_MS, "topic": topic, **settings}
        marshal = Marshal(kafka.bootstrap_servers, client_id=client_id, **settings).start()
        started.append(marshal)
        return marshal

    yield start
    for marshal in started:
        marshal.close(timeout_s=5)


def crash(marshal: Marshal) -> None:
    """Stop a client as a crash would: nothing is released, nobody is told."""
    marshal._driver._stop.set()
    marshal._driver._thread.join(60)
    marshal._driver.running = False


def test_a_free_cell_is_claimed_and_held(client: Client) -> None:
    marshal = client("a")
    claim = marshal.claim("orders", 3, timeout_s=60)
    assert claim.held
    assert claim.epoch >= 0
    assert claim.position == -1
    assert marshal.claim("orders", 3) is claim
    assert [c.partition for c in marshal.claims()] == [3]
    cell = marshal.cell("orders", 3)
    assert cell is not None
    assert (cell.holder, cell.instance_id, cell.epoch) == ("a", marshal.instance_id, claim.epoch)


def test_two_clients_never_hold_one_cell(client: Client) -> None:
    first, second = client("a"), client("b")
    claim = first.claim("t", 0, timeout_s=60)
    assert second.try_claim("t", 0) is None
    with pytest.raises(ClaimTimeout, match="a holds it"):
        second.claim("t", 0, timeout_s=INTERVAL_MS / 1000)
    assert claim.held


@spec("C-4", "F-9")
def test_a_release_hands_over_with_the_position(client: Client) -> None:
    first, second = client("a"), client("b")
    claim = first.claim("t", 0, timeout_s=60)
    claim.commit(41)
    claim.commit(40)  # offsets only go up
    waiting = second.want("t", 0)
    claim.release()
    assert not claim.held
    assert waiting.wait_held(60)
    assert waiting.held
    assert waiting.epoch > claim.epoch
    assert waiting.position == 41
    assert claim.reason == "released"


def test_nothing_is_left_of_an_ephemeral_claim(client: Client) -> None:
    first, second = client("a"), client("b")
    with first.claim("job", 4711, timeout_s=60, ephemeral=True) as claim:
        claim.commit(41, wait=True)
        assert second.try_claim("job", 4711, ephemeral=True) is None
        epoch = claim.epoch
    with first.world() as world:
        assert world.cell(first.group_id, "job", 4711) is None
    again = second.claim("job", 4711, timeout_s=60, ephemeral=True)
    assert again.epoch > epoch
    assert again.position == -1


def test_a_commit_is_in_the_log_when_wait_returns(client: Client) -> None:
    first, second = client("a"), client("b")
    claim = first.claim("t", 0, timeout_s=60)
    claim.commit(7, wait=True)
    assert claim.stored_offset == 7
    seen = threading.Event()
    second.listen(lambda _, events: seen.set() if _stored(second, 7) else None)
    assert _stored(second, 7) or seen.wait(60)


def _stored(marshal: Marshal, offset: int) -> bool:
    cell = marshal.cell("t", 0)
    return cell is not None and cell.next_offset == offset


@spec("C-5")
def test_a_crashed_holder_is_replaced_after_two_intervals_and_not_before(client: Client) -> None:
    first, second = client("a"), client("b")
    claim = first.claim("t", 0, timeout_s=60)
    claim.commit(5, wait=True)
    crash(first)
    taken = second.claim("t", 0, timeout_s=60)
    # No clock is compared: when the second holds it, the lease of the first must be over.
    assert not claim.held
    assert taken.held
    assert taken.epoch > claim.epoch
    assert taken.position == 5


@spec("C-19")
def test_the_lease_ends_by_itself_when_the_network_hangs(
    kafka: EmbeddedKafka, client: Client
) -> None:
    marshal = client("a")
    claim = marshal.claim("t", 0, timeout_s=60)
    regained = threading.Event()
    lapsed = threading.Event()
    claim.on_lapsed = lambda _: lapsed.set()
    claim.on_regained = lambda _: regained.set()
    kafka.pause(0)
    try:
        assert claim.wait_lost(60)
        assert not claim.held
        assert lapsed.wait(60)
    finally:
        kafka.resume(0)
    assert regained.wait(60), "nobody took over, so work goes on"
    assert claim.wait_held(30)
    assert claim.reason is None


def test_a_broker_restart_is_survived(kafka: EmbeddedKafka, client: Client) -> None:
    marshal = client("a")
    claim = marshal.claim("t", 0, timeout_s=60)
    epoch = claim.epoch
    kafka.kill(0)
    assert claim.wait_lost(60)
    kafka.start()
    claim.commit(9, wait=True, timeout_s=60)
    assert claim.wait_held(60)
    assert claim.epoch == epoch


def test_what_a_successor_took_is_lost_and_the_hook_hears_it(client: Client) -> None:
    first, second = client("a"), client("b")
    claim = first.claim("t", 0, timeout_s=60)
    lost: list[Claim] = []
    heard = threading.Event()

    def on_lost(gone: Claim) -> None:
        lost.append(gone)
        heard.set()

    claim.on_lost = on_lost
    # The first hears nothing for a while: its driver is stopped and started like a paused process.
    with first._driver.lock:
        taken = second.claim("t", 0, timeout_s=60)
        assert not claim.held
    assert heard.wait(60)
    assert lost == [claim]
    assert claim.reason == "taken over by b"
    with pytest.raises(NotHeld, match="taken over by b"):
        claim.commit(3)
    assert taken.held


@spec("C-24")
def test_a_new_instance_resumes_at_once(client: Client) -> None:
    before = client("a", interval_ms=60_000)
    old = before.claim("t", 0, timeout_s=60)
    old.commit(12, wait=True)
    crash(before)
    after = client("a", interval_ms=60_000)
    claim = after.claim("t", 0, timeout_s=60)  # far below two intervals
    assert claim.position == 12
    assert claim.epoch > old.epoch


@spec("C-25")
def test_without_resume_a_new_instance_waits(client: Client) -> None:
    before = client("a", interval_ms=60_000)
    before.claim("t", 0, timeout_s=60)
    crash(before)
    after = client("a", interval_ms=60_000, resume=False)
    assert after.try_claim("t", 0) is None


@spec("C-26")
def test_a_duplicate_client_id_is_reported_and_stops_claiming(client: Client) -> None:
    first = client("a")
    claim = first.claim("t", 0, timeout_s=60)
    second = client("a")
    taken = second.claim("t", 0, timeout_s=60)
    assert claim._core.ended.wait(60)
    assert isinstance(first.failure, DuplicateClientId)
    with pytest.raises(DuplicateClientId, match="'a' is used by another live process"):
        first.claim("t", 1, timeout_s=5)
    assert taken.held


@spec("C-10")
def test_a_cold_start_takes_over_by_broker_timestamps(client: Client) -> None:
    before = client("a", interval_ms=200)
    before.claim("t", 0, timeout_s=60)
    crash(before)
    # Append to the same coordination partition until the broker's clock is far enough ahead.
    other = client("other", group_id="elsewhere", interval_ms=200)
    beside = other.claim("t", 0, timeout_s=60)
    for offset in range(8):
        beside.commit(offset, wait=True)
        beside.wait_lost(0.2)
    # By observation alone the newcomer, whose own interval does not matter, waits 2 × 200 ms; the
    # decision is taken from its first own record instead, which `cold_start_skew_ms` allows.
    after = client("c", interval_ms=60_000, cold_start_skew_ms=0)
    claim = after.claim("t", 0, timeout_s=60)
    assert claim.held


def test_at_most_once_ranges_are_claimed_once(client: Client) -> None:
    first, second = client("a"), client("b")
    claim = first.claim("t", 0, timeout_s=60)
    assert claim.claim_messages(10)
    assert not claim.claim_messages(10)
    assert claim.claim_messages(11)
    assert claim.claimed_offset == 11
    claim.release()
    taken = second.claim("t", 0, timeout_s=60)
    assert taken.position == 11
    assert not taken.claim_messages(11)


def test_close_releases_everything(client: Client) -> None:
    first, second = client("a", interval_ms=60_000), client("b", interval_ms=60_000)
    first.claim_many([("t", p) for p in range(20)], timeout_s=60)
    with first.world() as world:
        assert sum(cell.held for _, _, cell in world.cells("g")) == 20
    first.close()
    claims = second.claim_many([("t", p) for p in range(20)], timeout_s=60)
    assert all(claim.held for claim in claims)
    with pytest.raises(Closed):
        first.claim("t", 0)


CHILD = """
import sys, time
from marshal_py import Marshal
settings = dict(group_id="g", client_id="child", topic={topic!r}, interval_ms=60_000)
with Marshal({servers!r}, **settings) as m:
    claim = m.claim("t", 0, timeout_s=60)
    print("held", flush=True)
    while claim.held:
        claim.wait_lost(1)
"""


def child(kafka: EmbeddedKafka, topic: str) -> subprocess.Popen[str]:
    code = CHILD.format(servers=kafka.bootstrap_servers, topic=topic)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_sigterm_releases(kafka: EmbeddedKafka, topic: str, client: Client) -> None:
    marshal = client("b", interval_ms=60_000)
    process = child(kafka, topic)
    process.send_signal(signal.SIGTERM)
    assert marshal.claim("t", 0, timeout_s=60).held  # far below two intervals
    assert process.wait(60) == 128 + signal.SIGTERM


PAUSED = """
import sys, time
from marshal_py import Marshal
settings = dict(group_id="g", client_id="child", topic={topic!r}, interval_ms=1_000)
with Marshal({servers!r}, **settings) as m:
    claim = m.claim("t", 0, timeout_s=60)
    print("held", claim.epoch, flush=True)
    for line in sys.stdin:  # looks at the claim whenever it is asked to
        print("acts" if claim.held else "does not act", flush=True)
        if line == "wait\\n":
            claim._core.ended.wait(60)
            print(claim.reason, flush=True)
"""


def test_a_process_that_was_stopped_past_its_lease_does_not_act_when_it_wakes(
    kafka: EmbeddedKafka, topic: str, client: Client
) -> None:
    marshal = client("b")
    code = PAUSED.format(servers=kafka.bootstrap_servers, topic=topic)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            epoch = int(process.stdout.readline().split()[1])
            print("now", file=process.stdin, flush=True)
            assert process.stdout.readline() == "acts\n"
            process.send_signal(signal.SIGSTOP)
            print("wait", file=process.stdin, flush=True)  # the first thing it will do
            taken = marshal.claim("t", 0, timeout_s=60)
            assert taken.epoch > epoch
            process.send_signal(signal.SIGCONT)
            assert process.stdout.readline() == "does not act\n"
            assert process.stdout.readline() == "taken over by b\n"
            assert taken.held
        finally:
            process.kill()


def test_start_says_what_is_wrong(kafka: EmbeddedKafka) -> None:
    kafka.start()
    with pytest.raises(TopicMissing, match="marshal topic create"):
        Marshal(kafka.bootstrap_servers, group_id="g", topic="no-such-topic").start()
    with pytest.raises(BrokerUnavailable):
        Marshal("127.0.0.1:1", group_id="g", connect_timeout_ms=300).start()


def test_a_topic_that_takes_no_record_is_told_with_what_the_brokers_say(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str]
) -> None:
    """Of records without keys a compacted topic takes none."""
    topic = kafka_topic(config={"cleanup.policy": "compact"})
    marshal = Marshal(
        kafka.bootstrap_servers, group_id="g", client_id="a", topic=topic, connect_timeout_ms=5_000
    )
    with pytest.raises(BrokerUnavailable, match=r"could not be written: .*failed to validate"):
        marshal.start()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"group_id": ""}, "group_id = ''"),
        ({"group_id": "g", "client_id": "x" * 256}, "client_id"),
        ({"group_id": "g", "interval_ms": 1}, "interval_ms = 1 must be"),
        ({"group_id": "g", "interval_ms": 1.5}, "interval_ms = 1.5 must be"),
        ({"group_id": "g", "margin_ms": 5_000}, "margin_ms = 5000 must lie"),
        ({"group_id": "g", "config": {"acks": "1", "bootstrap.servers": "x"}}, "'acks' is set by"),
        ({"group_id": "g", "config": {}}, "bootstrap.servers"),
        ({"group_id": "g", "member_metadata": b"x" * 5_000}, "member_metadata"),
        ({"group_id": "\ud800"}, "group_id"),
        ({"group_id": "g", "gather_ms": -1}, "gather_ms = -1 must be"),
        ({"group_id": "g", "gather_ms": 501}, "gather_ms = 501 must be"),
        ({"group_id": "g", "gather_ms": True}, "gather_ms = True must be"),
    ],
)
def test_bad_configuration_is_refused_before_the_network(
    settings: dict[str, Any], words: str
) -> None:
    config = settings.pop("config", "127.0.0.1:1")
    with pytest.raises(ConfigurationError, match=words.replace("'", ".")):
        Marshal(config, **settings)


def test_an_unknown_librdkafka_setting_is_named() -> None:
    marshal = Marshal({"bootstrap.servers": "x", "no.such.thing": 1}, group_id="g")
    with pytest.raises(ConfigurationError, match=r"no\.such\.thing"):
        marshal.start()


@pytest.mark.parametrize(("topic_name", "partition"), [("", 0), ("t", -1), ("t", 2**31), (5, 0)])
def test_bad_claims_are_refused(client: Client, topic_name: Any, partition: int) -> None:
    with pytest.raises(InvalidArgument):
        client("a").claim(topic_name, partition)


def test_many_threads_share_one_client(client: Client) -> None:
    marshal = client("a")
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for round_ in range(5):
                with marshal.claim("t", number, timeout_s=60) as claim:
                    claim.commit(round_ + 1, wait=True)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    with marshal.world() as world:
        assert {cell.next_offset for _, _, cell in world.cells("g")} == {5}


@spec("F-2")
def test_garbage_on_the_topic_stops_nobody(
    kafka: EmbeddedKafka, topic: str, client: Client
) -> None:
    from confluent_kafka import Producer

    marshal = client("a")
    claim = marshal.claim("t", 0, timeout_s=60)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in (b"", b"\xff" * 100, b"\x91" * 5_000, b"Heartbeat/1/1/i/c/g/t/0/1", None):
        for partition in range(4):
            producer.produce(topic, value, partition=partition)
    producer.flush(60)
    claim.commit(1, wait=True)
    late = client("b")
    assert late.cell("t", 0) == marshal.cell("t", 0)


@spec("S-4")
def test_snapshots_start_a_client_at_the_same_state(
    kafka: EmbeddedKafka, topic: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = client("a", snapshot_every=1)
    claim = writer.claim("t", 0, timeout_s=60)
    coordinator = claim._core.holding.coordinator
    written = threading.Event()

    def look(_: int, __: object) -> None:
        if coordinator in writer._driver.reader.newest_snapshot:
            written.set()

    writer.listen(look)
    fill(kafka, topic, coordinator, 5_000)
    offset = 0
    while not written.is_set():  # each commit is a record: one of them crosses the boundary
        offset += 1
        claim.commit(offset, wait=True)
    late = client("b")
    assert late._driver.reader.newest_snapshot[coordinator] >= 4_096
    assert late._driver.reader.replayed < 5_000
    with late.world() as ours, writer.world() as theirs:
        a, b = ours.states[coordinator], theirs.states[coordinator]
        assert (a.cells, a.paused) == (b.cells, b.paused)
    assert writer._driver.reader.mismatches == []


@spec("S-4")
def test_a_client_that_trims_deletes_what_its_snapshot_covers(
    kafka: EmbeddedKafka, topic: str, client: Client
) -> None:
    from confluent_kafka import TopicPartition

    writer = client("a", snapshot_every=1, trim_log=True)
    claim = writer.claim("t", 0, timeout_s=60)
    fill(kafka, topic, claim._core.holding.coordinator, 5_000)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    part = TopicPartition(topic, claim._core.holding.coordinator)
    offset = first = 0
    while first == 0:  # each commit is a record: one of them crosses the boundary
        offset += 1
        claim.commit(offset, wait=True)
        answer = admin.list_offsets({part: OffsetSpec.earliest()})  # type: ignore[no-untyped-call]
        first = answer[part].result(60).offset
    assert first == writer._driver.reader.newest_snapshot[part.partition] - 1
    late = client("b")
    with late.world() as ours, writer.world() as theirs:
        assert ours.states[part.partition].cells == theirs.states[part.partition].cells
    with pytest.raises(ConfigurationError, match="trim_log"):
        client("c", wire="text", interval_ms=60_000, trim_log=True)


def test_what_brokers_gather_comes_together(
    kafka: EmbeddedKafka, topic: str, client: Client
) -> None:
    from confluent_kafka import Producer

    claim = client("a", gather_ms=INTERVAL_MS // 10).claim("t", 0, timeout_s=60)
    p = claim._core.holding.coordinator
    claim.release()
    client("b", gather_ms=0).claim("t", 0, timeout_s=60)
    reader = LogReader(
        {"bootstrap.servers": kafka.bootstrap_servers},
        topic=topic,
        snapshot_topic=f"{topic}.snapshots",
        gather_ms=2_000,
    )
    reader.open(60)
    reader.replay()
    read: list[list[bytes]] = []
    done = threading.Event()

    def follow() -> None:
        while not (read and b"last" in read[-1]):
            read.append([m.value() for m in reader.poll(1) if m.error() is None])
        done.set()

    threading.Thread(target=follow, daemon=True).start()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in [b"%d" % n for n in range(10)] + [b"last"]:
        producer.produce(topic, value, partition=p)
        assert producer.flush(60) == 0
    assert done.wait(60)
    reader.close()
    ours = [[value for value in batch if len(value) < 5] for batch in read]
    assert len([batch for batch in ours if batch]) <= 2  # a wait may end between two of them


def fill(kafka: EmbeddedKafka, topic: str, coordinator: int, count: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for _ in range(count):
        producer.produce(topic, b"x", partition=coordinator)
    producer.flush(60)


@spec("S-7")
def test_a_snapshot_of_another_log_is_not_used(
    kafka: EmbeddedKafka, topic: str, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    from marshal_py.client.log_writer import LogWriter
    from marshal_py.protocol.rationalizer import PartitionState, apply
    from marshal_py.protocol.snapshots import SnapshotDue

    holder = client("a")
    claim = holder.claim("t", 0, timeout_s=60)
    coordinator = claim._core.holding.coordinator
    foreign = PartitionState(coordinator)
    apply(foreign, 0, b"something else was here")
    writer = LogWriter(
        {"bootstrap.servers": kafka.bootstrap_servers},
        topic=topic,
        snapshot_topic=f"{topic}.snapshots",
        timeout_ms=10_000,
    )
    writer.write_snapshot(SnapshotDue(coordinator, 1, b"\0" * 16, foreign.encode(), ""), 4, "x")
    writer.flush(60)
    late = client("b")
    assert "of another log" in caplog.text
    cell = late.cell("t", 0)
    assert cell is not None
    assert cell.holder == "a"


@spec("L-1")
def test_a_truncated_log_drops_every_lease(
    kafka: EmbeddedKafka, topic: str, client: Client
) -> None:
    marshal = client("a")
    claim = marshal.claim("t", 0, timeout_s=60)
    lost = threading.Event()
    claim.on_lost = lambda _: lost.set()
    coordinator = claim._core.holding.coordinator
    # An unclean election would make an applied offset come again; here the state is moved ahead.
    with marshal._driver.lock:
        marshal._driver.world.states[coordinator].next_offset += 1_000
    assert lost.wait(60)
    assert not claim.held
    again = marshal.claim("t", 0, timeout_s=60)
    assert again.held
    assert again.epoch > claim.epoch


@spec("L-2")
@pytest.mark.parametrize("also_snapshots", [False, True])
def test_a_changed_partition_count_stops_claiming(
    kafka: EmbeddedKafka, topic: str, client: Client, also_snapshots: bool
) -> None:
    from confluent_kafka.cimpl import NewPartitions

    from marshal_py import PartitionCountChanged

    marshal = client("a")
    claim = marshal.claim("t", 0, timeout_s=60)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    wanted = [NewPartitions(topic, 6)]
    if also_snapshots:
        wanted.append(NewPartitions(f"{topic}.snapshots", 6))
    for future in admin.create_partitions(wanted).values():
        future.result(60)
    assert claim.wait_lost(30)
    with pytest.raises(PartitionCountChanged, match=r"had 4 partitions and now has 6.*recover"):
        marshal.claim("t", 1, timeout_s=5)
    for n in range(12):  # groups of old partitions, and of those that were added
        with pytest.raises(PartitionCountChanged, match=r"had 4 partitions and now has 6.*recover"):
            client("late", group_id=f"group {n}")


@spec("C-7", "C-27")
def test_the_group_pause_stops_holders_and_claims(client: Client) -> None:
    from marshal_py.protocol.messages import VERSION, ReleaseGroup, ResumeGroup, encode

    marshal = client("a")
    claim = marshal.claim("t", 0, timeout_s=60)
    stopped = threading.Event()
    claim.on_pause = lambda _: stopped.set()
    home = marshal._driver.claimant.home
    record = ReleaseGroup(VERSION, "admin", "i", "g", 1, 2**50)  # far off
    marshal._driver._writer.append(home, 2**40, encode(record))
    assert claim._core.ended.wait(60)
    assert stopped.is_set()
    assert claim.reason == "the group was paused"
    assert marshal.try_claim("t", 0) is None
    waiting = marshal.want("t", 0)
    with marshal.world() as world:
        pause = world.states[home].groups["g"].pause
        assert pause is not None
    resume = ResumeGroup(VERSION, "admin", "i", "g", 2, pause.version)
    marshal._driver._writer.append(home, 2**40, encode(resume))
    assert waiting.wait_held(60)
    assert waiting.held


@spec("L-3")
def test_a_log_with_a_hole_is_refused(
    kafka: EmbeddedKafka, topic: str, client: Client, tmp_path: Path
) -> None:
    from confluent_kafka import TopicPartition

    from marshal_py import LogHole

    holder = client("a")
    claim = holder.claim("t", 0, timeout_s=60)
    coordinator = claim._core.holding.coordinator
    for offset in range(5):
        claim.commit(offset, wait=True)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    part = TopicPartition(topic, coordinator, 3)
    admin.delete_records([part])[part].result(60)
    with pytest.raises(LogHole, match="below offset 3"):
        client("b")


def test_no_statistics_of_librdkafka_can_end_a_client(
    kafka: EmbeddedKafka, topic: str, client: Client
) -> None:
    """It writes the client_id into its JSON as it is: a quotation mark makes that malformed."""
    name = 'say "cheese"'
    config = {"bootstrap.servers": kafka.bootstrap_servers, "statistics.interval.ms": 10}
    settings: dict[str, Any] = {"group_id": "g", "interval_ms": 200, "topic": topic}
    with Marshal(config, client_id=name, **settings) as marshal:
        claim = marshal.claim("t", 0, timeout_s=60)
        for offset in range(20):  # a record each, so the driver goes round
            claim.commit(offset, wait=True)
        assert claim.held
        assert marshal.failure is None


def test_ten_clients_race_for_one_cell_and_one_wins(client: Client) -> None:
    clients = [client(f"c{n}") for n in range(10)]
    claims = [marshal.want("t", 0) for marshal in clients]
    won = threading.Event()
    deadline = time.monotonic() + 120
    while not won.is_set() and time.monotonic() < deadline:
        if any(claim.wait_held(0.05) for claim in claims):
            won.set()
    for marshal in clients:  # everybody has read the same log to the same end
        marshal.claim("barrier", int(marshal.client_id[1:]), timeout_s=60)
    assert sum(claim.held for claim in claims) == 1


def test_a_failed_claim_of_many_leaves_what_was_held_before(client: Client) -> None:
    first, second = client("a", interval_ms=60_000), client("b", interval_ms=60_000)
    kept = first.claim("t", 0, timeout_s=60)
    second.claim("t", 2, timeout_s=60)
    with pytest.raises(ClaimTimeout):
        first.claim_many([("t", 0), ("t", 1), ("t", 2)], timeout_s=0.5)
    assert kept.held
    assert second.claim("t", 1, timeout_s=60).held, "the one that it had won was given back"
