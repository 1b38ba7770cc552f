"""What a driver does beside its claimant: who listens to it, when pauses and snapshots are due."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from marshal_py import Marshal
from marshal_py.client import driver as driver_module
from marshal_py.client.driver import MIN_SNAPSHOT_GAP_S
from marshal_py.client.marshal import driver_of
from marshal_py.client.topic_watch import LOOK_EVERY_S
from marshal_py.errors import BrokerUnavailable


class Client:
    """A client that was never connected, as if it ran, and its clocks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.wall_s = 100.0, 1_700_000_000.0
        clock = SimpleNamespace(
            **{**vars(time), "monotonic": lambda: self.now_s, "time": lambda: self.wall_s}
        )
        monkeypatch.setattr("marshal_py.client.driver.time", clock)
        self.marshal = Marshal("127.0.0.1:1", group_id="g", client_id="me", snapshot_every=1_000)
        self.driver: Any = driver_of(self.marshal)
        self.driver.running = True


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    return Client(monkeypatch)


def test_who_listens_hears_of_another_log_in_the_hook_thread_and_until_it_stops(
    client: Client,
) -> None:
    """In the driver's own thread, under its lock, a slow listener would delay heartbeats."""
    told: list[tuple[str, str]] = []
    driver = client.driver

    def hear(why: str) -> None:
        told.append((threading.current_thread().name, why))

    stop = client.marshal.listen(lambda *_: None, hear)
    with driver.lock:
        for start_over in driver.restarted:
            start_over("made anew")
    stop()
    assert (driver.restarted, driver._listeners) == ([], [])
    stop()
    driver._thread = driver.claimant = driver._writer = driver.reader = mock.MagicMock()
    client.marshal.close(60)
    assert told == [("marshal-hooks", "made anew")]
    assert not driver.hooks._thread.is_alive(), "it ends with the client"


def test_a_pause_that_is_over_by_the_wall_clock_is_looked_for_once_a_second(
    client: Client,
) -> None:
    asked: list[float] = []
    client.driver.claimant = SimpleNamespace(end_expired_pause=asked.append)
    client.driver._end_expired_pauses()
    client.now_s += 0.25
    client.driver._end_expired_pauses()
    assert asked == [1_700_000_000_000.0], "milliseconds, as the log has them"
    client.now_s, client.wall_s = client.now_s + 1.5, client.wall_s + 3_600
    client.driver._end_expired_pauses()
    assert asked[1:] == [1_700_003_600_000.0]


def test_whoever_crossed_a_boundary_writes_its_snapshot_where_enough_came_and_not_too_often(
    client: Client,
) -> None:
    driver, mine = client.driver, client.marshal.instance_id
    driver.reader = SimpleNamespace(newest_snapshot={0: 500})
    assert driver._writer_of(0, 1_499, mine) == ""
    assert driver._writer_of(0, 1_500, "another") == ""
    assert driver._writer_of(0, 1_500, mine) == "me"
    client.now_s += MIN_SNAPSHOT_GAP_S - 1
    assert driver._writer_of(0, 9_000, mine) == ""
    assert driver._writer_of(1, 1_000, mine) == "me", "of another partition"
    client.now_s += 1
    assert driver._writer_of(0, 9_000, mine) == "me"


@pytest.mark.parametrize(("wire", "snapshots"), [("msgpack", "log.snapshots"), ("text", None)])
def test_topics_are_made_in_the_time_that_a_start_may_take(
    monkeypatch: pytest.MonkeyPatch, wire: Any, snapshots: str | None
) -> None:
    asked: dict[str, Any] = {}

    def ensure_topics(_: object, **how: Any) -> None:
        asked.update(how)
        raise BrokerUnavailable("down")

    monkeypatch.setattr("marshal_py.client.topics.ensure_topics", ensure_topics)
    marshal = Marshal(
        "127.0.0.1:1",
        group_id="g",
        topic="log",
        create_topics=True,
        connect_timeout_ms=1_500,
        wire=wire,
    )
    with pytest.raises(BrokerUnavailable):
        marshal.start()
    assert asked == {"topic": "log", "snapshot_topic": snapshots, "timeout_s": 1.5}


@pytest.mark.parametrize(
    ("wire", "interval_ms", "looks_s", "writes_ms"),
    [
        ("msgpack", 5_000, 5.0, 10_000),
        ("msgpack", 100, 0.2, 5_000),
        ("msgpack", 60_000, LOOK_EVERY_S, 120_000),
        ("text", 60_000, LOOK_EVERY_S, 30_000),
    ],
)
def test_how_long_a_log_is_waited_for_goes_by_the_interval(
    monkeypatch: pytest.MonkeyPatch, wire: Any, interval_ms: int, looks_s: float, writes_ms: int
) -> None:
    """A heartbeat that comes later is of no use; in version 1 it would do harm."""
    marshal = Marshal(
        "127.0.0.1:1",
        group_id="g",
        client_id="me",
        topic="log",
        interval_ms=interval_ms,
        gather_ms=7,
        wire=wire,
    )
    driver: Any = driver_of(marshal)
    reader, writer = mock.Mock(), mock.Mock()
    monkeypatch.setattr("marshal_py.client.driver.LogReader", reader)
    monkeypatch.setattr("marshal_py.client.driver.LogWriter", writer)
    driver._replay = lambda: None
    driver._connect()
    where = {"topic": "log", "snapshot_topic": "log.snapshots"}
    kafka = {"client.id": "marshal-me", "bootstrap.servers": "127.0.0.1:1"}
    assert writer.call_args == mock.call(kafka, **where, timeout_ms=writes_ms)
    assert reader.call_args.args == (kafka,)
    told = dict(reader.call_args.kwargs)
    assert told.pop("wire").name == wire
    assert told == {
        **where,
        "look_every_s": looks_s,
        "doubt_after_s": 2 * interval_ms / 1_000,
        "groups": {"g"} if wire == "msgpack" else None,
        "gather_ms": 7,
        "admin": driver.admin,
    }
    assert driver.reader.writer_of == driver._writer_of
    assert driver.mismatches is driver.reader.mismatches


def test_before_the_start_nothing_is_refused_and_nothing_has_failed() -> None:
    marshal = Marshal("127.0.0.1:1", group_id="g")
    assert (marshal.refused, marshal.failure, marshal.snapshot_mismatches) == (None, None, ())


def test_a_client_ends_in_the_time_that_is_given_and_keeps_its_claims_if_told(
    client: Client,
) -> None:
    ended: list[tuple[float, bool]] = []
    client.driver.close = lambda timeout_s, *, release: ended.append((timeout_s, release))
    client.marshal.close(2.5, release=False)
    client.marshal.close()
    assert ended == [(2.5, False), (10.0, True)]


def test_what_a_member_tells_the_others_is_written_at_once_with_its_positions(
    client: Client,
) -> None:
    did: list[Any] = []
    client.driver.check_open = lambda: did.append("is open")
    client.driver.refresh_offsets = lambda: did.append("positions")
    client.driver.claimant = SimpleNamespace(
        set_member_metadata=lambda metadata, _now_ns: did.append(metadata)
    )
    client.driver.carry_out = lambda: did.append("written")
    client.marshal.set_member_metadata(b"news")
    assert did == ["is open", "positions", b"news", "written"]


@pytest.mark.parametrize(
    ("where", "wire", "more"),
    [
        (
            "marshal_py.client.driver.Claimant",
            "msgpack",
            {"member": False, "member_metadata": b"x", "cold_start_skew_ms": None},
        ),
        ("marshal_py.protocol.text.claimant.TextClaimant", "text", {}),
    ],
)
def test_what_a_program_configures_is_what_its_claims_go_by(
    monkeypatch: pytest.MonkeyPatch, where: str, wire: Any, more: dict[str, Any]
) -> None:
    claimant = mock.Mock()
    monkeypatch.setattr(where, claimant)
    own = {"client_id": "me", "interval_ms": 7_000, "margin_ms": 60, "resume": False, **more}
    marshal = Marshal("127.0.0.1:1", group_id="g", wire=wire, **own)
    reader: Any = SimpleNamespace(world="world", observers="observers")
    driver_module._new_claimant(marshal.settings, reader)
    assert claimant.call_args.args == ("world", "observers")
    told = dict(claimant.call_args.kwargs)
    assert told.pop("wall_s") is time.time
    assert told == {"group_id": "g", "instance_id": marshal.instance_id, **own}
