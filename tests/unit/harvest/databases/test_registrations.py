"""The row beside an outbox that says who harvests it, and what happens when it cannot be had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harvest.core.source import Registration, Source
from harvest.core.table_name import TableName
from harvest.databases.registrations import Registrations
from harvest.databases.sqlite.sources import SqliteSources
from harvest.errors import HarvestError, SchemaError, StoreUnavailable, TableMissing

OURS = Registration("cluster", "topic", "group", "mark")
THEIRS = replace(OURS, group="theirs")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteSources]:
    url = f"sqlite:///{tmp_path}/app.db"
    (tmp_path / "app.db").touch()
    with closing(SqliteSources(url, "outbox")) as made:
        yield made


def test_nobody_is_registered_where_there_is_no_table(store: SqliteSources) -> None:
    assert store.registration() is None
    assert (store.source().visit, store.source().token) == (0, "")
    store.create_registration()
    assert store.registration() is None
    assert (store.source().visit, store.source().token) == (0, "")


def test_the_first_stays_with_its_visits(store: SqliteSources) -> None:
    assert store.register(OURS) == OURS
    store.visit("one")
    assert store.register(THEIRS) == OURS
    store.create_registration()
    assert (store.visit("two").visit, store.source().token) == (2, "two")
    store.register_anew(THEIRS)
    assert store.registration() == THEIRS
    assert (store.source().visit, store.source().token) == (2, "two"), (
        "another who, not another past"
    )


def test_who_is_registered_anew_where_nobody_is_is_registered(store: SqliteSources) -> None:
    store.register_anew(THEIRS)
    assert store.registration() == THEIRS


def test_a_table_that_its_owner_has_made_is_not_made_again(
    store: SqliteSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may make none is refused even where it is there."""

    def refuse() -> None:
        raise SchemaError("permission denied for schema public")

    store.create_registration()
    monkeypatch.setattr(store, "create_registration", refuse)
    assert store.register(OURS) == OURS


@pytest.mark.parametrize("durable", [True, False])
def test_a_visit_is_on_the_disk_before_kafka_hears_of_it(tmp_path: Path, durable: bool) -> None:
    """A crash that undid one that Kafka knows would look like a database that went back."""
    seen: list[str] = []

    class Watched(SqliteSources):
        def _execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
            seen.append(statement)
            return super()._execute(statement, parameters)

        def synchronous(self) -> int:
            ((value,),) = super()._execute("PRAGMA synchronous")
            return int(value)

    with closing(Watched(f"sqlite:///{tmp_path}/app.db", "outbox", durable=durable)) as store:
        (tmp_path / "app.db").touch()
        store.register(OURS)
        before = store.synchronous()
        store.visit("one")
        assert "PRAGMA synchronous = FULL" in seen
        assert store.synchronous() == before == (2 if durable else 1)


class Refusing(Registrations):
    """A database that does not let the table be made or written."""

    def __init__(self, error: HarvestError, *, theirs: bool = False) -> None:
        self._table = TableName.parse("shop.outbox")
        self.error = error
        self.theirs = theirs
        self.asked = 0

    def facts(self) -> Source:
        return Source()

    def _statement(self, template: str, parameters: Sequence[Any] = ()) -> list[Any]:
        del parameters
        if not template.lstrip().startswith("SELECT"):
            raise self.error
        self.asked += 1
        if self.asked == 1:
            raise TableMissing("no table")
        return [(b"cluster", b"topic", b"theirs", b"mark")] if self.theirs else []


def test_who_may_not_make_the_table_is_told_what_to_grant() -> None:
    with pytest.raises(SchemaError, match=r"shop.outbox_registration.*denied; run `harvest init`"):
        Refusing(SchemaError("denied")).register(OURS)


class Silent(Refusing):
    """It answers nothing at all."""

    def _statement(self, template: str, parameters: Sequence[Any] = ()) -> list[Any]:
        del template, parameters
        raise self.error


@pytest.mark.parametrize("error", [StoreUnavailable("no answer"), SchemaError("denied")])
def test_who_cannot_ask_does_not_find_that_nobody_was_there(error: HarvestError) -> None:
    """He would take the database for another one, and rows to be of mark mode."""
    store = Silent(error)
    for ask in (store.registration, store.source):
        with pytest.raises(HarvestError) as caught:
            ask()
        assert caught.value is error


def test_of_two_who_make_it_at_once_one_finds_the_other() -> None:
    assert Refusing(StoreUnavailable("duplicate"), theirs=True).register(OURS) == THEIRS


def test_what_could_not_be_written_is_not_taken_for_written() -> None:
    with pytest.raises(StoreUnavailable, match="could not be written"):
        Refusing(StoreUnavailable("no answer")).register(OURS)
