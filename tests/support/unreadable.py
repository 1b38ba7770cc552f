"""Messages with a header whose name is not UTF-8, which confluent-kafka cannot write."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Consumer, Message, TopicPartition

__all__ = ["make_unreadable", "unreadable_message"]

_TOPIC, _VALUE, _HEADERS, _END = 1, 4, 10, 0
"""What the words of `rd_kafka_producev` are about (`rd_kafka_vtype_t`)."""


def make_unreadable(message: Any) -> Any:
    """Have a fake answer as confluent-kafka does: the first question raises."""

    def refuse() -> None:
        raise SystemError("'headers' returned a result with an exception set")

    message.headers = refuse
    message.set_headers = lambda headers: setattr(message, "headers", lambda: headers)
    return message


def unreadable_message() -> Message:
    """Return a real one, of partition 0 of topic t, by way of librdkafka's mock of Kafka."""
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
    client = ctypes.c_void_p(rd.rd_kafka_new(0, conf, why, 512))
    try:
        cluster = ctypes.c_void_p(rd.rd_kafka_handle_mock_cluster(client))
        servers = rd.rd_kafka_mock_cluster_bootstraps(cluster).decode()
        rd.rd_kafka_mock_topic_create(cluster, b"t", 1, 1)
        headers = ctypes.c_void_p(rd.rd_kafka_headers_new(ctypes.c_size_t(1)))
        size = ctypes.c_ssize_t
        rd.rd_kafka_header_add(headers, b"\xff\xfe", size(2), b"v", size(1))
        topic = (ctypes.c_int(_TOPIC), ctypes.c_char_p(b"t"))
        value = (ctypes.c_int(_VALUE), ctypes.c_char_p(b"x"), ctypes.c_size_t(1))
        with_headers = (ctypes.c_int(_HEADERS), headers, ctypes.c_int(_END))
        assert rd.rd_kafka_producev(client, *topic, *value, *with_headers) == 0
        assert rd.rd_kafka_flush(client, 10_000) == 0
        return _read(servers)
    finally:
        rd.rd_kafka_destroy(client)


def _read(servers: str) -> Message:
    settings = {"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition("t", 0, 0)])
        message = consumer.poll(10.0)
        assert message is not None
        assert message.error() is None
        return message
    finally:
        consumer.close()
