"""A peer that floods the coordination topic: who holds keeps, who claims gets, nothing grows."""

from __future__ import annotations

import random
import threading
from typing import Literal

import pytest
from confluent_kafka import Producer

from marshal_py import Marshal
from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.protocol.messages import ClaimingPartition, encode
from tests.support.messages import heartbeat

pytestmark = pytest.mark.kafka

FLOOD = 20_000
PER_S = 4_000
PARTITIONS = 2


def _nonsense(dice: random.Random, holder_epoch: int) -> list[bytes]:
    """Noise, damaged records, and whole ones that are refused."""
    who: tuple[Literal[2], str, str, str] = (2, "stranger", "stranger.1", "g")
    refused = [
        encode(ClaimingPartition(*who, 1, "t", 0, 1_000, holder_epoch - 1)),
        encode(heartbeat("stranger", 2, {holder_epoch + 7: 5}, instance_id="stranger.1")),
        encode(heartbeat("stranger", 3, dict.fromkeys(range(20), 0))),
    ]
    noise = [dice.randbytes(dice.randint(0, 200)) for _ in range(50)]
    damaged = [record[: dice.randint(1, len(record))] for record in refused * 10]
    return refused + noise + damaged


def test_a_flood_of_nonsense_takes_nothing_from_anybody(kafka: EmbeddedKafka) -> None:
    servers = kafka.bootstrap_servers
    create_topics(servers, topic="flooded", partitions=PARTITIONS, replication_factor=1)
    stop = threading.Event()
    sent = 0

    def flood(values: list[bytes]) -> None:
        nonlocal sent
        producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
        while not stop.is_set() and sent < FLOOD:
            for value in values:
                for partition in range(PARTITIONS):
                    producer.produce("flooded", value, partition=partition)
                    sent += 1
            producer.flush(60)

    with Marshal(servers, group_id="g", client_id="a", topic="flooded") as holder:
        claim = holder.claim("t", 0, timeout_s=60)
        epoch = claim.epoch
        values = _nonsense(random.Random(1), claim.epoch)
        before = sum(len(state.encode()) for state in holder._driver.world.states)
        flooder = threading.Thread(target=flood, args=(values,), daemon=True)
        flooder.start()
        try:
            # In the middle of it: stored positions, another claim, and a newcomer that replays.
            claim.commit(7, wait=True, timeout_s=60)
            assert holder.claim("t", 1, timeout_s=60).held
            with Marshal(servers, group_id="g", client_id="b", topic="flooded") as newcomer:
                assert newcomer.claim("t", 2, timeout_s=60).held
        finally:
            flooder.join(60)
            stop.set()
        claim.commit(8, wait=True, timeout_s=60)
        assert claim.epoch == epoch
        assert claim.reason is None
        after = sum(len(state.encode()) for state in holder._driver.world.states)
    assert sent >= FLOOD
    assert after - before < 4_096
