"""Text of another encoding is converted by the server, and asked for as seldom as may be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from harvest.core.wal_options import WalOptions
from harvest.core.wal_position import WalPosition
from harvest.databases.postgres import wal
from harvest.databases.postgres.encoding import Converter
from harvest.databases.postgres.wal import PostgresWalSource


class Server:
    """Knows one encoding: it takes every byte for the letter above 0x100."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, encoding: str = "LATIN2") -> None:
        self.encoding = encoding
        self.asked: list[bytes] = []
        self.connected = self.closes = 0
        self.is_gone = self.lost = False
        self.info = SimpleNamespace(parameter_status=lambda _: self.encoding)
        monkeypatch.setattr(psycopg, "connect", self._connect)

    def _connect(self, conninfo: str, *, autocommit: bool) -> Any:
        assert (conninfo, autocommit) == ("host=d", True)
        self.connected += 1
        self.lost = False
        return self

    @property
    def closed(self) -> bool:
        return self.lost

    def execute(self, _: str, given: tuple[bytes], *, binary: bool) -> Any:
        assert binary
        if self.is_gone:
            self.is_gone, self.lost = False, True
        if self.lost:
            raise psycopg.OperationalError("the connection is lost")
        self.asked.append(given[0])
        if b"?" in given[0]:
            raise psycopg.DataError("invalid byte\nsequence")
        converted = given[0].decode("latin-1").translate({n: n + 256 for n in range(128, 256)})
        return SimpleNamespace(fetchone=lambda: (converted.encode(),))

    def close(self) -> None:
        self.closes += 1


def test_text_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    converter = Converter("host=d")
    assert server.connected == 0
    for _ in range(3):
        assert converter.to_utf8(b"a\x80") == "a\u0180".encode()
    assert converter.to_utf8(b"b") == b"b"
    assert (server.asked, server.connected) == ([b"a\x80", b"b"], 1)


def test_what_cannot_be_converted_is_a_value_error_and_the_next_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Server(monkeypatch)
    converter = Converter("host=d")
    with pytest.raises(ValueError, match="invalid byte sequence"):
        converter.to_utf8(b"?")
    assert converter.to_utf8(b"b") == b"b"


def test_of_bytes_without_an_encoding_utf_8_is_taken_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(monkeypatch, "SQL_ASCII")
    converter = Converter("host=d")
    assert converter.to_utf8("é".encode()) == "é".encode()
    with pytest.raises(ValueError, match="utf-8"):
        converter.to_utf8(b"\xff")
    assert server.asked == []


def test_who_closes_it_may_use_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    converter = Converter("host=d")
    converter.close()
    converter.to_utf8(b"a")
    converter.close()
    converter.close()
    assert (server.connected, server.closes) == (1, 1)
    converter.to_utf8(b"b")
    assert server.connected == 2


def test_a_connection_that_is_lost_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the stream would break off at the same text again and again."""
    server = Server(monkeypatch)
    converter = Converter("host=d")
    converter.to_utf8(b"a")
    server.is_gone = True
    with pytest.raises(psycopg.OperationalError):
        converter.to_utf8(b"b")
    assert converter.to_utf8(b"b") == b"b"
    assert server.connected == 2


def test_the_stream_after_that_of_what_cannot_be_read_as_usual_is_an_ordinary_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In text form every value costs more, and every text a question to the server."""
    begun: list[tuple[str, bool, bool]] = []

    class Connection:
        def __init__(self, conninfo: str) -> None:
            self.encoding = str(conninfo_to_dict(conninfo)["client_encoding"])

        def server(self, _: object) -> None: ...

    def start(connection: Connection, *_: object, as_stored: bool, in_text: bool) -> str:
        begun.append((connection.encoding, as_stored, in_text))
        return "a stream"

    monkeypatch.setattr(wal, "ReplicationConnection", Connection)
    source = PostgresWalSource("host=d", "outbox", WalOptions(slot="s"))
    monkeypatch.setattr(source, "_check", lambda _: None)
    monkeypatch.setattr(source, "_publication_findings", list)
    monkeypatch.setattr(source, "_begin", lambda *_: WalPosition(1, "s", 1, 100))
    monkeypatch.setattr(source, "_start", start)
    source.open(1, None)
    for read_otherwise in (source._read_as_stored, source._read_in_text):
        read_otherwise()
        source.open(1, None)
        source.open(1, None)
    usual = ("UTF8", False, False)
    assert begun == [usual, ("SQL_ASCII", True, True), usual, ("UTF8", False, True), usual]
