"""The consumer against a real broker: sharing, positions, acknowledging, closing, errors."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from confluent_kafka.serialization import StringDeserializer

from marshal_py import (
    BrokerUnavailable,
    Closed,
    ConfigurationError,
    DuplicateClientId,
    Marshal,
    NotHeld,
    Retry,
    TopicMissing,
)
from marshal_py.client.topics import create_topics
from marshal_py.consumer.consumer import Consumer
from marshal_py.consumer.held_partition import Stage
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.support.consumers import INTERVAL_MS, Loop, fill, pid_suffix, until
from tests.support.messages import number_of, partition_of

pytestmark = pytest.mark.kafka

_names = itertools.count()
Make = Callable[..., Consumer]


@pytest.fixture
def coordination(kafka: EmbeddedKafka) -> str:
    kafka.start()
    name = f"__marshal.consumer.{pid_suffix()}.{next(_names)}"
    create_topics(kafka.bootstrap_servers, topic=name, partitions=4)
    return name


@pytest.fixture
def make(kafka: EmbeddedKafka, coordination: str) -> Iterator[Make]:
    """Make consumers that are closed after the test."""
    made: list[Consumer] = []

    def make(client_id: str, topic: str | None = None, **settings: Any) -> Consumer:
        settings = {
            "group_id": "g",
            "interval_ms": INTERVAL_MS,
            "topic": coordination,
            "settle_ms": 50,
            **({"topics": [topic]} if topic else {}),
            **settings,
        }
        made.append(Consumer(kafka.bootstrap_servers, client_id=client_id, **settings))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close(timeout_s=2)


def take(consumer: Consumer, count: int) -> list[int]:
    """Take so many messages, and leave the loop with the last one in hand."""
    numbers = []
    for message in consumer.messages(idle_timeout_s=60):
        numbers.append(number_of(message))
        if len(numbers) == count:
            break
    return numbers


@pytest.fixture
def topic(kafka: EmbeddedKafka, kafka_topic: Callable[..., str]) -> str:
    return kafka_topic(partitions=4)


def test_one_consumer_gets_everything_in_order(
    kafka: EmbeddedKafka, make: Make, topic: str
) -> None:
    fill(kafka.bootstrap_servers, topic, 2_000, partitions=4)
    consumer = make("a", topic)
    got = [(partition_of(m), number_of(m)) for m in consumer.messages(idle_timeout_s=8)]
    assert sorted(n for _, n in got) == list(range(2_000))
    for p in range(4):
        mine = [n for q, n in got if q == p]
        assert mine == sorted(mine)
    assert {c.partition for c in consumer.claims()} == {0, 1, 2, 3}
    assert consumer.lag() == {(topic, p): 0 for p in range(4)}


def test_batches_are_of_one_partition_with_its_claim(
    kafka: EmbeddedKafka, make: Make, topic: str
) -> None:
    fill(kafka.bootstrap_servers, topic, 1_000, partitions=4)
    numbers = []
    consumer = make("a", topic, batch_size=100)
    for batch in consumer.batches(idle_timeout_s=8):
        assert 1 <= len(batch) <= 100
        assert {m.partition() for m in batch} == {batch.partition}
        assert batch.claim.held
        assert consumer.claim_of(batch[0]) is batch.claim
        numbers += [int(m.value()) for m in batch]
    assert sorted(numbers) == list(range(1_000))


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_members_share_and_everything_is_delivered_once_while_they_come_and_go(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str], mode: str
) -> None:
    topic = kafka_topic(partitions=6)
    stop = threading.Event()
    sent = [0]

    def produce() -> None:
        while not stop.is_set():
            fill(kafka.bootstrap_servers, topic, 60, partitions=6, start=sent[0])
            sent[0] += 60
            time.sleep(0.01)

    producer = threading.Thread(target=produce, daemon=True)
    producer.start()
    loops = []
    try:
        for name in "abc":
            loops.append(Loop(make(name, topic, mode=mode)))
            want = 6 // len(loops)
            until(lambda w=want: all(len(lp.partitions) == w for lp in loops), what="no fair share")  # type: ignore[misc]
        held = [lp.partitions for lp in loops]
        assert set().union(*held) == set(range(6))
        loops[1].close()
        until(lambda: len(loops[0].partitions) == 3 == len(loops[2].partitions))
        assert held[0] < loops[0].partitions
        assert held[2] < loops[2].partitions
    finally:
        stop.set()
        producer.join()
    until(
        lambda: sum(len(lp.got) for lp in loops) >= sent[0],
        what="some message never came",
    )
    for loop in loops:
        loop.close()
        assert loop.error is None
    # Nobody crashed: partitions moved, and each message still came exactly once.
    assert sorted(n for lp in loops for n in lp.numbers) == list(range(sent[0]))
    for p in range(6):
        assert all(
            [n for q, _, n in lp.got if q == p] == sorted(n for q, _, n in lp.got if q == p)
            for lp in loops
        )


def test_what_was_claimed_ahead_of_a_backlog_is_delivered_before_its_partition_moves(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    """At most once. Transactions end with records that are no messages: offsets have gaps."""
    topic, count = kafka_topic(partitions=2), 0
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic, "linger.ms": 5}
    )
    producer.init_transactions(60)
    for _ in range(30):
        producer.begin_transaction()
        for n in range(count, count := count + 4_000):
            producer.produce(topic, str(n), partition=n % 2)
        producer.commit_transaction(60)
    halfway, may_go_on = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        if message.offset() == count // 20:
            halfway.set()
            assert may_go_on.wait(60)

    first = Loop(make("a", topic, mode="at_most_once"), handle)
    assert halfway.wait(60)
    second = Loop(make("b", topic, mode="at_most_once"))
    stages = first.consumer._core.partitions.by_key
    # One goes to the second, at once if nothing of it was claimed.
    until(lambda: [part.stage for part in list(stages.values())] != [Stage.ACTIVE] * 2)
    may_go_on.set()
    until(lambda: len(second.got) > 0, what="nothing moved")
    first.close()
    until(lambda: len(first.got) + len(second.got) >= count, what="some message never came")
    second.close()
    assert [loop.error for loop in (first, second)] == [None, None]
    assert sorted(first.numbers + second.numbers) == list(range(count))
    assert first.consumer.dropped == 0


def test_a_new_consumer_goes_on_where_the_last_one_stopped(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 100, partitions=1)
    first = make("a", topic)
    assert take(first, 40) == list(range(40))
    first.close()
    # The last one was in hand when the loop was left: nobody knows whether it was done.
    second = make("b", topic)
    assert take(second, 10) == list(range(39, 49))
    # Nor when it is entered again: the message comes again, unless it was acknowledged.
    assert take(second, 3) == [48, 49, 50]
    for message in second:
        assert number_of(message) == 50
        second.ack(message)
        break
    second.close()
    assert take(make("c", topic), 1) == [51]


def test_of_which_topic_a_position_is_outlives_a_consumer_that_sent_no_heartbeat(
    kafka: EmbeddedKafka, make: Make, topic: str
) -> None:
    for name in ("a", "b"):
        fill(kafka.bootstrap_servers, topic, 40, partitions=4)
        consumer = make(name, topic, interval_ms=60_000)
        numbers = [number_of(m) for m in consumer.messages(idle_timeout_s=8)]
        assert sorted(numbers) == list(range(40)), "all that the topic of that name has now"
        consumer.close()
        kafka.delete_topic(topic)
        kafka.create_topic(topic, partitions=4)


def test_poll_hands_out_one_at_a_time(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 3, partitions=1)
    consumer = make("a", topic)
    values = []
    for _ in range(3):
        message = consumer.poll(20)
        assert message is not None
        values.append(message.value())
    assert values == [b"0", b"1", b"2"]
    assert consumer.poll(0.1) is None
    consumer.commit()
    claim = consumer.claims()[0]
    assert claim.stored_offset == 3


def test_acknowledged_in_any_order_the_lowest_open_one_is_stored(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 20, partitions=1)
    consumer = make("a", topic, auto_ack=False)
    messages = list(itertools.islice(consumer.messages(idle_timeout_s=60), 10))
    claim = consumer.claim_of(messages[0])
    for n in (1, 2, 4):
        consumer.ack(messages[n])
    consumer.commit()
    assert claim.stored_offset <= 0
    consumer.ack(messages[0])
    consumer.commit()
    assert claim.stored_offset == 3
    for n in (3, 5, 6, 7, 9):
        consumer.ack(messages[n])
    consumer.commit()
    assert claim.stored_offset == 8
    consumer.close()
    assert take(make("b", topic), 1) == [8]


def test_close_waits_for_other_threads_and_then_hands_back(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 10, partitions=1)
    consumer = make("a", topic, auto_ack=False)
    loop_done = threading.Event()
    messages: list[Any] = []

    def loop() -> None:
        for message in consumer:
            messages.append(message)
            if len(messages) == 10:
                loop_done.set()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    assert loop_done.wait(60)
    consumer.ack(messages[0])  # from another thread than the loop's
    closer = threading.Thread(target=consumer.close, args=(20.0,), daemon=True)
    closer.start()
    thread.join(60)
    assert not thread.is_alive()
    for message in messages[1:7]:
        consumer.ack(message)
    assert closer.is_alive(), "three are open still"
    for message in messages[7:]:
        consumer.ack(message)
    closer.join(60)
    assert not closer.is_alive()
    successor = make("b", topic).start()
    until(lambda: len(successor.claims()) == 1)
    assert successor.claims()[0].position == 10


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
    ("start", "first"),
    [
        ("earliest", 0),
        (1_700_000_004_000, 4),
        (1_700_000_003_500, 4),
        (datetime.fromtimestamp(1_700_000_006, UTC), 6),
    ],
)
def test_where_to_start_without_a_position(make: Make, dated: str, start: Any, first: int) -> None:
    assert take(make("a", dated, start=start), 1) == [first]


def test_latest_is_the_end_at_the_moment_of_the_claim_and_stays_there(
    kafka: EmbeddedKafka, make: Make, dated: str
) -> None:
    consumer = make("a", dated, start="latest").start()
    until(lambda: len(consumer.claims()) == 1)
    consumer.close()  # nothing was consumed, and the position is stored all the same
    fill(kafka.bootstrap_servers, dated, 3, partitions=1, start=10)
    assert take(make("b", dated, start="latest"), 3) == [10, 11, 12]


def test_new_partitions_and_new_topics_are_picked_up(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    first = kafka_topic(partitions=1)
    prefix = first[:-4]
    consumer = make("a", pattern=f"{prefix}.*", discovery_interval_s=0.2)
    loop = Loop(consumer)
    fill(kafka.bootstrap_servers, first, 5, partitions=1)
    until(lambda: len(loop.got) == 5)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_partitions([NewPartitions(first, 2)])[first].result(60)
    until(lambda: len(consumer.claims()) == 2)
    second = kafka_topic(name=f"{prefix}zzzz", partitions=2)
    until(lambda: len(consumer.claims()) == 4)
    fill(kafka.bootstrap_servers, second, 6, partitions=2, start=5)
    until(lambda: sorted(loop.numbers) == list(range(11)))
    loop.close()


def test_whole_topics_go_to_one_member_each(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topics = [kafka_topic(partitions=3) for _ in range(2)]
    settings = {"topics": topics, "claim_entire_topic": True}
    loops = [Loop(make(name, **settings)) for name in "ab"]

    def held() -> list[set[tuple[str, int]]]:
        return [{(c.topic, c.partition) for c in lp.consumer.claims()} for lp in loops]

    until(lambda: all(len(h) == 3 and len({t for t, _ in h}) == 1 for h in held()))
    for topic in topics:
        fill(kafka.bootstrap_servers, topic, 30, partitions=3)
    until(lambda: sum(len(lp.got) for lp in loops) == 60)
    loops[0].close()
    until(lambda: len(held()[1]) == 6)
    for topic in topics:
        fill(kafka.bootstrap_servers, topic, 30, partitions=3)
    until(lambda: sum(len(lp.got) for lp in loops) == 120)
    loops[1].close()


def test_a_member_takes_no_more_than_it_wants_and_can_shed(make: Make, topic: str) -> None:
    limited, other = Loop(make("a", topic, max_claims=1)), Loop(make("b", topic))
    until(lambda: (len(limited.partitions), len(other.partitions)) == (1, 3))
    other.consumer.shed(2)
    until(lambda: (len(limited.partitions), len(other.partitions)) == (1, 1))
    other.consumer.set_max_claims(None)
    until(lambda: (len(limited.partitions), len(other.partitions)) == (1, 3))
    for loop in (limited, other):
        loop.close()


def test_a_restart_with_kept_claims_moves_nothing(
    kafka: EmbeddedKafka, make: Make, topic: str
) -> None:
    """Long intervals: without the claims being kept, nobody else could have taken them."""
    fill(kafka.bootstrap_servers, topic, 400, partitions=4)
    settings = {"interval_ms": 20_000, "keep_on_close": True}
    first, second = Loop(make("a", topic, **settings)), Loop(make("b", topic, **settings))
    until(lambda: len(first.partitions) == 2 == len(second.partitions))
    until(lambda: len(first.got) + len(second.got) == 400)
    mine, theirs = first.partitions, second.partitions
    epochs = {c.partition: c.epoch for c in second.consumer.claims()}
    first.close()
    again = Loop(make("a", topic, **settings))
    until(lambda: again.partitions == mine)
    fill(kafka.bootstrap_servers, topic, 400, partitions=4, start=400)
    until(lambda: len(again.got) + len(second.got) + len(first.got) == 800)
    assert second.partitions == theirs
    assert {c.partition: c.epoch for c in second.consumer.claims()} == epochs
    everything = sorted(first.numbers + second.numbers + again.numbers)
    assert everything == list(range(800)), "nothing came twice"


def test_messages_behind_a_lapsed_lease_wait_until_it_is_regained(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 50, partitions=1)
    consumer = make("a", topic)
    got = []
    for message in consumer.messages(idle_timeout_s=60):
        assert consumer.claims()[0].held
        got.append(number_of(message))
        if len(got) == 10:
            kafka.pause(0)
            consumer.claims()[0].wait_lost(60)
            threading.Timer(0.5, kafka.resume, args=(0,)).start()
        if len(got) == 50:
            break
    assert got == list(range(50))


def test_a_broker_restart_is_survived_without_loss(
    kafka: EmbeddedKafka, make: Make, topic: str
) -> None:
    fill(kafka.bootstrap_servers, topic, 200, partitions=4)
    loop = Loop(make("a", topic))
    until(lambda: len(loop.got) == 200)
    kafka.kill(0)
    until(lambda: not loop.partitions, what="the leases outlive the broker")
    kafka.start()
    fill(kafka.bootstrap_servers, topic, 200, partitions=4, start=200)
    until(lambda: sorted(loop.numbers) == list(range(400)), 60)
    loop.close()


def test_two_live_consumers_of_one_name_are_told(make: Make, topic: str) -> None:
    first = Loop(make("a", topic))
    until(lambda: len(first.partitions) == 4)
    second = Loop(make("a", topic))
    until(lambda: first.error is not None)
    assert isinstance(first.error, DuplicateClientId)
    until(lambda: len(second.partitions) == 4)
    second.close()


def test_who_waits_for_what_another_process_of_its_name_holds_is_told(
    make: Make, topic: str
) -> None:
    first, second = (Loop(make("a", topic, max_claims=0, interval_ms=500)) for _ in range(2))
    until(lambda: first.consumer._core.started and second.consumer._core.started)
    first.consumer.set_max_claims(None)
    until(lambda: len(first.partitions) == 4)  # which the second did not find when it came
    second.consumer.set_max_claims(None)
    until(lambda: second.error is not None, 30)
    assert isinstance(second.error, DuplicateClientId)
    assert "give each process its own client_id" in str(second.error)
    assert (len(first.partitions), first.error) == (4, None)
    second.consumer.close()
    first.close()


def test_a_marshal_of_ones_own(kafka: EmbeddedKafka, coordination: str, topic: str) -> None:
    fill(kafka.bootstrap_servers, topic, 8, partitions=4)
    with Marshal(kafka.bootstrap_servers, group_id="own", topic=coordination) as marshal:
        with Consumer(marshal, topics=topic) as consumer:
            assert sorted(take(consumer, 8)) == list(range(8))
            lock = marshal.claim("something else", 0, timeout_s=60)
        assert lock.held, "the consumer gives back what is its own"
        assert marshal.claims() == [lock]


def test_a_second_consumer_with_the_same_marshal_is_refused(
    kafka: EmbeddedKafka, coordination: str, topic: str, kafka_topic: Callable[..., str]
) -> None:
    other = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 8, partitions=4)
    fill(kafka.bootstrap_servers, other, 1, partitions=1)
    with Marshal(kafka.bootstrap_servers, group_id="own", topic=coordination) as marshal:
        second = Consumer(marshal, topics=other)
        with Consumer(marshal, topics=topic) as first:
            # Of the topics of two, a group would hear those of the second alone.
            with pytest.raises(ConfigurationError, match="another consumer runs with this Marshal"):
                second.start()
            assert sorted(take(first, 8)) == list(range(8))
        with second:  # once the first is closed, it may
            assert take(second, 1) == [0]


def test_deserializers_as_confluent_has_them(
    kafka: EmbeddedKafka, make: Make, kafka_topic: Callable[..., str]
) -> None:
    topic = kafka_topic(partitions=1)
    fill(kafka.bootstrap_servers, topic, 3, partitions=1)
    consumer = make(
        "a",
        topic,
        value_deserializer=StringDeserializer(),
        key_deserializer=lambda data, context: (context.topic, data),
    )
    got: list[tuple[Any, Any]] = [(m.key(), m.value()) for m in itertools.islice(consumer, 3)]
    assert got == [((topic, str(n).encode()), str(n)) for n in range(3)]


# A user's first hour


def test_a_wrong_topic_name_is_told_with_the_right_one(make: Make, topic: str) -> None:
    with pytest.raises(TopicMissing, match=f"did you mean '{topic}'"):
        make("a", topic + "x").start()


def test_a_start_for_want_of_a_topic_may_be_tried_again(
    kafka: EmbeddedKafka, make: Make, topic: str
) -> None:
    later = f"{topic}.later"
    consumer = make("a", later)
    with pytest.raises(TopicMissing):
        consumer.start()
    kafka.create_topic(later)
    fill(kafka.bootstrap_servers, later, 1, partitions=1)
    assert next(iter(consumer)).value() == b"0"


def test_a_broker_that_is_down_is_told_within_the_timeout() -> None:
    consumer = Consumer(
        "127.0.0.1:1", group_id="g", topics=["t"], connect_timeout_ms=300, close_on_sigterm=False
    )
    with pytest.raises(BrokerUnavailable, match="no answer from the brokers"):
        next(iter(consumer))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"group_id": "g"}, "no topics"),
        ({"topics": ["t"]}, "group_id is missing"),
        ({"group_id": "g", "topics": ["t"], "mode": "exactly_once"}, "mode = 'exactly_once'"),
        ({"group_id": "g", "topics": ["t"], "start": "first"}, "start = 'first' must be"),
        ({"group_id": "g", "topics": ["t"], "batch_size": 0}, "batch_size = 0"),
        ({"group_id": "g", "topics": [3]}, "topics: 3"),
        ({"group_id": "g", "topics": "orders, payments"}, "'orders, payments' has ',', and names"),
        ({"group_id": "g", "topics": ["orders.*"]}, "a regular expression is given as `pattern`"),
        ({"group_id": "g", "pattern": "["}, "pattern = '\\['"),
        ({"group_id": "g", "topics": ["t"], "kafka": {"group.id": "x"}}, "group.id"),
        ({"group_id": "g", "topics": ["t"], "interval_ms": "5"}, "interval_ms = '5'"),
        ({"group_id": "g", "topics": ["t"], "member_metadata": b""}, "set by the consumer"),
        ({"group_id": "g", "topics": 3}, "topics = 3 must be a name, or several"),
        ({"group_id": "g", "topics": b"t"}, "topics = b't' must be a name, or several"),
        ({"group_id": "g", "topics": "t", "labels": "a"}, "labels = 'a' must be a mapping"),
        ({"group_id": "g", "topics": "t", "prefer": "a"}, "prefer = 'a' must be several patterns"),
        ({"group_id": "g", "topics": "t", "kafka": "a"}, "kafka = 'a' must be a mapping"),
        ({"group_id": "g", "topics": "t", "auto_ack": "no"}, "auto_ack = 'no' must be True or Fa"),
        ({"group_id": "g", "topics": "t", "mirror_offsets": 3}, "mirror_offsets = 3 must be"),
        ({"group_id": "g", "topics": "t", "value_deserializer": 3}, "value_deserializer = 3 must"),
        ({"group_id": "g", "topics": "t", "discovery_interval_s": -1}, "discovery_interval_s = -1"),
        ({"group_id": "g", "topics": "t", "settle_ms": "a"}, "settle_ms = 'a' must be a number"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_connected(
    settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Consumer("127.0.0.1:1", **settings)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"delivery": "at_most_once"}, "Consumer has no argument 'delivery'"),
        ({"intervall_ms": 5}, "no argument 'intervall_ms'; did you mean 'interval_ms'"),
        ({"autoack": True}, "no argument 'autoack'; did you mean 'auto_ack'"),
    ],
)
def test_an_argument_that_does_not_exist_is_told_with_the_one_that_does(
    settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        Consumer("127.0.0.1:1", group_id="g", topics="t", **settings)


def test_a_retry_of_a_topic_that_is_not_consumed_is_told() -> None:
    consumer = Consumer("127.0.0.1:1", group_id="g", topics=["orders", "payments"])
    with pytest.raises(ConfigurationError, match="'order' is none of the topics"):
        consumer.run(lambda _: None, retry={"order": Retry(attempts=2)})


def test_closed_is_closed(make: Make, topic: str) -> None:
    consumer = make("a", topic).start()
    consumer.close()
    consumer.close()
    with pytest.raises(Closed):
        next(iter(consumer))


def test_the_claim_of_what_is_not_held(make: Make, topic: str, kafka: EmbeddedKafka) -> None:
    fill(kafka.bootstrap_servers, topic, 4, partitions=4)
    consumer = make("a", topic)
    message = consumer.poll(20)
    assert message is not None
    consumer.close()
    with pytest.raises(NotHeld):
        consumer.claim_of(message)
    consumer.ack(message)  # too late, and harmless
