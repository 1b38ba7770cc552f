"""What `Marshal(..., wire="text")` accepts, and what it refuses before it touches the network."""

from __future__ import annotations

from typing import Any

import pytest

from marshal_py import ConfigurationError, Marshal, NotInVersion1
from marshal_py.admin.version1 import pause_group, set_positions
from marshal_py.client.topics import plan_topics
from marshal_py.consumer.consumer import Consumer
from marshal_py.errors import MalformedRecord
from marshal_py.protocol.messages import Heartbeat, encode
from marshal_py.protocol.wire import MSGPACK, text_wire

SERVERS = "127.0.0.1:1"


def made(**settings: Any) -> Marshal:
    return Marshal(SERVERS, **{"group_id": "g", "wire": "text", **settings})


def test_the_defaults_are_gos() -> None:
    settings = made().settings
    assert (settings.interval_ms, settings.margin_ms, settings.topic) == (
        60_000,
        6_000,
        "__marshal",
    )
    assert len(settings.instance_id) == 8
    assert Marshal(SERVERS, group_id="g").settings.interval_ms == 5_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_id": "a/b"}, "group_id = 'a/b' has a slash"),
        ({"client_id": "a/b"}, "client_id = 'a/b' has a slash"),
        ({"interval_ms": 1_500}, "interval_ms = 1500: with wire='text' it must be whole seconds"),
        ({"member_metadata": b"x"}, "member_metadata: version 1"),
        ({"wire": "json"}, "wire = 'json' must be 'msgpack'"),
    ],
)
def test_what_cannot_work_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        made(**settings)


@pytest.mark.parametrize("key", ["compression.type", "compression.codec"])
def test_compression_is_what_go_can_read(key: str) -> None:
    for codec in ("none", "gzip", "snappy"):
        Marshal({"bootstrap.servers": SERVERS, key: codec}, group_id="g", wire="text")
    for codec in ("lz4", "zstd"):
        with pytest.raises(ConfigurationError, match="Go Marshal cannot read it"):
            Marshal({"bootstrap.servers": SERVERS, key: codec}, group_id="g", wire="text")
        Marshal({"bootstrap.servers": SERVERS, key: codec}, group_id="g")


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"mode": "at_most_once"}, NotInVersion1, "at_most_once"),
        ({"weight": 2.0}, NotInVersion1, "weight"),
        ({"by_lag": True}, NotInVersion1, "by_lag"),
        ({"labels": {"a": "b"}}, NotInVersion1, "labels"),
        ({"prefer": ["t/1"]}, NotInVersion1, "prefer"),
        ({"wire": "msgpack", "greedy": True}, ConfigurationError, "greedy"),
    ],
)
def test_a_consumer_refuses_what_version_1_cannot_give(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    given = {"group_id": "g", "topics": "t", "wire": "text", **settings}
    with pytest.raises(error, match=message):
        Consumer(SERVERS, **given)


def test_a_consumer_takes_a_text_client_of_ones_own() -> None:
    assert Consumer(made(), topics="t", greedy=True).marshal.settings.wire == "text"
    with pytest.raises(NotInVersion1):
        Consumer(made(), topics="t", mode="at_most_once")


def test_a_text_log_has_no_snapshot_topic() -> None:
    (plan,) = plan_topics(1, with_snapshots=False)
    assert plan.config["cleanup.policy"] == "delete"


def test_each_wire_knows_the_records_of_the_other() -> None:
    version2 = encode(Heartbeat(2, "c", "i", "g", 0, 1_000))
    version1 = b"Heartbeat/1/2/i/c/g/t/0/1"
    text = text_wire(60)
    assert text.is_other(version2)
    assert MSGPACK.is_other(version1)
    assert MSGPACK.is_other(b"ReleaseGroup/0/1/i/a/g//0/2")
    for value in (b"", b"banana", b"\x00" * 50, b"[1,2]"):
        assert not text.is_other(value)
        assert not MSGPACK.is_other(value)


def test_an_admin_refuses_what_it_cannot_write_before_it_connects() -> None:
    with pytest.raises(ValueError, match="for_s"):
        pause_group(SERVERS, "g", for_s=0)
    with pytest.raises(ValueError, match="offset of t/0"):
        set_positions(SERVERS, "g", {("t", 0): -1})
    assert issubclass(MalformedRecord, ValueError)
