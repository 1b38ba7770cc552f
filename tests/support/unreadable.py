"""Messages with a header whose name is not UTF-8, which confluent-kafka cannot write."""

from __future__ import annotations

import ctypes
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition

from tests.support.mock_brokers import mock_brokers

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
    with mock_brokers() as brokers:
        rd = brokers.rd
        rd.rd_kafka_mock_topic_create(brokers.cluster, b"t", 1, 1)
        headers = ctypes.c_void_p(rd.rd_kafka_headers_new(ctypes.c_size_t(1)))
        size = ctypes.c_ssize_t
        rd.rd_kafka_header_add(headers, b"\xff\xfe", size(2), b"v", size(1))
        topic = (ctypes.c_int(_TOPIC), ctypes.c_char_p(b"t"))
        value = (ctypes.c_int(_VALUE), ctypes.c_char_p(b"x"), ctypes.c_size_t(1))
        with_headers = (ctypes.c_int(_HEADERS), headers, ctypes.c_int(_END))
        assert rd.rd_kafka_producev(brokers.client, *topic, *value, *with_headers) == 0
        assert rd.rd_kafka_flush(brokers.client, 10_000) == 0
        return _read(brokers.servers)


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
