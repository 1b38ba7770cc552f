"""What is published, and which checkpoint goes with it, when a slot is made or left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from harvest.config.load import parse
from harvest.core.failure import Failure
from harvest.core.row import Row
from harvest.core.source import Source as Known
from harvest.core.wal import Chunk, ReadDone
from harvest.core.wal_position import WalPosition, format_lsn
from harvest.databases.postgres.pgoutput import NotBinary
from harvest.errors import CheckpointError, ConfigurationError, SinkUnavailable
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

    def before_all(self) -> WalPosition:
        return BEGIN

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


@pytest.mark.parametrize("is_dry_run", [True, False])
def test_a_type_that_changed_in_what_is_left_of_the_log_is_read_on(*, is_dry_run: bool) -> None:
    """Another source would find the same: it is for this one to read it in text form."""
    first = ReadDone([Chunk(200, 0, [row(1), row(2)], 210)], 220)
    rest = [ReadDone([Chunk(300, 0, [row(3)], 310)], 320), ReadDone([], 500)]

    class Changed(Source):
        closes = 0

        def read(self, limit: int, limit_bytes: int) -> ReadDone:
            if not self.closes and next(self._reads, None) is None:
                raise NotBinary("kafka_value")
            return super().read(limit, limit_bytes) if self.closes else first

        def close(self) -> None:
            self.closes += 1
            self._reads = iter([first, *rest] if is_dry_run else rest)

    sink = Sink(BEGIN)
    source: Any = Changed(first)
    given: Any = None if is_dry_run else sink
    assert module._publish_up_to(400, source, given, BEGIN.encode(), CONFIG) == 3
    assert sink.rows == ([] if is_dry_run else [1, 2, 3])
    assert source.closes == 2


def test_while_the_log_is_quiet_the_server_hears_that_somebody_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would end the connection after `wal_sender_timeout`."""
    done: list[str] = []

    class Quiet(Source):
        def read(self, limit: int, limit_bytes: int) -> ReadDone:
            done.append("read")
            return super().read(limit, limit_bytes)

        def keep_alive(self) -> None:
            done.append("keep alive")

        def fileno(self) -> int:
            return 7

    nothing: Any = None
    source: Any = Quiet(nothing, nothing, ReadDone([], 500))
    sink: Any = Sink(BEGIN)
    monkeypatch.setattr(module, "select", SimpleNamespace(select=lambda *_: done.append("wait")))
    assert module._publish_up_to(400, source, sink, BEGIN.encode(), CONFIG) == 0
    assert done == [*["keep alive", "read", "wait"] * 2, "keep alive", "read"]


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


@pytest.mark.parametrize("found", [None, BEGIN])
def test_nobody_begins_with_a_slot_whose_rows_from_before_are_not_published(
    monkeypatch: pytest.MonkeyPatch, found: WalPosition | None
) -> None:
    """`kill -9` right behind it: a checkpoint is there, and does not fit the slot."""
    sink = Sink(found)

    class Killed(Source):
        @contextlib.contextmanager
        def new_slot(self) -> Iterator[tuple[WalPosition, None]]:
            assert sink.lsn() < END.lsn
            yield END, None

    source: Any = Killed()
    monkeypatch.setattr(module, "make_sink", lambda _: sink)
    monkeypatch.setattr(module, "_pages", lambda *_: iter([[row(1)]]))
    renewal = module._renewed(
        CONFIG, source, None, publish_table=True, after=None, guard_table=True
    )
    assert renewal.rows == 1
    assert (sink.rows, sink.lsn()) == ([1], END.lsn)


@pytest.mark.parametrize("found", [None, BEGIN])
def test_a_slot_that_begins_now_leaves_the_table_and_moves_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch, found: WalPosition | None
) -> None:
    class Made(Source):
        slot = SimpleNamespace(state=lambda: None, drop=lambda: True)
        options = CONFIG.wal.options()

        def create_publication(self) -> None: ...

        def visit(self, token: str) -> Known:
            return Known(token=token)

    sink = Sink(found)
    saved: list[tuple[Known, int]] = []
    record = SimpleNamespace(
        save=lambda source, wait: saved.append((source, wait and sink.lsn())), close=lambda: None
    )
    monkeypatch.setattr(module, "alone", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(module, "make_sink", lambda _: sink)
    monkeypatch.setattr(module, "make_wal_source", lambda _: Made())
    monkeypatch.setattr(module, "make_record", lambda _: record)
    assert module.renew_slot(CONFIG, publish_table=False) == module.Renewal(
        None, 0, format_lsn(END.lsn)
    )
    assert (sink.rows, sink.lsn()) == ([], END.lsn)
    ((source, at),) = saved
    assert source.token, "the database is taken for the one that it was"
    assert at == END.lsn, "when the position is in the new slot, and no sooner"


def test_a_publication_is_there_before_the_slot_and_goes_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a slot has from before its publication cannot be read."""
    done: list[str] = []

    class Made(Source):
        slot = SimpleNamespace(state=lambda: None, drop=lambda: done.append("no slot"))
        options = CONFIG.wal.options()

        def create_publication(self) -> None:
            done.append("publication")

        def drop_publication(self) -> None:
            done.append("no publication")

        def has_table(self) -> bool:
            return False

        @contextlib.contextmanager
        def new_slot(self) -> Iterator[tuple[WalPosition, None]]:
            done.append("slot")
            yield END, None

        def close(self) -> None:
            done.append("closed")

    monkeypatch.setattr(module, "alone", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(module, "keep_source", lambda *_: None)
    monkeypatch.setattr(module, "make_sink", lambda _: Sink(BEGIN))
    monkeypatch.setattr(module, "make_wal_source", lambda _: Made())
    module.renew_slot(CONFIG, publish_table=False)
    assert done == ["publication", "no slot", "slot", "closed"]
    done.clear()
    assert module.begin_slot(CONFIG) == 0
    assert done == ["publication", "no slot", "slot", "closed"]
    done.clear()
    module.drop_slot(CONFIG)
    assert done == ["no slot", "no publication", "closed"]


def test_rows_are_not_published_past_those_that_are_set_aside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []

    def letters(count: int) -> Any:
        return SimpleNamespace(count=lambda: count, close=lambda: closed.append("closed"))

    monkeypatch.setattr(module, "make_dead_letters", lambda _: letters(2))
    with pytest.raises(ConfigurationError, match=r"outbox has 2 dead letters.*first, or leave"):
        module.refuse_dead_letters(CONFIG, ", or leave them")
    monkeypatch.setattr(module, "make_dead_letters", lambda _: letters(0))
    module.refuse_dead_letters(CONFIG)
    assert closed == ["closed", "closed"]


def test_nothing_is_changed_while_rows_are_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = SimpleNamespace(count=lambda: 1, close=lambda: None)
    monkeypatch.setattr(module, "alone", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(module, "make_dead_letters", lambda _: letters)
    monkeypatch.setattr(module, "make_wal_source", lambda _: pytest.fail("the slot is changed"))
    with pytest.raises(ConfigurationError, match="1 dead letters, behind which rows"):
        module.renew_slot(CONFIG, publish_table=True)
    with pytest.raises(ConfigurationError, match="1 dead letters, which only wal mode puts back"):
        module.leave_slot(CONFIG, None)


@pytest.mark.parametrize(
    ("found", "refused", "goes_on"),
    [
        (BEGIN.encode(), None, True),
        (BEGIN.encode(), CheckpointError("the slot was made anew"), False),
        (BEGIN.encode(), ConfigurationError("the slot is lost"), False),
        ("no position", None, False),
        (None, None, False),
    ],
)
def test_a_slot_goes_on_where_the_position_is_in_it(
    monkeypatch: pytest.MonkeyPatch, found: str | None, refused: Exception | None, goes_on: bool
) -> None:
    closed: list[str] = []

    def begin(position: WalPosition) -> None:
        assert position == BEGIN
        if refused is not None:
            raise refused

    source = SimpleNamespace(begin=begin, close=lambda: closed.append("closed"))
    monkeypatch.setattr(module, "make_wal_source", lambda _: source)
    assert module.goes_on(CONFIG, found) is goes_on
    assert closed == (["closed"] if found == BEGIN.encode() else [])


def test_columns_that_only_wal_mode_reads_are_not_left_to_another_mode() -> None:
    config = CONFIG.model_copy(update={"wal": CONFIG.wal.model_copy(update={"layout": "debezium"})})
    with pytest.raises(ConfigurationError, match="has the columns of debezium"):
        module.leave_slot(config, None)


def test_a_table_without_ids_in_order_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "alone", lambda *_: pytest.fail("nothing is changed"))
    for changes in ({"layout": "debezium"}, {"source": "message"}):
        config = CONFIG.model_copy(update={"wal": CONFIG.wal.model_copy(update=changes)})
        with pytest.raises(ConfigurationError, match="--publish-table is for tables of goharvest"):
            module.renew_slot(config, publish_table=True)


def test_a_dry_run_leads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """To lead is to write to the coordination log."""

    @contextlib.contextmanager
    def alone(*_: object) -> Iterator[None]:
        raise AssertionError("it leads")
        yield

    slot = SimpleNamespace(state=lambda: None)
    source = SimpleNamespace(slot=slot, count_rows=lambda _: 7, close=lambda: None)
    monkeypatch.setattr(module, "alone", alone)
    monkeypatch.setattr(module, "refuse_dead_letters", lambda _: None)
    monkeypatch.setattr(module, "make_wal_source", lambda _: source)
    found = module.renew_slot(CONFIG, publish_table=True, dry_run=True)
    assert found == module.Renewal(None, 7)
    with pytest.raises(AssertionError, match="it leads"):
        module.renew_slot(CONFIG, publish_table=True)


def test_rows_behind_an_id_are_published_and_the_table_is_guarded_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[int | None] = []
    renewed: list[dict[str, Any]] = []

    def count(after: int | None) -> int:
        counted.append(after)
        return 7

    def renew(*_: object, **how: Any) -> module.Renewal:
        renewed.append(how)
        return module.Renewal(None, 7)

    source = SimpleNamespace(
        slot=SimpleNamespace(state=lambda: None, drop=lambda: None),
        count_rows=count,
        create_publication=lambda: None,
        close=lambda: None,
    )
    monkeypatch.setattr(module, "alone", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(module, "refuse_dead_letters", lambda _: None)
    monkeypatch.setattr(module, "keep_source", lambda *_: None)
    monkeypatch.setattr(module, "make_wal_source", lambda _: source)
    monkeypatch.setattr(module, "_renewed", renew)
    module.renew_slot(CONFIG, publish_table=True, after=5, dry_run=True)
    assert (counted, renewed) == ([5], [])
    module.renew_slot(CONFIG, publish_table=True, after=5)
    module.renew_slot(CONFIG, publish_table=False)
    assert renewed == [
        {"publish_table": True, "after": 5, "guard_table": True},
        {"publish_table": False, "after": None, "guard_table": False},
    ]


@pytest.mark.parametrize(
    ("layout", "has_table", "published"),
    [("goharvest", True, True), ("goharvest", False, False), ("debezium", True, False)],
)
def test_a_table_whose_ids_say_no_order_is_not_published_when_a_slot_begins(
    monkeypatch: pytest.MonkeyPatch, layout: str, has_table: bool, published: bool
) -> None:
    seen: list[bool] = []

    def renew(*_: object, publish_table: bool, after: None) -> module.Renewal:
        del after
        seen.append(publish_table)
        return module.Renewal(None, 7)

    source = SimpleNamespace(
        slot=SimpleNamespace(state=lambda: None, drop=lambda: None),
        options=CONFIG.wal.model_copy(update={"layout": layout}).options(),
        has_table=lambda: has_table,
        create_publication=lambda: None,
        close=lambda: None,
    )
    monkeypatch.setattr(module, "make_wal_source", lambda _: source)
    monkeypatch.setattr(module, "_renewed", renew)
    assert module.begin_slot(CONFIG) == 7
    assert seen == [published]
