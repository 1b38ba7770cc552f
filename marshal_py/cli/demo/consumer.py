"""A consumer process: `python -m marshal_py.cli.demo.consumer CONFIG NAME`, until SIGTERM.

It shares the topic's partitions with its peers through claims, and handles each message at least
once: a line in its delivery file, then the next offset goes with a heartbeat. Each consumer has its
share of the partitions; it also works on those of a peer that has fallen silent, and hands them
back when the peer is there again.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from marshal_py import Claim, Marshal
from marshal_py.cli.demo.config import CONSUMERS, PARTITIONS, DemoConfig
from marshal_py.cli.demo.deliveries import DeliveryLog
from marshal_py.protocol.events import Beat, Event

__all__ = ["main"]

_LOOK_AROUND_S: Final = 0.1


class _Peers:
    """Who of the consumers has been heard of lately."""

    def __init__(self, interval_s: float) -> None:
        self._silence_s = 2 * interval_s
        self._heard_s = dict.fromkeys(CONSUMERS, time.monotonic())
        self._lock = threading.Lock()

    def listen(self, _: int, events: list[Event]) -> None:
        now_s = time.monotonic()
        with self._lock:
            for event in events:
                if isinstance(event, Beat) and event.client_id in self._heard_s:
                    self._heard_s[event.client_id] = now_s

    def alive(self, name: str) -> bool:
        with self._lock:
            return time.monotonic() - self._heard_s[name] <= self._silence_s


class _Worker:
    """Claims, fetches and handles."""

    def __init__(self, config: DemoConfig, name: str, marshal: Marshal) -> None:
        self._topic = config.topic
        self._name = name
        self._marshal = marshal
        self._peers = _Peers(config.interval_ms / 1000)
        self._log = DeliveryLog(Path(config.folder), name)
        self._claims: dict[int, Claim] = {}
        self._fetching: dict[int, int] = {}
        """Partition → epoch under which it is fetched."""
        self._kafka = Consumer(
            {
                **config.kafka,
                "group.id": config.consumer_group,  # librdkafka wants one; nothing is stored in it
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
            }
        )
        marshal.listen(self._peers.listen)

    def run(self) -> None:
        look_s = 0.0
        while True:
            if time.monotonic() >= look_s:
                self._share()
                self._fetch_what_is_held()
                look_s = time.monotonic() + _LOOK_AROUND_S
            message = self._kafka.poll(0.05)
            if message is not None and message.error() is None:
                self._handle(message)

    def _share(self) -> None:
        """Want one's own partitions, and those of peers that are silent."""
        for p in range(PARTITIONS):
            owner = CONSUMERS[p % len(CONSUMERS)]
            claim = self._claims.get(p)
            if owner == self._name or not self._peers.alive(owner):
                self._claims[p] = self._marshal.want(self._topic, p)
            elif claim is not None:
                del self._claims[p]
                self._stop_fetching(p)
                claim.release(wait=False)

    def _fetch_what_is_held(self) -> None:
        for p, claim in self._claims.items():
            if not claim.held:
                self._stop_fetching(p)
            elif self._fetching.get(p) != claim.epoch:
                self._stop_fetching(p)
                start = claim.position if claim.position >= 0 else OFFSET_BEGINNING
                self._kafka.incremental_assign([TopicPartition(self._topic, p, start)])
                self._fetching[p] = claim.epoch

    def _stop_fetching(self, p: int) -> None:
        if self._fetching.pop(p, None) is not None:
            self._kafka.incremental_unassign([TopicPartition(self._topic, p)])

    def _handle(self, message: Any) -> None:
        p = message.partition()
        claim = self._claims.get(p)
        if claim is None or not claim.held or self._fetching.get(p) != claim.epoch:
            return  # it will be delivered again, here or elsewhere
        value = json.loads(message.value())
        key = message.key().decode()
        self._log.write(p, message.offset(), claim.epoch, key, value["seq"], value["row"])
        claim.commit(message.offset() + 1)


def main() -> None:
    """Consume until SIGTERM, which `Marshal` turns into a clean end."""
    config, name = DemoConfig.load(sys.argv[1]), sys.argv[2]
    with Marshal(
        config.kafka,
        group_id=config.consumer_group,
        client_id=name,
        interval_ms=config.interval_ms,
        topic=config.coordination_topic,
    ) as marshal:
        _Worker(config, name, marshal).run()


if __name__ == "__main__":
    main()
