"""A process with consumers of some groups, and one ``/metrics`` for all of them.

    python -m tests.alerts.members '{"kafka": {...}, "topic": ..., "port": ..., "groups": [...]}'

Each group is ``[group_id, topic, members]``, and shared as ``sharing`` says. A handler looks at
what a message says: ``wait`` blocks for ever, ``fail`` raises (and the message becomes a dead
letter), ``kill`` ends the process, a number is so many seconds of work.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any

from confluent_kafka import Message
from prometheus_client import CollectorRegistry, generate_latest

from marshal_py import Claim, Consumer, Retry
from marshal_py.telemetry import ConsumerMetrics, MarshalMetrics
from marshal_py.telemetry.status_server import StatusServer
from tests.alerts import logger


def handle(message: Message, _: Claim) -> None:
    """Do what the message says."""
    text = (message.value() or b"").decode()
    if text == "wait":
        threading.Event().wait()
    if text == "fail":
        raise ValueError(text)
    if text == "kill":
        os._exit(1)
    time.sleep(float(text))  # the work itself


def main(settings: dict[str, Any]) -> None:
    """Consume until SIGTERM."""
    registry = CollectorRegistry()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    consumers = []
    for group_id, topic, names in settings["groups"]:
        for name in names:
            consumer = Consumer(
                settings["kafka"],
                group_id=group_id,
                client_id=name,
                topics=[topic],
                topic=settings["topic"],
                sharing=settings["sharing"],
                max_deliveries=None,
            )
            consumers.append(consumer)
            consumer.start()
            MarshalMetrics(consumer.marshal, registry)
            ConsumerMetrics(consumer, registry)
            threading.Thread(
                target=consumer.run,
                args=(handle,),
                kwargs={"retry": Retry(attempts=1), "on_failure": "dead_letter"},
                daemon=True,
            ).start()
    address = ("127.0.0.1", settings["port"])
    with StatusServer(address, lambda: {"ok": True}, lambda: generate_latest(registry), logger):
        stop.wait()
    for consumer in consumers:
        consumer.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
