"""A write-ahead log in memory, with one slot: a fake held to the contract of `WalSource`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from harvest.core.row import Row
from harvest.core.wal import Chunk, ReadDone
from harvest.core.wal_position import WalPosition
from harvest.core.wal_slot import ServerState, SlotState, TimelineSwitch, starting_position
from harvest.errors import StoreUnavailable
from harvest.outbox.record import OutboxRecord

__all__ = ["LogTransaction", "MemoryLog", "MemoryWalSource", "MemoryWalStream"]

_RECORD = 8  # what a record takes in the log


@dataclass
class MemoryLog:
    """The log of one server, the slot on it, and who reads the slot."""

    system: str = "memory"
    timeline: int = 1
    end: int = 100
    committed: list[Chunk] = field(default_factory=list)
    history: list[TimelineSwitch] = field(default_factory=list)
    confirmed: int = 100
    exists: bool = True
    lost: bool = False
    reader: int = 0
    fail_next: bool = False
    """The next question finds no server."""

    def begin(self) -> LogTransaction:
        """A transaction of the application."""
        return LogTransaction(self)

    def record(self) -> int:
        """Something is written to the log: where."""
        at, self.end = self.end, self.end + _RECORD
        return at

    @property
    def last_end(self) -> int:
        """Where the last transaction with rows ended, or the log began."""
        return self.committed[-1].end_lsn if self.committed else 100

    def promote(self, lsn: int) -> None:
        """A replica takes over that had the log up to `lsn`, and a copy of the slot."""
        self.history.append(TimelineSwitch(self.timeline, lsn))
        self.timeline += 1
        self.end = lsn
        self.committed = [chunk for chunk in self.committed if chunk.end_lsn <= lsn]
        self.confirmed = min(self.confirmed, lsn)
        self.reader += 1

    def remake_slot(self) -> None:
        """Somebody drops the slot and makes it anew."""
        self.exists, self.lost = True, False
        self.confirmed = self.record() + _RECORD
        self.reader += 1

    def state(self) -> SlotState | None:
        """The slot."""
        if not self.exists:
            return None
        return SlotState(
            "slot", confirmed_lsn=self.confirmed, wal_status="lost" if self.lost else "reserved"
        )


class LogTransaction:
    """Rows that are in the log, and come when it is committed."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._rows: list[Row] = []

    def insert(self, record: OutboxRecord) -> int:
        """Write a record; return its id."""
        row_id = self._log.record()
        key, value = (
            part.encode() if isinstance(part, str) else part for part in (record.key, record.value)
        )
        headers = [(n.encode(), v.encode() if isinstance(v, str) else v) for n, v in record.headers]
        names, values = tuple([n for n, _ in headers]), tuple([v for _, v in headers])
        self._rows.append(Row(row_id, record.topic, key, value, names, values))
        return row_id

    def replace_last(self, row: Row) -> None:
        """What no `OutboxRecord` can be, and a row can."""
        self._rows[-1] = row

    @property
    def last(self) -> Row:
        """The row that was inserted last."""
        return self._rows[-1]

    def commit(self) -> None:
        """The rows come, behind all that was committed before."""
        lsn = self._log.record()
        if self._rows:
            self._log.committed.append(Chunk(lsn, 0, tuple(self._rows), lsn + _RECORD))

    def rollback(self) -> None:
        """The rows never come."""
        self._rows = []


class MemoryWalSource:
    """Reads a `MemoryLog`. Implements `harvest.core.interfaces.wal_stream.WalSource`."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def connect(self) -> None:
        """See `WalSource.connect`."""

    def open(self, epoch: int, position: WalPosition | None) -> tuple[MemoryWalStream, WalPosition]:
        """See `WalSource.open`."""
        log = self._log
        if log.fail_next:
            log.fail_next = False
            raise StoreUnavailable
        server = ServerState(log.system, log.timeline, log.end, log.history)
        begin = starting_position(epoch, position, "slot", log.state(), server, "")
        log.reader += 1
        return MemoryWalStream(log, min(begin.lsn, log.confirmed)), begin

    def purge(self, published: Callable[[], int]) -> int | None:
        """See `WalSource.purge`: nothing is kept."""
        del published
        return 0

    def cancel(self) -> None:
        """See `WalSource.cancel`."""

    def close(self) -> None:
        """See `WalSource.close`."""


class MemoryWalStream:
    """Implements `harvest.core.interfaces.wal_stream.WalStream`."""

    def __init__(self, log: MemoryLog, lsn: int) -> None:
        self._log = log
        self._reader = log.reader
        self._lsn = lsn
        self._part = 0
        self.fail_next = False
        self.asks = False
        """The server asks for the next checkpoint."""

    def fileno(self) -> int:
        """See `WalStream.fileno`: there is nothing to wait for."""
        raise NotImplementedError

    def read(self, limit: int, limit_bytes: int) -> ReadDone | None:
        """See `WalStream.read`."""
        del limit_bytes
        self._check()
        chunks: list[Chunk] = []
        rows = 0
        for commit_lsn, _, its, end_lsn in self._log.committed:
            if commit_lsn < self._lsn:
                continue
            if rows >= limit:
                break
            part = its[self._part : self._part + limit - rows]
            first, rows = self._part, rows + len(part)
            self._part += len(part)
            whole = self._part == len(its)
            chunks.append(Chunk(commit_lsn, first, part, end_lsn if whole else 0))
            if not whole:
                break
            self._lsn, self._part = end_lsn, 0
        if not chunks:
            self._lsn = max(self._lsn, self._log.end)
        asked, self.asks = self.asks, False
        return ReadDone(chunks, self._lsn if not self._part else 0, asked)

    def keep_alive(self) -> None:
        """See `WalStream.keep_alive`."""
        self._check()

    def confirm(self, lsn: int) -> None:
        """See `WalStream.confirm`."""
        self._check()
        self._log.confirmed = max(self._log.confirmed, lsn)

    def close(self) -> None:
        """See `WalStream.close`."""
        self._reader = -1

    def _check(self) -> None:
        if self.fail_next or self._reader != self._log.reader:
            self._reader = -1
            raise StoreUnavailable("the stream broke off")
