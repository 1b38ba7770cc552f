"""Who asks a group's coordinator lives on while that is silent or gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from marshal_py.embedded.kafka import EmbeddedKafka
from tests.support.asked_process import asked
from tests.support.consumers import until

pytestmark = pytest.mark.kafka

_ASK = """
import logging, sys
from types import SimpleNamespace
from marshal_py.admin.positions import committed_offsets
from marshal_py.client.topics import admin_client
from marshal_py.consumer.offset_mirror import OffsetMirror
from marshal_py.errors import BrokerUnavailable
config, topic = {"bootstrap.servers": sys.argv[1], "log_level": 0}, sys.argv[2]
logging.disable()
at = [0]
mirror = OffsetMirror(config, "mirrored", lambda: ["claim"], lambda _: ((topic, 0), at[0]))
for line in sys.stdin:
    at[0] += 1
    mirror._timeout_s = float(line)
    mirror._round()
    try:
        found = committed_offsets(
            admin_client(config), "mirrored", float(line), even_if_active=False
        )
        print("told" if found == {(topic, 0): at[0]} else found, flush=True)
    except BrokerUnavailable:
        print("silence", flush=True)
"""


def test_who_asks_lives_on_while_nobody_answers(
    kafka: EmbeddedKafka, kafka_topic: Callable[..., str]
) -> None:
    """In a process of its own, which an assertion of librdkafka's would end."""
    topic = kafka_topic(partitions=1)
    with asked(_ASK, kafka.bootstrap_servers, topic) as ask:
        until(lambda: ask(20) == "told")
        for outage, end in ((kafka.pause, kafka.resume), (kafka.kill, kafka.start)):
            outage(0)
            try:
                assert {ask(timeout_s) for timeout_s in (0.05, 0.2, 0.5, 1.5)} == {"silence"}
            finally:
                end(0)
            until(lambda: ask(20) == "told")
