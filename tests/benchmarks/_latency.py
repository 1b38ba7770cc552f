"""Processes of the latency benchmark: a writer, a reader, and the bare loop that is the ceiling.

All stamp with CLOCK_MONOTONIC, which is one clock for all processes of a machine.
"""

from __future__ import annotations

import functools
import json
import os
import select
import sys
import time
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from harvest.databases.postgres.wal import PostgresWalSource
from tests.support.messages import value_of

VALUE_BYTES = 256
INSERT = (
    "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, "
    "kafka_header_values) VALUES (now(), %s, %s, %s, '{}', '{}')"
)


def write(dsn: str, topic: str, rate: float, seconds: float) -> None:
    """Commit single rows at a rate; print for each when its INSERT was sent, which its value begins
    with, and when its commit had returned, both in nanoseconds."""
    commits_ns = []
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
        count = int(rate * seconds)
        started = time.monotonic_ns()
        for n in range(count):
            wait_s = started / 1e9 + n / rate - time.monotonic()
            if wait_s > 0:
                time.sleep(wait_s)
            stamp = time.monotonic_ns()
            value = f"{stamp}|".ljust(VALUE_BYTES, "x")
            connection.execute(INSERT, (topic, f"key-{n % 100}", value))
            commits_ns.append((stamp, time.monotonic_ns()))
        late_s = time.monotonic() - started / 1e9 - count / rate
    print(json.dumps({"commits_ns": commits_ns, "late_s": late_s}))


def read(servers: str, topic: str, count: int, timeout_s: float) -> None:
    """Read `count` committed records as they come; print when each was sent and when it was read,
    in nanoseconds."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "latency",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "latest",
            "fetch.wait.max.ms": 500,
            "fetch.queue.backoff.ms": 1,
        }
    )
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    starts = []
    for p in partitions:
        _, high = consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)
        starts.append(TopicPartition(topic, p, high))
    consumer.assign(starts)
    consumer.poll(0.5)
    print("ready", flush=True)
    found_ns: list[tuple[int, int]] = []
    deadline = time.monotonic() + timeout_s
    while len(found_ns) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None or message.error():
            continue
        now = time.monotonic_ns()
        found_ns.append((int(value_of(message).partition(b"|")[0]), now))
    consumer.close()
    print(json.dumps(found_ns))


def wait_for_coordinator(group: Consumer) -> None:
    """A new broker makes the topic of all groups' positions when the first one asks."""
    deadline = time.monotonic() + 30
    while True:
        try:
            group.committed([TopicPartition("outbox", 0)], timeout=10)
            return
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_COORDINATOR or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def bare_producer(servers: str, transactional: bool) -> tuple[Producer, Consumer]:
    """What bare loops write with; the consumer says which group's position is committed."""
    settings: dict[str, Any] = {"bootstrap.servers": servers, "compression.type": "lz4"}
    if transactional:
        settings |= {"transactional.id": f"bare-{os.getpid()}", "retry.backoff.ms": 1}
    else:
        settings |= {"enable.idempotence": True, "linger.ms": 0}
    producer = Producer(settings)
    group = Consumer({"bootstrap.servers": servers, "group.id": f"bare-{os.getpid()}"})
    if transactional:
        wait_for_coordinator(group)
        producer.init_transactions(10)
    return producer, group


def floor(servers: str, topic: str, rate: float, count: int, warm_up: int) -> None:
    """What Kafka alone takes for one record: acknowledged, and in a transaction with a position.

    `warm_up` of each come first, as fast as they go: a broker that has just been started takes
    several times as long, until its machine code is compiled.

    No database, nobody who waits for another: no harvester on these brokers can be quicker.
    """
    found = {}
    for transactional in (False, True):
        producer, group = bare_producer(servers, transactional)
        took_ms: list[float] = []
        started = time.monotonic()
        for n in range(-warm_up, count):
            if n == 0:
                started, took_ms = time.monotonic(), []
            if n > 0:
                time.sleep(max(0.0, started + n / rate - time.monotonic()))
            began = time.monotonic_ns()
            if transactional:
                producer.begin_transaction()
            producer.produce(topic, b"x" * VALUE_BYTES, f"key-{n % 100}")
            if transactional:
                position = TopicPartition(topic, 0, 0, str(n))
                producer.send_offsets_to_transaction([position], group.consumer_group_metadata())
                producer.commit_transaction()
            else:
                producer.flush()
            took_ms.append((time.monotonic_ns() - began) / 1e6)
        found["transaction" if transactional else "record"] = took_ms
    print(json.dumps(found))


def listening(dsn: str) -> psycopg.Connection[Any]:
    """A connection that hears of rows."""
    listener = psycopg.connect(dsn, autocommit=True)
    row = listener.execute("SELECT 'outbox'::regclass::oid::text").fetchone()
    assert row is not None
    listener.execute(f'LISTEN "harvest.{row[0]}"')
    return listener


def bare(servers: str, dsn: str, transactional: bool) -> None:
    """INSERT → NOTIFY → SELECT → produce(acks=all): no mark, no delete, no fence, no restart.

    `transactional`: in one Kafka transaction with an offset, as the position must be.
    """
    producer, group = bare_producer(servers, transactional)
    listener = listening(dsn)
    selecter = psycopg.connect(dsn, autocommit=True)
    last = 0
    print("ready", flush=True)
    while os.getppid() != 1:
        for _ in listener.notifies(timeout=0.5, stop_after=1):
            pass
        rows = selecter.execute(
            "SELECT id, kafka_topic, kafka_key, kafka_value FROM outbox WHERE id > %s ORDER BY id",
            (last,),
            binary=True,
        ).fetchall()
        if not rows:
            continue
        if transactional:
            producer.begin_transaction()
        for row_id, topic, key, value in rows:
            producer.produce(topic, value, key)
            last = row_id
        if transactional:
            position = TopicPartition(topic, 0, 0, str(last))
            producer.send_offsets_to_transaction([position], group.consumer_group_metadata())
            producer.commit_transaction()
        else:
            producer.poll(0)


def bare_marks(servers: str, dsn: str) -> None:
    """INSERT → NOTIFY → UPDATE … RETURNING → produce(acks=all) → DELETE: mark mode's statements.

    One thread waits for each; no fence, no restart.
    """
    producer, _ = bare_producer(servers, transactional=False)
    listener = listening(dsn)
    marker = psycopg.connect(dsn, autocommit=True)
    marker.execute("SET synchronous_commit = off")  # as at least once does
    done: list[int] = []

    def delivered(row_id: int, error: Any, _: Any) -> None:
        if error is not None:
            raise RuntimeError(error)
        done.append(row_id)

    print("ready", flush=True)
    while os.getppid() != 1:
        for _ in listener.notifies(timeout=0.5, stop_after=1):
            pass
        rows = marker.execute(
            "UPDATE outbox SET leader_id = '00000000-0000-0000-0000-000000000001' WHERE id = ANY ("
            "ARRAY (SELECT id FROM outbox WHERE leader_id IS NULL ORDER BY id LIMIT 1000)) "
            "RETURNING id, kafka_topic, kafka_key, kafka_value",
            binary=True,
        ).fetchall()
        for row_id, topic, key, value in sorted(rows):
            report = functools.partial(delivered, row_id)
            producer.produce(topic, value, key, on_delivery=report)
        producer.poll(0)
        if done:
            marker.execute("DELETE FROM outbox WHERE id = ANY (%s)", (done,))
            done.clear()


def bare_slot(servers: str, dsn: str) -> None:
    """Slot → produce(acks=all): no checkpoint, no fence, no restart; confirms what it has read."""
    producer, _ = bare_producer(servers, transactional=False)
    source = PostgresWalSource(dsn, "outbox")
    stream, _ = source.open(0, None)
    print("ready", flush=True)
    while os.getppid() != 1:
        found = stream.read(5_000, 1 << 24)
        if found is None:
            producer.poll(0)
            stream.keep_alive()
            select.select([stream.fileno()], [], [], 0.2)
            continue
        for chunk in found.chunks:
            for row in chunk.rows:
                producer.produce(row.topic, row.value, row.key)
        producer.poll(0)
        stream.confirm(found.lsn)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "write":
        write(arguments[0], arguments[1], float(arguments[2]), float(arguments[3]))
    elif what == "read":
        read(arguments[0], arguments[1], int(arguments[2]), float(arguments[3]))
    elif what == "floor":
        floor(arguments[0], arguments[1], float(arguments[2]), *map(int, arguments[3:]))
    elif what == "bare-slot":
        bare_slot(arguments[0], arguments[1])
    elif what == "bare-marks":
        bare_marks(arguments[0], arguments[1])
    else:
        bare(arguments[0], arguments[1], what == "bare-transactions")
