"""What the stream of a slot tells its server, without a server."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest
from psycopg import pq

from harvest.core.wal_layout import GOHARVEST
from harvest.core.wal_position import WalPosition
from harvest.core.wal_slot import ServerState, SlotState, starting_position
from harvest.databases.postgres import replication
from harvest.databases.postgres.pgoutput import Decoder, NotBinary
from harvest.databases.postgres.replication import (
    PostgresWalStream,
    ReplicationConnection,
    SlotInUse,
    TextUnreadable,
)
from harvest.errors import CheckpointError, StoreUnavailable


class Server:
    """Stands in for libpq's connection: keeps what it is told."""

    nonblocking = 1

    def __init__(self) -> None:
        self.told: list[tuple[int, int, int]] = []
        """(received, flushed, applied)."""
        self.finished = False
        self.asked = 0
        """How often it was to answer at once."""
        self.flushed: list[tuple[int, int]] = []
        """So many messages; 1 if it did not wait for the socket."""

    def put_copy_data(self, message: bytes) -> None:
        kind, *lsns, _, asks = struct.unpack("!cQQQqB", message)
        assert kind == b"r"
        assert not self.finished
        self.asked += asks
        self.told.append(tuple(lsns))

    def flush(self) -> int:
        self.flushed.append((len(self.told), self.nonblocking))
        return 0

    def finish(self) -> None:
        self.finished = True


def stream_to(server: Any, at: int = 100) -> PostgresWalStream:
    return PostgresWalStream(server, Decoder(GOHARVEST, b"harvest.outbox"), at)


def test_what_was_confirmed_once_stays_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that keeps a slot goes back as it is told."""
    for interval in ("_CONFIRM_EVERY_S", "_STATUS_EVERY_S"):
        monkeypatch.setattr(replication, interval, 0.0)
    server = Server()
    stream = stream_to(server)
    for lsn in (300, 200, 301):
        stream.confirm(lsn)
    assert server.told == [(300, 300, 300), (300, 300, 300), (301, 301, 301)]


def test_what_is_confirmed_is_told_at_the_end_and_not_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for interval in ("_CONFIRM_EVERY_S", "_STATUS_EVERY_S"):
        monkeypatch.setattr(replication, interval, 3_600.0)
    for confirmed in (0, 300):
        server = Server()
        stream = stream_to(server)
        stream.confirm(confirmed)
        assert server.told == []
        stream.close()
        assert server.told == [(300, 300, 300)] * (confirmed > 0)
        assert server.finished


def test_what_is_told_is_sent_at_once_and_at_the_end_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """libpq keeps what a busy socket did not take, and forgets it when it is closed."""
    monkeypatch.setattr(replication, "_CONFIRM_EVERY_S", 0.0)
    server = Server()
    stream = stream_to(server)
    stream.confirm(300)
    assert server.flushed == [(1, 1)]
    monkeypatch.setattr(replication, "_CONFIRM_EVERY_S", 3_600.0)
    stream.confirm(400)
    stream.close()
    assert server.flushed == [(1, 1), (2, 0)]


def keepalive(lsn: int, *, asks: bool) -> bytes:
    return b"k" + struct.pack("!QqB", lsn, 0, asks)


class Stream(Server):
    """It has these messages; then no more for now, or an end for some reason."""

    def __init__(self, *messages: bytes, end: tuple[bytes, bytes] | None = None) -> None:
        super().__init__()
        self._messages = list(messages)
        self._end = end
        self.error_message = b""

    def get_copy_data(self, asynchronous: int) -> tuple[int, bytes]:
        assert asynchronous == 1
        if self._messages:
            return 1, self._messages.pop(0)
        return (0, b"") if self._end is None else (-1, b"")

    def consume_input(self) -> None: ...

    def get_result(self) -> Any:
        if self._end is None:
            return None
        code, said = self._end
        return SimpleNamespace(error_message=said, error_field=lambda _: code)


def test_a_server_that_has_asked_is_answered_though_more_came_behind() -> None:
    server = Stream(keepalive(200, asks=True), keepalive(300, asks=False))
    stream = stream_to(server)
    done = stream.read(10, 1 << 20)
    assert done is not None
    assert (done.asked, done.lsn, list(done.chunks)) == (True, 300, [])
    assert stream.read(10, 1 << 20) is None
    stream.confirm(250)
    stream.close()
    assert server.told == [(300, 250, 250)], "what was received, and what is published"


def test_a_server_that_says_nothing_though_it_was_asked_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A walsender that hangs alone holds its connection: nothing else tells of it."""
    now_s = [1_000.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    server = Stream()
    stream = stream_to(server)

    def idle_for(seconds: float) -> None:
        now_s[0] += seconds
        stream.keep_alive()
        assert stream.read(10, 1 << 20) is None

    idle_for(replication._ASK_AFTER_S - 1)
    assert server.asked == 0
    idle_for(2)
    idle_for(replication._SILENT_S - 1)
    assert server.asked == 1
    server._messages.append(keepalive(200, asks=False))
    now_s[0] += replication._SILENT_S  # there was no room for what it sent
    assert stream.read(10, 1 << 20) is not None
    idle_for(replication._ASK_AFTER_S + 1)
    assert server.asked == 2, "it has answered the first time"
    now_s[0] += replication._SILENT_S + 1
    with pytest.raises(StoreUnavailable, match="the server says nothing"):
        stream.read(10, 1 << 20)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (b"22021", TextUnreadable),
        (b"22P05", TextUnreadable),
        (b"57P01", StoreUnavailable),
    ],
)
def test_a_stream_that_ends_says_why(code: bytes, kind: type[StoreUnavailable]) -> None:
    stream = stream_to(Stream(end=(code, b"because\nof that")))
    heard: list[str] = []
    stream.on_unreadable = lambda: heard.append("unreadable")
    with pytest.raises(StoreUnavailable, match="the stream ended: because of that") as ended:
        stream.read(10, 1 << 20)
    assert type(ended.value) is kind
    assert len(heard) == (kind is TextUnreadable)


def test_a_type_that_has_changed_is_told_before_the_stream_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def feed(_: Decoder, __: bytes) -> None:
        raise NotBinary("kafka_value")

    monkeypatch.setattr(Decoder, "feed", feed)
    stream = stream_to(Stream(b"w" + bytes(24) + b"R"))
    heard: list[str] = []
    stream.on_not_binary = lambda: heard.append("not binary")
    with pytest.raises(NotBinary, match="kafka_value"):
        stream.read(10, 1 << 20)
    assert heard == ["not binary"]


class Walsender:
    """Stands in for libpq: answers what it is asked, or refuses."""

    status = pq.ConnStatus.OK
    server_version = 160000
    error_message = b"refused\n"
    nonblocking = 0
    setting = pq.ExecStatus.COMMAND_OK

    def __init__(self, answer: Any = None) -> None:
        self.asked: list[str] = []
        self.finished = False
        self._answer = answer

    def exec_(self, command: bytes) -> Any:
        self.asked.append(command.decode())
        return answer(self.setting) if command.startswith(b"SET ") else self._answer

    def finish(self) -> None:
        self.finished = True


def connected(monkeypatch: pytest.MonkeyPatch, server: Any) -> ReplicationConnection:
    monkeypatch.setattr(pq, "PGconn", SimpleNamespace(connect=lambda _: server))
    return ReplicationConnection("host=h")


def answer(status: pq.ExecStatus, *row: bytes, code: bytes = b"") -> Any:
    return SimpleNamespace(
        status=status,
        ntuples=1,
        nfields=len(row),
        get_value=lambda _, column: row[column],
        error_field=lambda _: code,
    )


def test_a_connection_that_is_refused_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Walsender()
    server.status = pq.ConnStatus.BAD
    with pytest.raises(StoreUnavailable, match=r"no replication connection.*: refused"):
        connected(monkeypatch, server)
    assert server.finished


@pytest.mark.parametrize(("code", "kind"), [(b"55006", SlotInUse), (b"42704", StoreUnavailable)])
def test_only_a_slot_in_use_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, code: bytes, kind: type[StoreUnavailable]
) -> None:
    server = Walsender(answer(pq.ExecStatus.FATAL_ERROR, code=code))
    connection = connected(monkeypatch, server)
    decoder = Decoder(GOHARVEST, b"p")
    with pytest.raises(StoreUnavailable, match="the slot s cannot be read: refused") as refused:
        connection.start("s", 5, "p", decoder, binary=True)
    assert type(refused.value) is kind


def test_no_stream_in_a_form_that_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Walsender(answer(pq.ExecStatus.COPY_BOTH))
    server.setting = pq.ExecStatus.FATAL_ERROR
    connection = connected(monkeypatch, server)
    with pytest.raises(StoreUnavailable, match="the database refused SET bytea_output = hex"):
        connection.start("s", 5, "p", Decoder(GOHARVEST, b"p"), binary=False)


def test_a_stream_does_not_wait_for_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Walsender(answer(pq.ExecStatus.COPY_BOTH))
    connection = connected(monkeypatch, server)
    connection.start('s"', 0x1_0000_0005, "it's", Decoder(GOHARVEST, b"p"), binary=False)
    assert server.nonblocking == 1
    assert server.asked[0] == "SET bytea_output = hex; SET datestyle = ISO"
    (asked,) = server.asked[1:]
    assert asked.startswith('START_REPLICATION SLOT "s""" LOGICAL 1/5 (')
    assert """publication_names '"it''s"'""" in asked
    assert "binary" not in asked


@pytest.mark.parametrize(
    ("version", "given", "command"),
    [
        (140000, {}, "LOGICAL pgoutput EXPORT_SNAPSHOT"),
        (160000, {"temporary": True}, "TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')"),
        (170000, {"failover": True}, "LOGICAL pgoutput (SNAPSHOT 'export', FAILOVER true)"),
    ],
)
def test_a_slot_is_made_as_the_server_can(
    monkeypatch: pytest.MonkeyPatch, version: int, given: dict[str, bool], command: str
) -> None:
    server = Walsender(answer(pq.ExecStatus.TUPLES_OK, b"s", b"0/10", b"snap", b"p"))
    server.server_version = version
    assert connected(monkeypatch, server).create_slot("s", **given) == (16, "snap")
    assert server.asked == [f'CREATE_REPLICATION_SLOT "s" {command}']


def test_what_is_refused_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Walsender(answer(pq.ExecStatus.FATAL_ERROR))
    with pytest.raises(StoreUnavailable, match="the database refused IDENTIFY_SYSTEM: refused"):
        connected(monkeypatch, server).server()


class First(Walsender):
    """On its first timeline, of which there is no history."""

    def exec_(self, command: bytes) -> Any:
        if command.startswith(b"TIMELINE_HISTORY"):
            return answer(pq.ExecStatus.FATAL_ERROR)
        return answer(pq.ExecStatus.TUPLES_OK, b"7", b"1", b"0/50", b"d")


@pytest.mark.parametrize("timeline", [None, 1, 2])
def test_a_server_on_its_first_timeline_has_no_history(
    timeline: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former primary again, after a replica was promoted: what was published from that one is
    not here, and it is refused for that, with the way out."""
    server = connected(monkeypatch, First()).server(timeline)
    assert server == ServerState("7", 1, 0x50)
    position = WalPosition(1, "7", 2, 0x40, row_lsn=0x40)
    with pytest.raises(CheckpointError, match="timeline 2, and this server has that timeline up t"):
        starting_position(1, position, "s", SlotState("s"), server, "d")
