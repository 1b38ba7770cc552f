"""PostgreSQL's streaming replication protocol, through libpq as psycopg exposes it.

psycopg's own support for it is in the making: this is the seam where theirs can take its place.
One `ReplicationConnection` is one walsender of the server.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harvest.core.wal import ReadDone
from harvest.core.wal_position import format_lsn, parse_lsn
from harvest.core.wal_slot import ServerState, TimelineSwitch
from harvest.databases.postgres.pgoutput import Decoder, NotBinary
from harvest.errors import StoreUnavailable

__all__ = ["PostgresWalStream", "ReplicationConnection", "SlotInUse", "TextUnreadable"]

_XLOG_DATA: Final = ord("w")
_KEEPALIVE: Final = ord("k")
_status: Final = struct.Struct("!cQQQqB").pack
_u64: Final = struct.Struct("!Q").unpack_from
_EPOCH_S: Final = 946_684_800  # 2000-01-01, from which PostgreSQL counts
_STATUS_EVERY_S: Final = 1.0
_CONFIRM_EVERY_S: Final = 0.05
_ASK_AFTER_S: Final = 30.0
"""So long nothing came: then the server is asked for an answer."""
_SILENT_S: Final = 90.0
"""So long it may take for that: together twice what PostgreSQL's own replicas wait."""
_IN_USE: Final = b"55006"
_NO_UTF8: Final = {b"22021", b"22P05"}  # not in the encoding; in it, and not in Unicode


class SlotInUse(StoreUnavailable):
    """Somebody else reads the slot."""


class TextUnreadable(StoreUnavailable):
    """The server cannot convert what is in a row to UTF-8, and has ended the stream."""


class ReplicationConnection:
    """A connection in replication mode to the database of `conninfo`. Raises `StoreUnavailable`."""

    def __init__(self, conninfo: str) -> None:
        settings = {**conninfo_to_dict(conninfo), "replication": "database"}
        self._pg = pq.PGconn.connect(make_conninfo("", **settings).encode())
        if self._pg.status != pq.ConnStatus.OK:
            text = _said(self._pg)
            self._pg.finish()
            raise StoreUnavailable(f"no replication connection to the database: {text}")
        self.version = self._pg.server_version

    @property
    def pg(self) -> pq.abc.PGconn:
        """libpq's connection."""
        return self._pg

    def server(self, timeline: int | None = None) -> ServerState:
        """What the server says of itself; with its history if it is not on `timeline`."""
        ((system, its, lsn, *_),) = self._ask("IDENTIFY_SYSTEM")
        history: Sequence[TimelineSwitch] = ()
        if timeline is not None and int(its) not in (1, timeline):  # the first has none
            ((_, content),) = self._ask(f"TIMELINE_HISTORY {int(its)}")
            history = _history(content)
        return ServerState(system.decode(), int(its), parse_lsn(lsn.decode()), history)

    def create_slot(
        self, name: str, *, failover: bool = False, temporary: bool = False
    ) -> tuple[int, str]:
        """Make a logical slot; where it begins, and a snapshot of what was committed before.

        The snapshot can be used until the next command on this connection; a slot that is
        `temporary` is dropped with the connection.
        """
        if self.version >= 150000:
            options = "SNAPSHOT 'export'" + (", FAILOVER true" if failover else "")
            options = f"({options})"
        else:
            options = "EXPORT_SNAPSHOT"
        kept = " TEMPORARY" if temporary else ""
        command = f"CREATE_REPLICATION_SLOT {_quoted(name)}{kept} LOGICAL pgoutput {options}"
        ((_, lsn, snapshot, _),) = self._ask(command)
        return parse_lsn(lsn.decode()), snapshot.decode()

    def keep_slot(self, temporary: str, name: str) -> None:
        """Copy a temporary slot to one that stays."""
        given = f"{_literal(temporary)}, {_literal(name)}"
        self._ask(f"SELECT pg_copy_logical_replication_slot({given}, false)")

    def let_fail_over(self, name: str) -> None:
        """Let replicas keep the slot, too (PostgreSQL 17)."""
        self._run(f"ALTER_REPLICATION_SLOT {_quoted(name)} (FAILOVER true)")

    def start(
        self, slot: str, lsn: int, publication: str, decoder: Decoder, *, binary: bool
    ) -> PostgresWalStream:
        """Stream from `lsn`. Raises `SlotInUse`, too."""
        if not binary:
            self._run("SET bytea_output = hex; SET datestyle = ISO")  # as they are read here
        options = {
            "proto_version": "1",
            "publication_names": _quoted(publication),
            "messages": "true",
            **({"binary": "true"} if binary else {}),
        }
        given = ", ".join(f"{name} {_literal(value)}" for name, value in options.items())
        command = f"START_REPLICATION SLOT {_quoted(slot)} LOGICAL {format_lsn(lsn)} ({given})"
        result = self._pg.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            in_use = result.error_field(pq.DiagnosticField.SQLSTATE) == _IN_USE
            kind = SlotInUse if in_use else StoreUnavailable
            raise kind(f"the slot {slot} cannot be read: {_said(self._pg)}")
        self._pg.nonblocking = 1
        return PostgresWalStream(self._pg, decoder, lsn)

    def close(self) -> None:
        """End the connection."""
        self._pg.finish()

    def _run(self, command: str) -> None:
        if self._pg.exec_(command.encode()).status != pq.ExecStatus.COMMAND_OK:
            raise StoreUnavailable(f"the database refused {command}: {_said(self._pg)}")

    def _ask(self, command: str) -> list[tuple[bytes, ...]]:
        result = self._pg.exec_(command.encode())
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise StoreUnavailable(f"the database refused {command.split()[0]}: {_said(self._pg)}")
        return [
            tuple([result.get_value(row, column) or b"" for column in range(result.nfields)])
            for row in range(result.ntuples)
        ]


class PostgresWalStream:
    """Rows from a slot. Implements `harvest.core.interfaces.wal_stream.WalStream`."""

    def __init__(self, pg: pq.abc.PGconn, decoder: Decoder, lsn: int) -> None:
        self._pg = pg
        self._decoder = decoder
        self._received_lsn = lsn
        self._confirmed_lsn = 0
        """What the server was told; 0: it knows itself."""
        self._to_confirm_lsn = 0
        self._told_s = time.monotonic()
        self._heard_s = self._told_s
        self._asked_s: float | None = None
        """Since when an answer is waited for."""
        self.on_unreadable: Callable[[], None] = lambda: None
        """Called before `TextUnreadable` is raised."""
        self.on_not_binary: Callable[[], None] = lambda: None
        """Called before `NotBinary` is raised."""

    def fileno(self) -> int:
        """See `WalStream.fileno`."""
        with _breaking_off():
            return self._pg.socket

    def read(self, limit: int, limit_bytes: int) -> ReadDone | None:
        """See `WalStream.read`."""
        try:
            with _breaking_off():
                return self._read(limit, limit_bytes)
        except NotBinary:
            self.on_not_binary()
            raise

    def _read(self, limit: int, limit_bytes: int) -> ReadDone | None:
        decoder, get, feed = self._decoder, self._pg.get_copy_data, self._decoder.feed
        came = asked = is_empty = False
        lsn = 0
        while decoder.rows < limit and decoder.size_bytes < limit_bytes:
            size, data = get(1)
            if size == 0:
                if is_empty:
                    break
                self._pg.consume_input()
                is_empty = True
                continue
            if size < 0:
                raise self._why()
            came, is_empty = True, False
            if data[0] == _XLOG_DATA:
                feed(data)
            elif data[0] == _KEEPALIVE:
                lsn = self._received_lsn = _u64(data, 1)[0]
                asked = asked or bool(data[17])
        if not came:
            self._check_silence()
            return None
        self._heard_s, self._asked_s = time.monotonic(), None
        self._received_lsn = max(self._received_lsn, decoder.lsn)
        return ReadDone(decoder.take(), max(lsn, decoder.lsn), asked)

    def keep_alive(self) -> None:
        """See `WalStream.keep_alive`."""
        now_s = time.monotonic()
        confirms = self._to_confirm_lsn > self._confirmed_lsn
        every_s = _CONFIRM_EVERY_S if confirms else _STATUS_EVERY_S
        if now_s >= self._told_s + every_s:
            self._tell()

    def confirm(self, lsn: int) -> None:
        """See `WalStream.confirm`."""
        self._to_confirm_lsn = max(self._to_confirm_lsn, lsn)
        self.keep_alive()

    def close(self) -> None:
        """See `WalStream.close`."""
        with contextlib.suppress(StoreUnavailable), _breaking_off():
            if self._to_confirm_lsn > self._confirmed_lsn:
                self._pg.nonblocking = 0
                self._tell()
        self._pg.finish()

    def _check_silence(self) -> None:
        now_s = time.monotonic()
        if self._asked_s is None:
            if now_s > self._heard_s + _ASK_AFTER_S:
                self._asked_s = now_s
                self._tell(asks=True)
        elif now_s > self._asked_s + _SILENT_S:
            said = f"the server says nothing, though it was asked {_SILENT_S:.0f} s ago"
            raise StoreUnavailable(f"the stream is given up: {said}")

    def _tell(self, *, asks: bool = False) -> None:
        lsn = self._to_confirm_lsn
        now = int((time.time() - _EPOCH_S) * 1_000_000)
        received = max(self._received_lsn, lsn)
        with _breaking_off():
            self._pg.put_copy_data(_status(b"r", received, lsn, lsn, now, asks))
            self._pg.flush()
        self._confirmed_lsn = lsn
        self._told_s = time.monotonic()

    def _why(self) -> StoreUnavailable:
        result = self._pg.get_result()
        kind, said = StoreUnavailable, _said(self._pg) or "the server closed it"
        if result is not None and result.error_message:
            said = " ".join(result.error_message.decode("utf-8", "replace").split())
            if result.error_field(pq.DiagnosticField.SQLSTATE) in _NO_UTF8:
                kind = TextUnreadable
                self.on_unreadable()
        return kind(f"the stream ended: {said}")


@contextlib.contextmanager
def _breaking_off() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        said = " ".join(str(error).split())
        raise StoreUnavailable(f"the stream broke off: {said}") from error


def _history(content: bytes) -> list[TimelineSwitch]:
    """A timeline's history file: a line for each earlier one, `timeline LSN reason`."""
    switches = []
    for line in content.decode("utf-8", "replace").splitlines():
        fields = line.split(None, 2)
        if len(fields) >= 2 and fields[0].isdigit():
            switches.append(TimelineSwitch(int(fields[0]), parse_lsn(fields[1])))
    return switches


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _said(pg: pq.abc.PGconn) -> str:
    return " ".join(pg.error_message.decode("utf-8", "replace").split())
