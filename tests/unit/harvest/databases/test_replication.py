"""What the stream of a slot tells its server, without a server."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from harvest.core.wal_layout import GOHARVEST
from harvest.databases.postgres import replication
from harvest.databases.postgres.pgoutput import Decoder
from harvest.databases.postgres.replication import PostgresWalStream


class Server:
    """Stands in for libpq's connection: keeps what it is told."""

    nonblocking = 1

    def __init__(self) -> None:
        self.told: list[tuple[int, int, int]] = []
        """(received, flushed, applied)."""
        self.finished = False

    def put_copy_data(self, message: bytes) -> None:
        kind, *lsns, _, _ = struct.unpack("!cQQQqB", message)
        assert kind == b"r"
        assert not self.finished
        self.told.append(tuple(lsns))

    def flush(self) -> int:
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
