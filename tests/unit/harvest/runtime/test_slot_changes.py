"""What is published, and which checkpoint goes with it, when a slot is made or left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from harvest.config.load import parse
from harvest.core.failure import Failure
from harvest.core.row import Row
from harvest.core.wal import Chunk, ReadDone
from harvest.core.wal_position import WalPosition
from harvest.errors import SinkUnavailable
from harvest.runtime import slot_changes as module

CONFIG = parse(
    "database: postgresql://localhost/d\nkafka: {bootstrap.servers: 'localhost:1'}\n"
    "group: g\nmode: wal\n"
)
BEGIN = WalPosition(0, "server", 1, 100)
END = WalPosition(0, "server", 1, 5_000)


def row(number: int) -> Row:
    return Row(number, "t", b"k", b"v")


class Sink:
    """Takes what is delivered, but for the `failing` one of the deliveries."""

    def __init__(self, found: WalPosition | None, failing: int | None = None) -> None:
        self.checkpoint = None if found is None else found.encode()
        self.failing = failing
        self.rows: list[int] = []
        self._deliveries = 0

    def open(self, still_held: object) -> str | None:
        del still_held
        return self.checkpoint

    def deliver(self, rows: Sequence[Row], checkpoint: str) -> Failure | None:
        self._deliveries += 1
        if self._deliveries == self.failing:
            return Failure("no")
        self.rows += [row[0] for row in rows]
        self.checkpoint = checkpoint
        return None

    def lsn(self) -> int:
        assert self.checkpoint is not None
        return WalPosition.decode(self.checkpoint).lsn

    def close(self) -> None:
        pass


class Source:
    """A slot whose stream has what is given; or one that is made."""

    def __init__(self, *reads: ReadDone) -> None:
        self._reads = iter(reads)

    def open(self, epoch: int, position: WalPosition | None) -> tuple[Source, WalPosition]:
        del epoch
        return self, position or BEGIN

    def read(self, limit: int, limit_bytes: int) -> ReadDone:
        del limit, limit_bytes
        return next(self._reads)

    def keep_alive(self) -> None:
        pass

    def confirm(self, lsn: int) -> None:
        del lsn

    def close(self) -> None:
        pass

    @contextlib.contextmanager
    def new_slot(self) -> Iterator[tuple[WalPosition, None]]:
        yield END, None


def test_what_begins_to_be_committed_behind_the_place_is_left() -> None:
    """It is in the table for the next mode."""
    reads = [
        ReadDone([Chunk(200, 0, [row(1), row(2)], 210), Chunk(299, 0, [row(3)], 310)], 300),
        ReadDone([Chunk(350, 0, [row(4)], 360), Chunk(400, 0, [row(5)], 410)], 500),
    ]
    sink: Any = Sink(BEGIN)
    source: Any = Source(*reads)
    assert module._publish_up_to(400, source, sink, BEGIN.encode(), CONFIG) == 4
    assert sink.rows == [1, 2, 3, 4]
    assert sink.lsn() <= 400


@pytest.mark.parametrize("failing", [1, 2, 3])
@pytest.mark.parametrize("found", [None, BEGIN])
def test_who_was_interrupted_publishes_the_whole_table_when_it_is_repeated(
    monkeypatch: pytest.MonkeyPatch, failing: int, found: WalPosition | None
) -> None:
    """Until the last row is published, the checkpoint does not fit the slot."""
    pages = [[row(1), row(2)], [row(3)], [row(4)]]
    monkeypatch.setattr(module, "_pages", lambda *_: iter(pages))
    source: Any = Source()

    def renew(sink: Sink) -> module.Renewal:
        monkeypatch.setattr(module, "make_sink", lambda _: sink)
        return module._renewed(CONFIG, source, None, publish_table=True, after=None)

    sink = Sink(found, failing)
    with pytest.raises(SinkUnavailable):
        renew(sink)
    assert sink.checkpoint is None or sink.lsn() < END.lsn
    sink = Sink(found)
    assert renew(sink).rows == 4
    assert sink.rows == [1, 2, 3, 4]
    assert sink.lsn() == END.lsn
