"""Sentences of specs/PROTOCOL.md about the log that only a real broker can show (§6, §7)."""

from __future__ import annotations

import itertools
import logging
import os
import threading

import pytest

from marshal_py import Marshal, SnapshotMismatch
from marshal_py.client.log_writer import LogWriter
from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.protocol.rationalizer import PartitionState
from marshal_py.protocol.snapshots import SnapshotDue, anchor_of
from tests.support.spec import spec

pytestmark = pytest.mark.kafka

_topics = itertools.count()


@pytest.fixture
def topic(kafka: EmbeddedKafka) -> str:
    """A coordination topic of its own for each test."""
    kafka.start()
    name = f"__marshal.spec.{os.getpid()}.{next(_topics)}"
    create_topics(kafka.bootstrap_servers, topic=name, partitions=1)
    return name


class Heard(logging.Handler):
    """Lets a test wait for a line in the log."""

    def __init__(self, words: str) -> None:
        super().__init__(logging.WARNING)
        self.words = words
        self.heard = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.words in record.getMessage():
            self.heard.set()


@spec("S-8", "S-9")
@pytest.mark.parametrize("wrong", ["nothing", "position", "identity"])
def test_a_snapshot_that_differs_stops_the_client(
    kafka: EmbeddedKafka, topic: str, wrong: str
) -> None:
    logger = logging.getLogger("marshal_py.log")
    words = "is of another log" if wrong == "identity" else "differs from the state of this process"
    heard = Heard(words)
    read = threading.Event()
    logger.addHandler(heard)
    try:
        with Marshal(
            kafka.bootstrap_servers, group_id="g", client_id="a", topic=topic, member=False
        ) as marshal:
            marshal.claim("t", 0, timeout_s=60).release()
            marshal.listen(lambda *_: read.set())
            with marshal._driver.lock:  # nothing is held, so nothing more is written
                reader = marshal._driver.reader
                state = PartitionState.decode(reader.world.states[0].encode())
                last = reader._last_value[0]
            if wrong != "nothing":
                state.cells["g", "t", 0].next_offset = 12_345
            if wrong == "identity":
                state.identity = "another"
            writer = LogWriter(
                {"bootstrap.servers": kafka.bootstrap_servers},
                topic=topic,
                snapshot_topic=f"{topic}.snapshots",
                timeout_ms=10_000,
            )
            due = SnapshotDue(0, state.next_offset, anchor_of(last), state.encode(), "")
            writer.write_snapshot(due, 1, "someone")
            assert writer.flush(60) == 0
            if wrong == "position":
                assert heard.heard.wait(60)
                while marshal.failure is None:
                    heard.heard.wait(0.01)
                assert len(reader.mismatches) == 1
                with pytest.raises(SnapshotMismatch, match="someone's snapshot"):
                    marshal.claim("t", 1, timeout_s=60)
                return
            # A record that is read after the snapshot: the snapshot has been compared by then.
            while not read.wait(0.1) or 0 not in reader.newest_snapshot:
                writer.append(0, 0, b"x")
                writer.flush(60)
            assert heard.heard.is_set() == (wrong == "identity")
            assert marshal.claim("t", 1, timeout_s=60).held
    finally:
        logger.removeHandler(heard)
