"""A Go Marshal client as a process: `gomodel` on a real broker, speaking Kafka's oldest protocol.

    python -m tests.interop.gopeer -brokers B -client C -group G -topics T[,T2] [options]

It prints the events of `tests.interop.peer`, so that tests drive both alike. Records go out with
magic 0, as from the real client, where the broker still takes that (up to Kafka 3.9).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
import uuid
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.interop.gomodel import Bugs, GoClient, GoPanic, GoWorld, parse
from tests.support.messages import offset_of, partition_of

MAX_RECORDS = 100_000

UNSETTLED = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"ev": event, **fields}), flush=True)


def coordinator(topic: str, partitions: int) -> int:
    """Where claims of the topic are decided, from the description: MD5, eight bytes, little end."""
    import hashlib
    import struct

    (number,) = struct.unpack_from("<Q", hashlib.md5(topic.encode()).digest())
    return int(number % partitions)


class Peer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.topics: list[str] = options.topics.split(",")
        bugs = Bugs(**dict.fromkeys(options.bug, True))
        for name in options.no_bug:
            setattr(bugs, name, False)
        self.bugs = bugs
        self.hb = int(os.environ.get("MARSHAL_HB", "60"))
        self.world = GoWorld(hb=self.hb, bugs=bugs, before_94=options.before_94)
        self.client = GoClient(
            self.world,
            options.client,
            options.group,
            str(uuid.uuid4())[:8],
            random.Random(),
            max_claims=0 if options.entire else options.max_claims,
        )
        kafka = {"bootstrap.servers": options.brokers, "log_level": 0}
        if options.magic0:
            kafka |= {"api.version.request": False, "broker.version.fallback": "0.8.2.2"}
        reading = {**kafka, "group.id": "none", "enable.auto.commit": False}
        self.producer = Producer({**kafka, "acks": "all", "message.timeout.ms": 5000})
        self.log = Consumer(
            {
                **reading,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
                "enable.partition.eof": True,
            }
        )
        self.data = Consumer({**reading, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10})
        self.known: set[tuple[str, int]] = set()
        self.partitions: dict[str, int] = {}
        self.stop = False
        self.consumed = 0
        self.last_message_s = 0.0

    def now(self) -> float:
        return time.time() + float(self.options.clock)

    # The log

    def dial(self) -> None:
        topics = self.log.list_topics(timeout=10).topics
        self.coordinators = len(topics[self.options.log].partitions)
        self.partitions = {t: len(topics[t].partitions) for t in self.topics if t in topics}
        behind, starts, cut = {}, [], set()
        for p in range(self.coordinators):
            low, high = self.log.get_watermark_offsets(
                TopicPartition(self.options.log, p), timeout=10
            )
            starts.append(TopicPartition(self.options.log, p, max(low, high - MAX_RECORDS)))
            if high > low:
                behind[p] = high
            if high - MAX_RECORDS > low:
                cut.add(p)
        self.log.assign(starts)
        while behind and not self.stop:
            for message in self.log.consume(1000, 0.1):
                invalid, error = self.world.invalid, message.error()
                if error is not None:
                    at_end = error.code() == KafkaError._PARTITION_EOF
                    if at_end and not self.bugs.stuck_on_marker:
                        behind.pop(partition_of(message), None)
                    continue
                p = partition_of(message)
                if p in cut:
                    cut.discard(p)
                    self.check_start(message.value() or b"")
                self.read(message)
                ended = self.bugs.invalid_ends_start and self.world.invalid > invalid
                if offset_of(message) + 1 >= behind.get(p, 0) or ended:
                    behind.pop(p, None)

    def check_start(self, raw: bytes) -> None:
        """The first record that is read of a log that was cut short."""
        try:
            age_s = self.now() - parse(raw)[1]
        except ValueError:
            return
        if age_s < 2 * self.hb and self.bugs.busy_start_panics:
            raise GoPanic("send on closed channel")

    def read(self, message: Any) -> None:
        cell = self.world.read(message.value() or b"", int(self.now()))
        self.send(self.client.woken(cell, self.now()))

    def send(self, values: list[bytes]) -> None:
        for value in values:
            topic = value.split(b"/")[6].decode()
            if self.bugs.stuck_on_slash and value.count(b"/") > 8:
                say("stuck", record=value.decode())
            self.producer.produce(
                self.options.log, value, partition=coordinator(topic, self.coordinators)
            )
            self.producer.flush(60)
        self.note_claims()

    # Claims

    def note_claims(self) -> None:
        held = set(self.client.claims)
        for topic, partition in sorted(held - self.known):
            say("claim", topic=topic, partition=partition, t=time.time())
        for topic, partition in sorted(self.known - held):
            say("unclaim", topic=topic, partition=partition, t=time.time())
        if held != self.known:
            self.known = held
            if self.options.entire:
                say("topic_claims", topics=sorted(t for t, p in held if p == 0))
            starts = {key: self.start_of(*key) for key in sorted(held)}
            self.data.assign([TopicPartition(*key, at) for key, at in starts.items() if at >= 0])
            for key in [key for key, at in starts.items() if at < 0]:
                self.send(self.client.release(key, self.now()))

    def start_of(self, topic: str, partition: int) -> int:
        """Return where to consume from, -1 where there is nothing to consume (a bug)."""
        low, high = self.ends_of(TopicPartition(topic, partition))
        claim = self.client.claims[topic, partition]
        claim.offset = max(low, claim.offset)
        if claim.offset > high and self.bugs.stuck_beyond_end:
            return -1
        return min(claim.offset, high)

    def ends_of(self, part: TopicPartition) -> tuple[int, int]:
        """A topic that is a moment old may still ask who leads it."""
        deadline = time.monotonic() + 60
        while True:
            try:
                return self.data.get_watermark_offsets(part, timeout=10)
            except KafkaException as error:
                if error.args[0].code() not in UNSETTLED or time.monotonic() > deadline:
                    raise
                self.data.list_topics(part.topic, timeout=10)

    def reclaim(self) -> None:
        for topic, count in self.partitions.items():
            for number in range(count):
                self.send(self.client.fast_reclaim(topic, number, self.now()))

    def claim_loop(self) -> None:
        held = self.client.claims
        if self.client.is_paused(self.now()):
            for key in list(held):
                self.send(self.client.release(key, self.now()))
            return
        for topic, count in self.partitions.items():
            if self.options.entire:
                mine = (topic, 0) in held
                full = len({t for t, _ in held}) >= self.options.max_claims > 0
                if not mine and not full:
                    self.send(self.client.try_claim(topic, 0, self.now()))
                elif mine:
                    for number in range(1, count):
                        self.send(self.client.try_claim(topic, number, self.now()))
                        self.settle()
                continue
            first = self.client.rng.randrange(count)
            for number in range(count):
                sent = self.client.try_claim(topic, (first + number) % count, self.now())
                self.send(sent)
                if sent and not self.options.greedy:
                    break
                self.settle()

    def refresh(self) -> None:
        """See what has grown, as often as Go's cluster looks at the metadata."""
        topics = self.data.list_topics(timeout=10).topics  # it reads the new ones, too
        for topic in self.partitions:
            if topic in topics:
                self.partitions[topic] = len(topics[topic].partitions)

    def settle(self) -> None:
        """Wait, without a limit, until our claim has been read."""
        while self.client.waiting is not None and not self.stop:
            for message in self.log.consume(100, 0.05):
                if message.error() is None:
                    self.read(message)

    def health(self) -> None:
        for key, claim in list(self.client.claims.items()):
            if key in self.client.claims and self.now() >= claim.beat_at:
                if self.bugs.spurious_release and time.time() - self.last_message_s > self.hb:
                    self.send(self.client.release(key, self.now()))
                    continue
                self.send(self.client.health(key, self.now()))
                if self.options.entire and key not in self.client.claims:
                    for other in [k for k in self.client.claims if k[0] == key[0]]:
                        self.send(self.client.release(other, self.now()))

    # Messages

    def consume(self) -> None:
        if not self.client.claims:
            time.sleep(0.01)
            return
        for message in self.data.consume(200, 0.02):
            if message.error() is not None:
                continue
            claim = self.client.claims.get((message.topic() or "", partition_of(message)))
            if claim is None:
                continue
            if self.consumed == 0:
                say("first_message", since_start=time.time() - self.started_s)
            self.consumed += 1
            self.last_message_s = time.time()
            if not self.options.quiet:
                say(
                    "msg",
                    topic=message.topic(),
                    partition=message.partition(),
                    offset=message.offset(),
                    t=time.time(),
                )
            claim.offset = max(claim.offset, offset_of(message) + 1)

    def run(self) -> None:
        say("start")
        self.started_s = time.time()
        self.dial()
        say("dialed")
        if self.options.fast_reclaim != "false":
            self.reclaim()
        next_loop = next_read = 0.0
        next_refresh = time.time() + self.client.jitter()
        while not self.stop:
            if time.time() >= next_read:
                next_read = time.time() + self.options.poll
                for message in self.log.consume(1000, 0):
                    if message.error() is None:
                        self.read(message)
            if time.time() >= next_refresh:
                next_refresh = time.time() + self.client.jitter()
                self.refresh()
            if self.client.waiting is None and time.time() >= next_loop:
                next_loop = time.time() + self.client.rng.uniform(0, self.options.loop)
                self.claim_loop()
            self.health()
            self.consume()
            if self.options.duration and time.time() - self.started_s > self.options.duration:
                break
        self.leave()

    def leave(self) -> None:
        say("stopping")
        for number, key in enumerate(list(self.client.claims)):
            if self.options.term == "exit":
                os._exit(0)
            if self.options.term == "keep":
                self.send(self.client.health(key, self.now()))
                continue
            if number == 1 and self.bugs.deadlock_on_leave:
                self.hang()
            self.send(self.client.release(key, self.now()))
        self.producer.flush(60)
        say("stopped")

    def hang(self) -> None:
        say("deadlock")
        while True:
            self.health()
            time.sleep(0.1)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="gopeer", allow_abbrev=False)
    for name in ("brokers", "client", "group", "topics"):
        p.add_argument(f"-{name}", required=True)
    p.add_argument("-log", default="__marshal", help="the coordination topic")
    p.add_argument("-greedy", action="store_true")
    p.add_argument("-entire", action="store_true")
    p.add_argument("-quiet", action="store_true")
    p.add_argument("-before-94", dest="before_94", action="store_true")
    p.add_argument("-max-claims", dest="max_claims", type=int, default=0)
    p.add_argument("-fast-reclaim", dest="fast_reclaim", default="true")
    p.add_argument("-term", choices=("release", "keep", "exit"), default="release")
    p.add_argument("-duration", type=float, default=0.0)
    p.add_argument("-clock", type=float, default=0.0, help="seconds that its clock is ahead")
    p.add_argument("-loop", type=float, default=3.0)
    p.add_argument("-poll", type=float, default=0.5)
    p.add_argument("-magic0", action="store_true")
    p.add_argument("-bug", action="append", default=[])
    p.add_argument("-no-bug", dest="no_bug", action="append", default=[])
    return p


def main() -> None:
    peer = Peer(parser().parse_args())

    def stop(*_: object) -> None:
        peer.stop = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(
        signal.SIGUSR1, lambda *_: say("claims", claims=[list(k) for k in sorted(peer.known)])
    )
    try:
        peer.run()
    except GoPanic as panic:
        say("panic", error=str(panic))
        sys.exit(2)


if __name__ == "__main__":
    main()
