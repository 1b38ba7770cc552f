"""What every table of rows set aside promises: `DeadLetterTable`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from confluent_kafka import KafkaError

from harvest.core.dead_letters import BadRow
from harvest.core.interfaces.dead_letter_store import DeadLetterTable, Dropped, Selection
from harvest.core.mark_checkpoint import Term
from harvest.core.table_name import TableName
from harvest.databases.registry import Database, database
from harvest.errors import SchemaError, StoreUnavailable, TableMissing
from harvest.outbox.record import OutboxRecord
from harvest.outbox.stasher import Stasher
from harvest.sinks.kafka.refusals import advice
from tests.support.databases import MYSQL

TERM, OTHER = Term.of(1), Term.of(2)
ALL = Selection()
OUTBOX = TableName(("outbox",))


class World:
    """An outbox of mark mode, and what is set aside from it."""

    def __init__(self, url: str) -> None:
        self.tables: Database = database(url)
        self.store = self.tables.mark_store(OUTBOX)
        self.store.init()
        self.dead_letters: DeadLetterTable = self.tables.dead_letters(OUTBOX)

    def insert(self, key: str, topic: str = "t", value: str | None = "v") -> int:
        with self.tables.transaction() as connection:
            record = OutboxRecord(topic, key, value, [("name", "é")])
            Stasher().stash(connection, record)
        return self.highest()

    def highest(self) -> int:
        with closing(self.tables.mark_store(OUTBOX)) as store:
            return max(row.id for row in store.mark(OTHER, 0, 100, 60_000.0))

    def mark(self, term: Term = TERM) -> list[int]:
        return [row.id for row in self.store.mark(term, 0, 1_000, 60_000.0)]

    def close(self) -> None:
        self.store.close()
        self.dead_letters.close()


@pytest.fixture(params=["postgres", "sqlite", "mariadb", MYSQL])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "sqlite":
        url = f"sqlite:///{request.getfixturevalue('tmp_path')}/shop.db"
    else:
        url = request.getfixturevalue(f"{request.param}_database")
    made = World(url)
    yield made
    made.close()


def test_a_row_moves_with_its_error_and_those_behind_it(world: World) -> None:
    began = datetime.now(UTC) - timedelta(minutes=5)
    one, other, behind = world.insert("1"), world.insert("2"), world.insert("1")
    world.mark()
    assert world.dead_letters.waiting_keys() == {}
    assert world.dead_letters.count() == 0
    rows = [BadRow(behind, "waits", waits=True), BadRow(one, "bäd"), BadRow(other, "", waits=True)]
    assert world.dead_letters.add(rows, TERM) == {one, behind}
    assert world.mark(OTHER) == [other]
    assert world.dead_letters.waiting_keys() == {("t", b"1"): one}
    found = world.dead_letters.rows(ALL, 10)
    assert [(row.id, row.error, row.waits) for row in found] == [
        (one, "bäd", False),
        (behind, "waits", True),
    ]
    assert (found[0].topic, found[0].key, found[0].value_bytes) == ("t", b"1", 1)
    assert began < found[0].dead_lettered_at < datetime.now(UTC) + timedelta(minutes=5)
    assert [row.id for row in world.dead_letters.rows(ALL, 1)] == [one]


def goes_and_comes_back_twice(world: World) -> None:
    row = world.insert("k")
    world.mark()
    for _ in range(2):
        assert world.dead_letters.add([BadRow(row, "bad")], TERM) == {row}
        assert world.dead_letters.retry(ALL, mode="mark") == 1
        assert world.mark() == [row]


def test_a_column_of_any_name_keeps_no_row_from_being_set_aside(world: World) -> None:
    with world.tables.transaction() as connection:
        quote = "`" if "mysql" in type(connection).__module__ else '"'
        connection.cursor().execute(f"ALTER TABLE outbox ADD {quote}tax_%s{quote} INTEGER")
    goes_and_comes_back_twice(world)


def test_a_column_that_the_database_fills_keeps_no_row_from_being_put_back(world: World) -> None:
    with world.tables.transaction() as connection:
        kept = "STORED" if "psycopg" in type(connection).__module__ else "VIRTUAL"
        connection.cursor().execute(
            f"ALTER TABLE outbox ADD size INTEGER GENERATED ALWAYS AS (length(kafka_value)) {kept}"
        )
    goes_and_comes_back_twice(world)


def test_what_is_in_a_column_that_came_later_comes_back_with_its_row(world: World) -> None:
    first = world.insert("1")
    world.mark()
    assert world.dead_letters.add([BadRow(first, "bad")], TERM) == {first}
    with world.tables.transaction() as connection:
        connection.cursor().execute("ALTER TABLE outbox ADD tenant INTEGER")
    second = world.insert("2")
    with world.tables.transaction() as connection:
        connection.cursor().execute(f"UPDATE outbox SET tenant = 7 WHERE id = {second}")
    assert second in world.mark()
    assert world.dead_letters.add([BadRow(second, "bad")], TERM) == {second}
    assert world.dead_letters.retry(ALL, mode="mark") == 2
    with world.tables.transaction() as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT tenant FROM outbox ORDER BY id")
        assert list(cursor.fetchall()) == [(None,), (7,)]


def test_a_column_that_goes_keeps_no_row_from_being_set_aside(world: World) -> None:
    with world.tables.transaction() as connection:
        connection.cursor().execute("ALTER TABLE outbox ADD tenant INTEGER")
    one, two = world.insert("1"), world.insert("2")
    world.mark()
    assert world.dead_letters.add([BadRow(one, "bad")], TERM) == {one}
    with world.tables.transaction() as connection:
        connection.cursor().execute("ALTER TABLE outbox DROP COLUMN tenant")
    with suppress(SchemaError):  # whoever knows the column may have to hear of it once
        world.dead_letters.add([BadRow(two, "bad")], TERM)
    assert world.dead_letters.add([BadRow(two, "bad")], TERM) <= {two}
    assert [row.id for row in world.dead_letters.rows(ALL, 10)] == [one, two]
    assert world.dead_letters.retry(ALL, mode="mark") == 2


def test_a_column_that_is_made_wider_keeps_no_row_from_being_set_aside(world: World) -> None:
    """Each later one would wait behind it, for ever."""

    def make_key(length: int) -> None:
        with world.tables.transaction() as connection:
            module = type(connection).__module__
            if "sqlite" not in module:  # which has no lengths
                change = "MODIFY kafka_key" if "mysql" in module else "ALTER kafka_key TYPE"
                connection.cursor().execute(f"ALTER TABLE outbox {change} VARCHAR({length})")

    make_key(3)
    short = world.insert("1")
    world.mark()
    assert world.dead_letters.add([BadRow(short, "bad")], TERM) == {short}
    make_key(30)
    long = world.insert("longer than before")
    assert long in world.mark()
    assert world.dead_letters.add([BadRow(long, "bad")], TERM) == {long}
    assert [row.key for row in world.dead_letters.rows(ALL, 10)] == [b"1", b"longer than before"]
    assert world.dead_letters.retry(ALL, mode="mark") == 2
    assert world.mark() == [short, long]


def test_a_table_whose_types_are_the_outboxs_is_left_as_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To alter it, each time that a row is set aside, would take locks, and rights."""

    def fail(*given: object) -> None:
        raise AssertionError(given)

    monkeypatch.setattr(type(world.dead_letters), "_change_type", fail)
    for key in ("1", "2"):
        row = world.insert(key)
        world.mark()
        assert world.dead_letters.add([BadRow(row, "bad")], TERM) == {row}
    assert world.dead_letters.retry(ALL, mode="mark") == 2


def test_a_row_of_another_leader_is_left_alone(world: World) -> None:
    row = world.insert("1")
    world.mark(OTHER)
    assert world.dead_letters.add([BadRow(row, "bad")], TERM) == frozenset()
    assert world.mark(TERM) == [row]
    assert world.dead_letters.count() == 0


def test_a_row_that_came_under_the_id_of_one_that_is_aside_is_lost_to_nobody(world: World) -> None:
    """Ids were begun anew, which mark mode allows. Either row may be what somebody waits for."""
    old, new = world.insert("1"), world.insert("2", topic="u")
    world.mark()
    assert world.dead_letters.add([BadRow(old, "bad")], TERM) == {old}
    with world.tables.transaction() as connection:
        connection.cursor().execute(f"UPDATE outbox SET id = {old} WHERE id = {new}")
    with pytest.raises(SchemaError, match=rf"dead-letters drop --id {old}`"):
        world.dead_letters.add([BadRow(old, "bad, too")], TERM)
    assert [row.topic for row in world.dead_letters.rows(ALL, 10)] == ["t"]
    assert world.mark(OTHER) == [old]
    assert world.dead_letters.drop(Selection(ids=(old,)), mode="mark") == Dropped(1, 0)
    assert world.dead_letters.add([BadRow(old, "bad, too")], OTHER) == {old}


def test_keys_that_only_look_alike_do_not_wait_for_each_other(world: World) -> None:
    plain, spaced, large = world.insert("k"), world.insert("k "), world.insert("K")
    world.mark()
    rows = [BadRow(plain, "bad"), BadRow(spaced, "", waits=True), BadRow(large, "", waits=True)]
    assert world.dead_letters.add(rows, TERM) == {plain}
    assert world.dead_letters.count(Selection(key="k")) == 1
    assert world.dead_letters.count(Selection(key="k ")) == 0


def test_nothing_waits_behind_a_later_row(world: World) -> None:
    early, bad, late = (world.insert("1") for _ in range(3))
    world.mark()
    rows = [BadRow(early, "", waits=True), BadRow(bad, "bad"), BadRow(late, "", waits=True)]
    assert world.dead_letters.add(rows, TERM) == {bad, late}
    assert world.mark(OTHER) == [early]


def test_nothing_begins_to_wait_behind_a_row_that_is_being_put_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, behind = world.insert("1"), world.insert("1")
    world.mark()
    world.dead_letters.add([BadRow(one, "bad")], TERM)
    operator: Any = world.tables.dead_letters(OUTBOX)
    put_back, is_back, go_on = operator._put_back, threading.Event(), threading.Event()

    def slowly(*given: Any, **options: Any) -> Any:
        done = put_back(*given, **options)
        is_back.set()
        assert go_on.wait(60)
        return done

    monkeypatch.setattr(operator, "_put_back", slowly)
    added: list[frozenset[int]] = []
    rows = [BadRow(behind, "", waits=True)]
    threads = [
        threading.Thread(target=lambda: operator.retry(ALL, mode="mark"), daemon=True),
        threading.Thread(target=lambda: added.append(world.dead_letters.add(rows, TERM))),
    ]
    try:
        threads[0].start()
        assert is_back.wait(60)
        threads[1].start()
        threads[1].join(0.5)
    finally:
        go_on.set()
        for thread in threads:
            thread.join(60)
        operator.close()
    assert added == [frozenset()]
    assert world.mark(OTHER) == [one, behind]


def test_range_mode_copies_and_repeats_itself_harmlessly(world: World) -> None:
    row = world.insert("1")
    for _ in range(2):
        assert world.dead_letters.add([BadRow(row, "bad")], None) == {row}
    # Who comes next knows the row only by the keys that wait.
    assert world.dead_letters.add([BadRow(row, "waits", waits=True)], None) == {row}
    assert world.mark() == [row]
    assert [(at.error, at.waits) for at in world.dead_letters.rows(ALL, 9)] == [("bad", False)]


def test_who_loses_the_lease_while_rows_are_copied_sets_none_aside(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A successor has published them, perhaps."""
    row, letters = world.insert("1"), world.dead_letters
    execute, executed = letters._execute, []  # type: ignore[attr-defined]

    def noted(statement: Any, *given: Any, **options: Any) -> Any:
        executed.append(statement if isinstance(statement, str) else statement.as_string())
        return execute(statement, *given, **options)

    def lost() -> bool:
        assert "INSERT INTO" in executed[-1], "asked too soon"
        return False

    with monkeypatch.context() as patch:
        patch.setattr(letters, "_execute", noted)
        with pytest.raises(StoreUnavailable, match="lease"):
            letters.add([BadRow(row, "bad")], None, lost)
    assert letters.count() == 0
    assert letters.add([BadRow(row, "bad")], None) == {row}


def test_ids_that_are_aside_are_told_from_others(world: World) -> None:
    assert world.dead_letters.ids(0, 10**9) == frozenset()
    one, other, behind, last = (world.insert(key) for key in ("1", "2", "1", "3"))
    rows = [BadRow(one, "bad"), BadRow(behind, "", waits=True), BadRow(last, "bad")]
    assert world.dead_letters.add(rows, None) == {one, behind, last}
    assert world.dead_letters.ids(one, last) == {one, behind, last}
    assert world.dead_letters.ids(other, behind) == {behind}
    assert world.dead_letters.ids(other, other) == frozenset()


def test_range_mode_keeps_nothing_in_the_outbox_that_was_never_published(world: World) -> None:
    """After `retry` and `drop`, what is below the checkpoint was published: it may be replayed."""
    one, behind, other, kept = (world.insert(key) for key in ("1", "1", "2", "3"))
    rows = [BadRow(one, "bad"), BadRow(behind, "", waits=True), BadRow(other, "bad")]
    world.dead_letters.add(rows, None)
    assert world.dead_letters.retry(Selection(ids=(other,)), mode="range") == 1
    assert world.dead_letters.drop(Selection(ids=(one,)), mode="range") == Dropped(1, 1)
    there = world.mark()
    assert there[0] == kept
    assert len(there) == 3  # and, under new ids, those that were retried and released
    assert world.dead_letters.count() == 0


def begun_anew(world: World) -> int:
    """The id of a dead letter of range mode, under which another row has come to the outbox."""
    old = world.insert("1")
    world.dead_letters.add([BadRow(old, "bad")], None)
    new = world.insert("2", topic="u")
    with world.tables.transaction() as connection:
        cursor = connection.cursor()
        cursor.execute(f"DELETE FROM outbox WHERE id = {old}")
        changed = f"id = {old}, create_time = '2001-02-03 04:05:06'"
        cursor.execute(f"UPDATE outbox SET {changed} WHERE id = {new}")
    return old


def test_range_mode_takes_no_row_for_another_that_had_its_id(world: World) -> None:
    row = begun_anew(world)
    with pytest.raises(SchemaError, match=rf"dead-letters drop --id {row}`"):
        world.dead_letters.add([BadRow(row, "bad, too")], None)
    assert world.dead_letters.retry(ALL, mode="range") == 1
    assert len(world.mark()) == 2, "that which has the id now was deleted"


def test_a_row_that_is_dropped_takes_no_other_with_it_that_has_its_id(world: World) -> None:
    row = begun_anew(world)
    assert world.dead_letters.drop(ALL, mode="range") == Dropped(1, 0)
    assert world.mark() == [row]


def test_what_is_retried_is_as_it_was_with_what_waits_behind_it(world: World) -> None:
    a, b, c, other = (world.insert(key) for key in ("1", "2", "1", "3"))
    before = world.store.mark(TERM, 0, 10, 60_000.0)
    rows = [BadRow(a, "bad"), BadRow(b, "bad"), BadRow(c, "", waits=True), BadRow(other, "bad")]
    assert world.dead_letters.add(rows, TERM) == {a, b, c, other}
    assert world.dead_letters.retry(Selection(ids=(a,)), mode="mark", dry_run=True) == 2
    assert world.mark() == []
    assert world.dead_letters.retry(Selection(ids=(a,)), mode="mark") == 2
    assert world.store.mark(OTHER, 0, 10, 60_000.0) == [r for r in before if r.id in (a, c)]
    assert world.dead_letters.retry(Selection(topic="t", key="2"), mode="range") == 1
    assert world.highest() > other
    assert [row.id for row in world.dead_letters.rows(ALL, 10)] == [other]


def test_drop_releases_what_waited_for_nothing_else(world: World) -> None:
    a, b, c = world.insert("1"), world.insert("1"), world.insert("1")
    world.mark()
    world.dead_letters.add([BadRow(a, "x"), BadRow(b, "", waits=True), BadRow(c, "x")], TERM)
    assert world.dead_letters.drop(Selection(ids=(a,)), mode="mark", dry_run=True) == Dropped(1, 0)
    assert world.dead_letters.count() == 3
    assert world.dead_letters.drop(Selection(ids=(a,)), mode="mark") == Dropped(1, 1)
    assert world.mark() == [b]
    assert [row.id for row in world.dead_letters.rows(ALL, 10)] == [c]


def bad_twice(world: World) -> tuple[int, int, int]:
    """Two rows of a key that are bad, and one that waits behind both."""
    a, b, c = world.insert("1"), world.insert("1"), world.insert("1")
    world.mark()
    rows = [BadRow(a, "x"), BadRow(b, "x"), BadRow(c, "", waits=True)]
    assert world.dead_letters.add(rows, TERM) == {a, b, c}
    return a, b, c


def test_a_key_comes_back_with_all_that_is_behind_the_row(world: World) -> None:
    """Also what is bad itself: what waits for both would overtake it."""
    a, b, c = bad_twice(world)
    assert world.dead_letters.retry(Selection(ids=(a,)), mode="mark") == 3
    assert world.mark() == [a, b, c]


def test_what_waits_for_two_rows_waits_until_neither_is_there(world: World) -> None:
    a, b, c = bad_twice(world)
    assert world.dead_letters.drop(Selection(ids=(a,)), mode="mark") == Dropped(1, 0)
    assert world.mark() == []
    assert world.dead_letters.drop(Selection(ids=(b,)), mode="mark") == Dropped(1, 1)
    assert world.mark() == [c]


def east(time: datetime) -> datetime:
    """The same moment, elsewhere."""
    return time.astimezone(timezone(timedelta(hours=9)))


def west(time: datetime) -> datetime:
    """The same moment, elsewhere."""
    return time.astimezone(timezone(timedelta(hours=-9)))


def test_rows_are_selected_by_what_is_given(world: World) -> None:
    one, two = world.insert("k", "t"), world.insert("k", "other", None)
    world.mark()
    world.dead_letters.add([BadRow(one, "x"), BadRow(two, "x")], TERM)
    now, minute = datetime.now(UTC), timedelta(minutes=5)
    first = min(row.dead_lettered_at for row in world.dead_letters.rows(ALL, 10))
    for selection, expected in (
        (Selection(topic="other"), [two]),
        (Selection(key="k"), [one, two]),
        (Selection(key="K"), []),
        (Selection(ids=(one, 999)), [one]),
        (Selection(destination="crm"), []),
        (Selection(since=now - minute, until=now + minute), [one, two]),
        (Selection(since=now + minute), []),
        (Selection(since=east(now - minute), until=west(now + minute)), [one, two]),
        (Selection(since=west(now + minute)), []),
        (Selection(until=east(now - minute)), []),
        (Selection(until=now - minute), []),
        (Selection(since=first), [one, two]),
        (Selection(until=first), []),
    ):
        assert [row.id for row in world.dead_letters.rows(selection, 10)] == expected, selection
        assert world.dead_letters.count(selection) == len(expected), selection


def test_of_a_key_the_first_rows_are_shown(world: World) -> None:
    with world.tables.transaction() as connection:
        records = [OutboxRecord("t", "other" if n < 6 else "k", "v") for n in range(9)]
        Stasher().stash_many(connection, records)
    ids = world.mark()
    assert world.dead_letters.add([BadRow(row_id, "bad") for row_id in ids], TERM) == set(ids)
    for limit in (1, 2, 3):
        found = world.dead_letters.rows(Selection(key="k"), limit)
        assert [row.id for row in found] == ids[6 : 6 + limit]


def test_many_rows_at_once(world: World) -> None:
    with world.tables.transaction() as connection:
        Stasher().stash_many(connection, [OutboxRecord("t", "k", "v") for _ in range(2_500)])
    ids = [row.id for row in world.store.mark(TERM, 0, 3_000, 60_000.0)]
    assert len(ids) == 2_500
    rows = [BadRow(ids[0], "bad"), *[BadRow(row_id, "", waits=True) for row_id in ids[1:]]]
    assert world.dead_letters.add(rows, TERM) == set(ids)
    assert world.dead_letters.retry(Selection(ids=(ids[0],)), mode="mark") == 2_500
    assert [row.id for row in world.store.mark(OTHER, 0, 3_000, 60_000.0)] == ids


def test_topics_that_were_missing_are_known(world: World) -> None:
    assert world.dead_letters.missing_topics() == set()
    one, two, three = world.insert("1", "a"), world.insert("1", "b"), world.insert("2", "c")
    world.mark()
    errors = [advice(topic, KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)) for topic in "ab"]
    rows = [BadRow(one, errors[0]), BadRow(two, errors[1]), BadRow(three, "the topic 'c': no")]
    world.dead_letters.add(rows, TERM)
    assert world.dead_letters.missing_topics() == {"a", "b"}


def test_a_table_of_them_that_was_dropped_is_made_again(world: World) -> None:
    one, two = world.insert("1"), world.insert("2")
    world.mark()
    assert world.dead_letters.add([BadRow(one, "bad")], TERM) == {one}
    assert world.dead_letters.count() == 1
    with world.tables.transaction() as connection:
        connection.cursor().execute("DROP TABLE outbox_dead_letters")
    with suppress(TableMissing):  # whoever knows the table may have to hear of it once
        world.dead_letters.add([BadRow(two, "bad")], TERM)
    assert world.dead_letters.add([BadRow(two, "bad")], TERM) <= {two}
    assert [row.id for row in world.dead_letters.rows(ALL, 10)] == [two]


def test_a_move_that_fails_leaves_every_row_where_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = world.insert("1"), world.insert("2")
    world.mark()
    letters: Any = world.dead_letters
    assert letters.add([BadRow(one, "bad")], TERM) == {one}
    before = [row.id for row in letters.rows(ALL, 10)]
    execute = letters._execute

    def fail(statement: Any, *given: Any, **options: Any) -> Any:
        found = execute(statement, *given, **options)
        text = str(statement) if isinstance(statement, str) else repr(statement)
        if "DELETE FROM" in text:
            raise StoreUnavailable("the server went")
        return found

    changes: list[Callable[[], object]] = [
        lambda: letters.add([BadRow(two, "bad")], TERM),
        lambda: letters.retry(ALL, mode="mark"),
        lambda: letters.drop(ALL, mode="mark"),
    ]
    for change in changes:
        with monkeypatch.context() as patch:
            patch.setattr(letters, "_execute", fail)
            with pytest.raises(StoreUnavailable, match="went"):
                change()
        assert [row.id for row in letters.rows(ALL, 10)] == before
        assert world.mark(OTHER) == [two]
        world.mark()


def test_who_has_moved_rows_is_in_nobodys_way(world: World) -> None:
    one = world.insert("1")
    world.mark()
    world.dead_letters.add([BadRow(one, "bad")], TERM)
    with closing(world.tables.dead_letters(OUTBOX)) as other:
        assert other.retry(ALL, mode="mark") == 1
