"""A worker on plain claims: it consumes the partitions that it holds, and says what it saw.

    python -m tests.interop.worker -brokers B -log TOPIC -wire msgpack -client C -group G \
        -topic T -partitions N

Prints the events of `tests.interop.peer`. It commits after each message.
"""

from __future__ import annotations

import json
import signal
import time
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from marshal_py import Claim, Marshal
from tests.interop.flags import Flags
from tests.support.messages import offset_of, partition_of


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"ev": event, **fields}), flush=True)


def work(flags: Flags, topic: str, partitions: int) -> None:
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    brokers = flags.text("brokers")
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }
    )
    working: dict[int, Claim] = {}
    with Marshal(
        brokers,
        group_id=flags.text("group"),
        client_id=flags.text("client"),
        topic=flags.text("log"),
        wire="text" if flags.text("wire") == "text" else "msgpack",
        interval_ms=flags.number("interval-ms"),
        connect_timeout_ms=30_000,
    ) as marshal:
        say("dialed")
        wanted = {p: marshal.want(topic, p) for p in range(partitions)}
        while not stopping:
            for p, claim in wanted.items():
                if claim.held and p not in working:
                    start = max(0, claim.position)
                    consumer.incremental_assign([TopicPartition(topic, p, start)])
                    working[p] = claim
                    say("claim", topic=topic, partition=p, t=time.time(), offset=start)
                elif not claim.held and p in working:
                    consumer.incremental_unassign([TopicPartition(topic, p)])
                    del working[p]
                    say("unclaim", topic=topic, partition=p, t=time.time())
                if claim.reason is not None:
                    wanted[p] = marshal.want(topic, p)
            message = consumer.poll(0.02)
            if message is None or message.error() is not None:
                continue
            owner = working.get(partition_of(message))
            if owner is None or not owner.held:
                continue
            say(
                "msg",
                topic=topic,
                partition=message.partition(),
                offset=message.offset(),
                t=time.time(),
            )
            owner.commit(offset_of(message) + 1)
        say("stopping")
    consumer.close()
    say("stopped")


def main() -> None:
    import sys

    flags = Flags(
        sys.argv[1:],
        {
            "brokers": "",
            "log": "",
            "wire": "msgpack",
            "client": "",
            "group": "",
            "topic": "",
            "partitions": "1",
            "interval-ms": "1000",
        },
    )
    work(flags, flags.text("topic"), flags.number("partitions"))


if __name__ == "__main__":
    main()
