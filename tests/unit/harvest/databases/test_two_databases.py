"""When a gap that a replica shows is judged, with servers whose answers the test gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from harvest.core.gaps import Holders, Range
from harvest.core.interfaces.mark_store import Backlog
from harvest.core.interfaces.range_store import Bounds, Window
from harvest.core.range_checkpoint import Position
from harvest.core.source import Source
from harvest.databases.postgres.two_databases import PostgresIds, TwoDatabasesStore
from harvest.errors import StoreUnavailable


class Primary:
    """While the holders are looked for, one of them commits."""

    def __init__(self) -> None:
        self.end = 7

    def holders(self) -> Holders:
        self.end += 1
        return Holders()

    def written(self) -> str:
        return str(self.end)

    def cancel(self) -> None: ...
    def close(self) -> None: ...


class Replica(Primary):
    """Gets on by one each time that it is asked, up to `most`."""

    def __init__(self, most: int) -> None:
        self.replayed = 0
        self.most = most

    def lookup_behind(self, lsn: str, ranges: list[Any]) -> list[Any] | None:
        del ranges
        self.replayed = min(self.most, self.replayed + 1)
        return [(self.replayed, self.replayed)] if self.replayed >= int(lsn) else None


def store(replica: Replica) -> TwoDatabasesStore:
    primary: Any = Primary()
    its: Any = replica
    return TwoDatabasesStore(primary, primary, its)


def test_a_replica_is_waited_for_that_does_not_show_what_holders_committed() -> None:
    made = store(Replica(100))
    made.holders()
    assert made.lookup([(1, 1)]) == [(8, 8)]


@pytest.mark.parametrize("is_behind", [False, True])
def test_the_replica_that_is_waited_for_is_the_one_that_is_looked_at(*, is_behind: bool) -> None:
    """A pooler over several has each transaction done by any of them. One that lags would show a
    gap where a row is, and nobody would look for it again."""
    seen: list[str] = []

    class Pooled(PostgresIds):
        @contextmanager
        def _transaction(self) -> Iterator[None]:
            seen.append("begin")
            yield
            seen.append("end")

        def has_replayed(self, lsn: str) -> bool:
            seen.append(f"replayed {lsn}")
            return not is_behind

        def lookup(self, ranges: Sequence[Range]) -> list[Range]:
            seen.append("lookup")
            return list(ranges)

    found = Pooled("host=d", "ids", standby=True).lookup_behind("0/8", [(1, 1)])
    assert found == (None if is_behind else [(1, 1)])
    assert seen == ["begin", "replayed 0/8", *["lookup"] * (not is_behind), "end"]


def test_who_was_cancelled_and_closed_waits_again_when_it_is_used_again() -> None:
    replica = Replica(1)
    made = store(replica)
    made.holders()
    made.cancel()
    with pytest.raises(StoreUnavailable, match="given up"):
        made.lookup([(1, 1)])
    made.close()
    replica.most = 100
    assert made.lookup([(1, 1)]) == [(8, 8)]


class Database:
    """Of the primary, the replica or the outbound side; it notes what it is asked."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name = name
        self.seen = seen
        self.ids = [(1, 1003), (2, 1001)]
        self.payloads = [(1001, "t", b"k", b"second"), (1003, "t", b"k", b"first")]

    def _say(self, what: str) -> None:
        self.seen.append(f"{self.name} {what}")

    def connect(self) -> None:
        self._say("connects")

    def ping(self) -> None:
        self._say("answers")

    def cancel(self) -> None:
        self._say("is cancelled")

    def close(self) -> None:
        self._say("is closed")

    def bounds(self) -> Bounds:
        return Bounds(1, 2)

    def saved(self) -> list[Position]:
        return []

    def above(self, last_id: int) -> Backlog:
        return Backlog(last_id, 0, None)

    def read(self, after: int, limit: int) -> Window:
        del after, limit
        return Window(self.ids, 2)  # type: ignore[arg-type]

    def fetch(self, ids: object) -> list[Any]:
        del ids
        return self.payloads if self.name == "outbound" else self.ids

    def facts(self) -> Source:
        return Source(server=self.name, timeline=3, log=30, table="1", sequence="9")

    def source(self) -> Source:
        return Source(server=self.name, timeline=5, log=50, table="2", visit=7, token="x")

    def visit(self, token: str) -> Source:
        return replace(self.source(), token=token)


class Two:
    """Both databases, and a replica if it is asked for."""

    def __init__(self, *, replica: bool = False) -> None:
        self.seen: list[str] = []
        self.primary = Database("primary", self.seen)
        self.outbound = Database("outbound", self.seen)
        self.replica = Database("replica", self.seen)
        parts: Any = [self.primary, self.outbound, *([self.replica] if replica else [])]
        self.store = TwoDatabasesStore(*parts)


@pytest.mark.parametrize("replica", [False, True])
def test_every_server_is_connected_to_once(replica: bool) -> None:
    two = Two(replica=replica)
    two.store.connect()
    names = ["primary", *(["replica"] if replica else []), "outbound"]
    assert two.seen == [f"{name} connects" for name in names]


def test_neither_database_may_be_silent() -> None:
    two = Two()
    two.store.ping()
    assert two.seen == ["primary answers", "outbound answers"]


def test_what_is_broken_off_or_closed_is_so_on_every_server() -> None:
    two = Two(replica=True)
    two.store.cancel()
    two.store.close()
    names = ("primary", "replica", "outbound")
    ends = ("is cancelled", "is closed")
    assert two.seen == [f"{name} {end}" for end in ends for name in names]


def test_rows_have_the_ids_and_the_order_of_the_primary() -> None:
    two = Two()
    expected = [(1, "t", b"k", b"first"), (2, "t", b"k", b"second")]
    for found in (two.store.read(0, 10).rows, two.store.fetch([(1, 2)])):
        assert [tuple(row) for row in found] == expected


def test_a_payload_that_is_not_there_yet_is_waited_for() -> None:
    """To leave it out would be to lose it: the primary has committed its id."""
    two = Two()
    two.outbound.payloads.pop()
    with pytest.raises(StoreUnavailable, match="the message 1003 is committed in the primary"):
        two.store.read(0, 10)


def test_a_replica_that_shows_less_than_it_did_is_not_believed() -> None:
    two = Two(replica=True)
    two.replica.ids = two.replica.ids[:1]
    with pytest.raises(StoreUnavailable, match="of 2 ids the replica shows only 1"):
        two.store.fetch([(1, 2)])
    two = Two()
    two.primary.ids = two.primary.ids[:1]
    assert len(two.store.fetch([(1, 2)])) == 1, "in the primary it was deleted"


def test_a_source_is_both_servers_with_the_log_of_the_primary() -> None:
    expected = Source(
        server="primary+outbound",
        timeline=3,
        log=30,
        table="1+2",
        sequence="9",
        visit=7,
        token="x",
    )
    two = Two()
    assert two.store.source() == expected
    assert two.store.visit("y") == replace(expected, token="y")


def test_without_a_position_all_rows_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Two()
    assert two.store.backlog().rows == 0, "the id before the first"
    monkeypatch.setattr(two.outbound, "saved", lambda: [Position(1, 0, 1, 5)])
    assert two.store.backlog().rows == 5, "what is above the copy of the position"
    assert two.store.backlog(Position(1, 0, 1, 2)).rows == 2
