"""librdkafka's mock of Kafka, whose broker answers requests with errors that a test names."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest

__all__ = ["MockBrokers", "mock_brokers"]

_PRODUCER: Final = 0
_PRODUCE: Final = ctypes.c_int16(0)


class MockBrokers:
    """One broker. `rd` is librdkafka, `client` the client that the mock is part of."""

    def __init__(self, rd: Any, client: ctypes.c_void_p) -> None:
        self.rd = rd
        self.client = client
        self.cluster = ctypes.c_void_p(rd.rd_kafka_handle_mock_cluster(client))
        self.servers: str = rd.rd_kafka_mock_cluster_bootstraps(self.cluster).decode()

    def refuse_produce(self, code: int) -> None:
        """Answer the next request to produce with this error."""
        codes = (ctypes.c_int * 1)(code)
        count = ctypes.c_size_t(1)
        self.rd.rd_kafka_mock_push_request_errors_array(self.cluster, _PRODUCE, count, codes)


@contextmanager
def mock_brokers() -> Iterator[MockBrokers]:
    """Start one broker, and end it."""
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    found = sorted(folder.glob("librdkafka*"))
    if not found:
        pytest.skip("librdkafka is no file beside confluent-kafka here")
    rd = ctypes.CDLL(str(found[0]))
    for name in ("conf_new", "new", "handle_mock_cluster", "headers_new"):
        getattr(rd, f"rd_kafka_{name}").restype = ctypes.c_void_p
    rd.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    why = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(rd.rd_kafka_conf_new())
    rd.rd_kafka_conf_set(conf, b"test.mock.num.brokers", b"1", why, 512)
    rd.rd_kafka_conf_set(conf, b"log_level", b"0", why, 512)
    client = ctypes.c_void_p(rd.rd_kafka_new(_PRODUCER, conf, why, 512))
    try:
        yield MockBrokers(rd, client)
    finally:
        rd.rd_kafka_destroy(client)
