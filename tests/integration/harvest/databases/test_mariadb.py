"""The outbox in MariaDB: commands, late commits, odd settings, and processes that are killed.

In campaigns, in MySQL as well, like all that uses its fixture (tests/conftest.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from harvest import OutboxRecord, Stasher
from harvest.core.dead_letters import MISSING_TOPIC, BadRow
from harvest.core.gaps import Gaps
from harvest.core.interfaces.dead_letter_store import Dropped, Selection
from harvest.core.mark_checkpoint import Term
from harvest.core.source import Registration
from harvest.core.table_name import TableName
from harvest.databases.mysql import dead_letters
from harvest.databases.mysql.mark import MysqlMarkStore
from harvest.databases.mysql.range import MysqlRangeStore
from harvest.databases.mysql.table import connect_arguments
from harvest.errors import ConfigurationError, NoTransaction, SchemaError, StoreUnavailable
from marshal_py.embedded import EmbeddedKafka, EmbeddedMariaDB
from tests.integration.harvest.cli.test_commands import harvest
from tests.integration.harvest.databases.test_sqlite import assert_a_bad_row_stops_nothing
from tests.support.harvest_world import MariadbWorld, wait_until

TERM = Term.of(1)


def connect(url: str, **more: Any) -> Any:
    return pymysql.connect(**connect_arguments(url), **more)


def execute(connection: Any, statement: str, *parameters: object) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return cursor.fetchall()


@pytest.fixture(params=["mark", "range"])
def world(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    mariadb_database: str,
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
) -> Iterator[MariadbWorld]:
    topic = kafka_topic(partitions=3)
    url = mariadb_database
    made = MariadbWorld(tmp_path, kafka.bootstrap_servers, url, topic, mode=request.param)
    store = (MysqlMarkStore if request.param == "mark" else MysqlRangeStore)(url, "outbox")
    with made.opened(kafka, store):
        yield made


@pytest.mark.kafka
def test_killed_leaders_and_a_killed_server_lose_repeat_and_reorder_nothing(
    world: MariadbWorld, mariadb: EmbeddedMariaDB
) -> None:
    for _ in range(2):
        world.harvester()
    with world.writing():
        for _ in range(2):
            world.wait_published(world.published_count())
            world.leader().kill()
            world.harvester()
        world.wait_published(world.published_count())
        mariadb.kill()
        mariadb.start()
        world.wait_published(world.published_count() + 100)
    world.assert_exactly_once()
    assert world.rolled_back


@pytest.mark.kafka
def test_a_bad_row_stops_nothing(world: MariadbWorld) -> None:
    assert_a_bad_row_stops_nothing(world)


@pytest.mark.parametrize("mode", ["mark", "range"])
def test_the_commands_take_a_url(
    mariadb: EmbeddedMariaDB, mariadb_database: str, mode: str
) -> None:
    url = mariadb_database
    made = harvest("init", "-d", url, "--mode", mode)
    assert made.stdout == "outbox: created\n", made.stderr
    if mode == "mark":
        assert harvest("stash", "orders", "k", "v", "-d", url).returncode == 0
        checked = harvest("check", "-d", url)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "1 rows" in checked.stdout
        server = type(mariadb).__name__.removeprefix("Embedded")  # or MySQL, in campaigns
        assert f"{server} " in checked.stdout


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://u:secret@host", "names no database"),
        ("mysql://u:secret@host:port/db", "cannot be read"),
        ("mysql://u:secret@host/db?sl=1", "'sl'"),
    ],
)
def test_what_cannot_be_read_is_refused_without_showing_it(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        MysqlMarkStore(url, "outbox")
    assert "secret" not in str(caught.value)


def test_a_server_that_is_down_is_an_outage_without_a_password(
    mariadb: EmbeddedMariaDB, mariadb_database: str
) -> None:
    url = mariadb_database.replace("root@", "root:secret@")
    with pytest.raises(StoreUnavailable) as caught:
        MysqlMarkStore(url, "outbox").connect()
    assert "secret" not in str(caught.value)


def test_what_commits_between_the_choice_of_rows_and_their_mark_waits_for_the_next(
    mariadb_database: str,
) -> None:
    """Else a mark could take the later row of a transaction, and not the earlier one."""

    class Interrupted(MysqlMarkStore):
        interrupt: Callable[[], None] | None = None

        def _change(self, statement: str, parameters: Sequence[Any] = ()) -> int:
            interrupt, self.interrupt = self.interrupt, None
            if interrupt is not None:
                interrupt()
            return super()._change(statement, parameters)

    store = Interrupted(mariadb_database, "outbox")
    store.init()
    with connect(mariadb_database) as late, connect(mariadb_database, autocommit=True) as early:
        for connection, key in ((late, "l"), (early, "e"), (late, "l"), (early, "e")):
            execute(connection, insert(key))
        store.interrupt = late.commit
        chosen = store.mark(TERM, 0, 10, 60_000.0)
        assert store.interrupt is None
        assert [row.key for row in chosen] == [b"e", b"e"]
        first = chosen[0].id
        assert [r.id for r in store.mark(TERM, 1, 10, 60_000.0)] == [first - 1, first + 1]


def test_an_insert_whose_transaction_is_not_on_the_list_yet_is_a_suspect(
    mariadb_database: str,
) -> None:
    """A trigger keeps it where InnoDB has not heard of it: its statement is the only evidence."""
    url = mariadb_database
    store = MysqlRangeStore(url, "outbox")
    store.init()
    with connect(url, autocommit=True) as blocker, connect(url, autocommit=True) as writer:
        execute(blocker, "SELECT GET_LOCK('here', 0)")
        execute(
            writer,
            "CREATE TRIGGER slow BEFORE INSERT ON outbox FOR EACH ROW "
            "SET @got = IF(NEW.kafka_key = 'late', GET_LOCK('here', 30), 0)",
        )
        thread = threading.Thread(target=execute, args=(writer, insert("late")), daemon=True)
        thread.start()
        try:
            while not execute(
                blocker, "SELECT 1 FROM information_schema.processlist WHERE state = 'User lock'"
            ):
                pass
            assert store.holders().running
        finally:
            execute(blocker, "SELECT RELEASE_LOCK('here')")
            thread.join()
        assert not store.holders().running
    store.close()


def test_an_older_copy_of_the_list_of_transactions_is_not_believed(
    mariadb_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = mariadb_database
    looks: list[bool] = []
    with closing(MysqlRangeStore(url, "outbox")) as store, connect(url) as late:
        store.init()
        ask = store._execute

        def older(statement: str, parameters: Sequence[Any] = ()) -> Any:
            found = ask(statement, parameters)
            if "innodb_trx" not in statement:
                return found
            looks.append(True)
            if len(looks) > 1:
                return found
            # From before the other transaction: of ours, with the statement before this one.
            return [(*row[:5], 0) for row in found if row[4]]

        monkeypatch.setattr(store, "_execute", older)
        execute(late, insert("late"))
        assert store.holders().running
        assert len(looks) > 1


def test_an_unrelated_transaction_stops_no_other_gap(mariadb_database: str) -> None:
    url = mariadb_database
    store = MysqlRangeStore(url, "outbox")
    store.init()
    with connect(url) as first, connect(url) as late, connect(url) as other:
        execute(first, insert("a"))
        first.commit()
        execute(late, insert("b"))
        execute(first, insert("c"))
        first.commit()
        gaps = Gaps().plus(store.read(0, 10).missing).judged(store.holders())
        gaps = gaps.looked(store.lookup(gaps.ranges))
        execute(other, "SELECT * FROM outbox")
        execute(other, insert("d"))
        late.rollback()
        gaps = gaps.judged(store.holders())
        assert not gaps.looked(store.lookup(gaps.ranges))
    store.close()


@pytest.mark.parametrize(
    ("begin", "under_way"),
    [
        ("START TRANSACTION WITH CONSISTENT SNAPSHOT", False),
        ("START TRANSACTION READ ONLY", True),
        ("SET autocommit = 1", True),
    ],
)
def test_a_long_transaction_that_only_reads_keeps_no_gap_open(
    mariadb_database: str, begin: str, under_way: bool
) -> None:
    """Else the position is full after some 1,000 rollbacks, and nothing new is read."""
    url = mariadb_database
    reading = "SELECT GET_LOCK('here', 60), id FROM outbox LIMIT 1"
    with (
        closing(MysqlRangeStore(url, "outbox")) as store,
        connect(url, autocommit=True) as writer,
        connect(url) as reader,
    ):
        store.init()
        execute(writer, insert("a"))
        execute(writer, "SELECT GET_LOCK('here', 0)")
        execute(reader, begin)
        thread = threading.Thread(target=execute, args=(reader, reading), daemon=True)
        if under_way:
            thread.start()
            while not execute(
                writer, "SELECT 1 FROM information_schema.processlist WHERE state = 'User lock'"
            ):
                assert thread.is_alive()
        else:
            execute(reader, "SELECT id FROM outbox")
        try:
            execute(writer, "BEGIN")
            execute(writer, insert("b"))
            execute(writer, "ROLLBACK")
            execute(writer, insert("c"))
            gaps = Gaps().plus(store.read(0, 10).missing)
            assert list(gaps.ranges) == [(2, 2)]
            gaps = gaps.judged(store.holders())
            assert not gaps.looked(store.lookup(gaps.ranges))
        finally:
            execute(writer, "SELECT RELEASE_LOCK('here')")
            if under_way:
                thread.join()


def test_a_select_whose_function_may_insert_is_no_reader(mariadb_database: str) -> None:
    """Read-only is what never inserts, whatever word the statement begins with."""
    url = mariadb_database
    with (
        closing(MysqlRangeStore(url, "outbox")) as store,
        connect(url, autocommit=True) as blocker,
        connect(url, autocommit=True) as reader,
    ):
        store.init()
        execute(blocker, "CREATE TABLE other ENGINE = InnoDB SELECT 1 AS id")
        execute(
            blocker,
            "CREATE FUNCTION inserts() RETURNS INT DETERMINISTIC MODIFIES SQL DATA "
            f"BEGIN DO GET_LOCK('here', 60); {insert('late')}; RETURN 1; END",
        )
        execute(blocker, "SELECT GET_LOCK('here', 0)")
        begun = (reader, "SELECT inserts() FROM other")
        thread = threading.Thread(target=execute, args=begun, daemon=True)
        thread.start()
        try:
            while not execute(
                blocker, "SELECT 1 FROM information_schema.processlist WHERE state = 'User lock'"
            ):
                assert thread.is_alive()
            assert store.holders().running
        finally:
            execute(blocker, "SELECT RELEASE_LOCK('here')")
            thread.join()
        assert not store.holders().running
        assert len(store.read(0, 10).rows) == 1


def test_what_an_idle_transaction_draws_later_is_its_own(mariadb_database: str) -> None:
    url = mariadb_database
    with (
        closing(MysqlRangeStore(url, "outbox")) as store,
        connect(url, autocommit=True) as writer,
        connect(url) as late,
    ):
        store.init()
        execute(late, "SELECT id FROM outbox")
        store.holders()
        execute(late, insert("a"))
        execute(writer, insert("b"))
        gaps = Gaps().plus(store.read(0, 10).missing)
        for _ in range(2):
            gaps = gaps.judged(store.holders())
            gaps = gaps.looked(store.lookup(gaps.ranges))
        assert list(gaps.ranges) == [(1, 1)]
        late.commit()
        gaps = gaps.judged(store.holders())
        assert store.lookup(gaps.ranges) == [(1, 1)]


def test_many_gaps_are_looked_up_at_one_moment(mariadb_database: str) -> None:
    url = mariadb_database
    store = MysqlRangeStore(url, "outbox")
    store.init()
    with connect(url) as connection:
        records = [OutboxRecord("t", f"k{n}", "v") for n in range(5_000)]
        Stasher().stash_many(connection, records)
        execute(connection, "DELETE FROM outbox WHERE id % 2 = 0")
        connection.commit()
    wanted = [(2 * n + 1, 2 * n + 1) for n in range(2_500)]
    assert store.lookup(wanted) == wanted
    assert len(store.fetch(wanted)) == 2_500
    assert len(store.read(0, 5_000).missing) == 2_499
    store.close()


def test_a_key_in_another_character_set_is_of_one_shard(mariadb_database: str) -> None:
    """The server finds the shard of what is read, and we that of what was in a gap."""
    seen: list[int] = []
    MysqlRangeStore(mariadb_database, "outbox").init()
    with connect(mariadb_database, autocommit=True) as connection:
        execute(connection, "ALTER TABLE outbox MODIFY kafka_key VARCHAR(9) CHARACTER SET latin1")
        for number in range(20):
            execute(connection, insert(f"é{number}"))
    for shard in range(3):
        with closing(MysqlRangeStore(mariadb_database, "outbox", shard=shard, shards=3)) as store:
            ids = [row[0] for row in store.read(0, 100).rows]
            assert [row[0] for row in store.fetch([(1, 100)])] == ids
            seen += ids
    assert sorted(seen) == list(range(1, 21))


def test_bytes_and_headers_arrive_as_they_are(mariadb_database: str) -> None:
    store = MysqlMarkStore(mariadb_database, "outbox")
    store.init(value_type="bytes")
    value = bytes(range(256))
    with connect(mariadb_database) as connection:
        record = OutboxRecord("t", b"\xff", value, [("ü", "%s'\\"), ("ü", "")])
        Stasher().stash(connection, record)
        connection.commit()
    (row,) = store.mark(TERM, 0, 10, 60_000.0)
    assert (row.key, row.value) == (b"\xff", value)
    assert (row.header_keys, row.header_values) == (("ü".encode(),) * 2, (b"%s'\\", b""))
    store.close()


def test_a_stash_without_a_transaction_is_refused(mariadb_database: str) -> None:
    MysqlMarkStore(mariadb_database, "outbox").init()
    with connect(mariadb_database, autocommit=True) as connection:
        with pytest.raises(NoTransaction):
            Stasher().stash(connection, OutboxRecord("t", "k", "v"))
        connection.begin()
        Stasher().stash(connection, OutboxRecord("t", "k", "v"))
        connection.rollback()


@pytest.mark.parametrize("store_class", [MysqlMarkStore, MysqlRangeStore])
def test_a_connection_that_breaks_off_is_no_other_server(
    mariadb_database: str, store_class: type[MysqlMarkStore] | type[MysqlRangeStore]
) -> None:
    with closing(store_class(mariadb_database, "outbox")) as store:
        store.init()
        facts = store.facts()
        assert facts.server
        assert bool(facts.sequence) is (store_class is MysqlRangeStore)
        with connect(mariadb_database) as connection:
            execute(connection, f"KILL CONNECTION {store._thread_id}")
        with pytest.raises(StoreUnavailable):
            store.facts()
        assert store.facts() == facts


@pytest.mark.parametrize("table", ["outbox", '"out-box"', '"東 $.box"'])
def test_ids_that_begin_anew_have_another_source(mariadb_database: str, table: str) -> None:
    name = f"{mariadb_database.rpartition('/')[2]}-a"
    with connect(mariadb_database, autocommit=True) as connection:
        execute(connection, f"CREATE DATABASE `{name}`")
        with closing(MysqlRangeStore(f"{mariadb_database}-a", table)) as store:
            store.init()
            before = store.facts().sequence
            quoted = TableName.parse(table).quoted("`")
            execute(connection, f"TRUNCATE TABLE `{name}`.{quoted}")
            after = store.facts().sequence
        execute(connection, f"DROP DATABASE `{name}`")
    assert before
    assert after
    assert before != after


def test_a_connection_that_cannot_be_set_up_is_ended(
    mariadb_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MysqlMarkStore, "_isolation", "NONE AT ALL")
    others = (
        "SELECT id FROM information_schema.processlist "
        "WHERE db = DATABASE() AND id <> CONNECTION_ID()"
    )
    with connect(mariadb_database, autocommit=True) as connection:
        with pytest.raises(StoreUnavailable, match="NONE AT ALL") as error:
            MysqlMarkStore(mariadb_database, "outbox").ping()
        wait_until(lambda: execute(connection, others) == (), "the connection ends")
        del error  # which has kept all that was on the stack


def test_who_finds_the_database_read_only_connects_anew(mariadb_database: str) -> None:
    """It has failed over, and the connection is still to what was the primary."""
    MysqlMarkStore(mariadb_database, "outbox").init()
    database = mariadb_database.rpartition("/")[2]
    store = MysqlMarkStore(mariadb_database.replace("root@", "writer@"), "outbox")
    with connect(mariadb_database, autocommit=True) as connection:
        execute(connection, "CREATE USER IF NOT EXISTS 'writer'@'127.0.0.1'")
        execute(connection, f"GRANT ALL ON `{database}`.* TO 'writer'@'127.0.0.1'")
        connection.begin()
        Stasher().stash(connection, OutboxRecord("t", "k", "v"))
        connection.commit()
        store.connect()
        before = store._thread_id
        execute(connection, "SET GLOBAL read_only = 1")
        try:
            with pytest.raises(StoreUnavailable, match="the database is read-only"):
                store.mark(TERM, 0, 10, 60_000)
        finally:
            execute(connection, "SET GLOBAL read_only = 0")
    assert [row.value for row in store.mark(TERM, 1, 10, 60_000)] == [b"v"]
    assert store._thread_id != before
    store.close()


def test_what_a_server_is_set_to_changes_nothing(mariadb_database: str) -> None:
    settings = {
        "sql_safe_updates": 1,
        "sql_select_limit": 1,
        "completion_type": 1,
        "sql_mode": "CONCAT(@@GLOBAL.sql_mode, ',NO_BACKSLASH_ESCAPES')",
    }
    first = Registration("cluster", "topic", "group", "mark")
    with connect(mariadb_database, autocommit=True) as connection:
        for name, value in settings.items():
            execute(connection, f"SET GLOBAL {name} = {value}")
        try:
            with closing(MysqlMarkStore(mariadb_database, "outbox")) as store:
                store.init()
                store.register(first)
                store.register_anew(replace(first, mode="range"))
                registered = store.registration()
                assert registered is not None
                assert registered.mode == "range"
                for topic in ("one", "two"):
                    connection.begin()
                    Stasher().stash(connection, OutboxRecord(topic, "k", "v"))
                    connection.commit()
                assert sorted(store.topics()) == ["one", "two"]
                ids = [row.id for row in store.mark(TERM, 0, 10, 60_000.0)]
                assert store.purge(ids, [TERM.tag(0)]) == 2
        finally:
            for name in settings:
                execute(connection, f"SET GLOBAL {name} = DEFAULT")


def test_without_the_privilege_to_see_transactions_range_mode_is_refused(
    mariadb_database: str,
) -> None:
    database = mariadb_database.rpartition("/")[2]
    MysqlRangeStore(mariadb_database, "outbox").init()
    with connect(mariadb_database) as connection:
        execute(connection, "CREATE USER IF NOT EXISTS 'harvester'@'127.0.0.1'")
        execute(connection, f"GRANT ALL ON `{database}`.* TO 'harvester'@'127.0.0.1'")
    url = mariadb_database.replace("root@", "harvester@")
    store = MysqlRangeStore(url, "outbox")
    with pytest.raises(SchemaError, match="GRANT PROCESS"):
        store.connect()
    assert any(f.level == "error" and "PROCESS" in f.text for f in store.check())
    store.close()


def test_who_may_make_no_tables_registers_in_that_of_its_owner(mariadb_database: str) -> None:
    ours = Registration("cluster", "topic", "group", "mark")
    MysqlMarkStore(mariadb_database, "outbox").init()
    database = mariadb_database.rpartition("/")[2]
    with connect(mariadb_database) as connection:
        execute(connection, "CREATE USER IF NOT EXISTS 'reaper'@'127.0.0.1'")
        for rights, table in (
            ("SELECT, UPDATE, DELETE", "outbox"),
            ("SELECT, INSERT, UPDATE", "outbox_registration"),
        ):
            execute(connection, f"GRANT {rights} ON `{database}`.{table} TO 'reaper'@'127.0.0.1'")
    url = mariadb_database.replace("root@", "reaper@")
    with closing(MysqlMarkStore(url, "outbox")) as store:
        store.connect()
        assert store.register(ours) == ours
        assert store.visit("one").visit == 1


def insert(key: str) -> str:
    return (
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, "
        f"kafka_header_values) VALUES ('t', '{key}', 'v', '[]', '[]')"
    )


def test_who_does_not_get_the_lock_in_time_moves_nothing(
    mariadb_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "_LOCK_TIMEOUT_S", 0)
    with (
        closing(MysqlMarkStore(mariadb_database, "outbox")) as store,
        closing(dead_letters.MysqlDeadLetters(mariadb_database, "outbox")) as letters,
        connect(mariadb_database) as other,
    ):
        store.init()
        letters.create()
        execute(other, f"SELECT GET_LOCK('{letters._lock}', 0)")
        with pytest.raises(StoreUnavailable, match="somebody else is moving rows"):
            letters.retry(Selection(), mode="mark")
        execute(other, f"SELECT RELEASE_LOCK('{letters._lock}')")
        assert letters.retry(Selection(), mode="mark") == 0


def test_rows_that_somebody_else_takes_over_meanwhile_are_not_returned(
    mariadb_database: str,
) -> None:
    class Overtaken(MysqlMarkStore):
        other: MysqlMarkStore | None = None

        def _change(self, statement: str, parameters: Sequence[Any] = ()) -> int:
            done = super()._change(statement, parameters)
            other, self.other = self.other, None
            if other is not None:
                assert len(other.mark(Term.of(2), 0, 1, 60_000.0)) == 1
            return done

    with (
        closing(Overtaken(mariadb_database, "outbox")) as store,
        closing(MysqlMarkStore(mariadb_database, "outbox")) as other,
        connect(mariadb_database, autocommit=True) as writer,
    ):
        store.init()
        for key in "ab":
            execute(writer, insert(key))
        store.other = other
        assert [row.key for row in store.mark(TERM, 0, 10, 60_000.0)] == [b"b"]


def test_a_mark_that_waited_beyond_its_time_takes_nothing_from_a_successor(
    mariadb_database: str,
) -> None:
    tag = Term.of(2).tag(0).bytes
    found: list[Sequence[Any]] = []
    with (
        closing(MysqlMarkStore(mariadb_database, "outbox")) as store,
        connect(mariadb_database) as successor,
        connect(mariadb_database, autocommit=True) as other,
    ):
        store.init()
        for key in "ab":
            execute(other, insert(key))
        store.connect()
        thread = threading.Thread(target=lambda: found.append(store.mark(TERM, 0, 10, 2_000.0)))
        execute(successor, "UPDATE outbox SET leader_id = %s", tag)
        thread.start()
        # Not `innodb_trx`: who reads that without a pause is shown the same answer for ever.
        waiting = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"
        while execute(other, waiting)[0][1] == "0":
            assert thread.is_alive()
        execute(other, "SELECT SLEEP(2)")  # by the clock that the mark is judged by
        successor.commit()
        thread.join(60)
        assert found == [[]]
        assert execute(other, "SELECT DISTINCT leader_id FROM outbox") == ((tag,),)


def test_a_lookup_sees_one_moment_in_all_its_parts(
    mariadb_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a gap could be found dead whose row was committed before one that was seen."""
    monkeypatch.setattr("harvest.databases.mysql.table._TERMS", 1)
    with (
        closing(MysqlRangeStore(mariadb_database, "outbox")) as store,
        connect(mariadb_database) as late,
    ):
        store.init()
        for key in "abc":
            execute(late, insert(key))
        asked, ask = [], store._execute

        def interrupted(statement: str, parameters: Sequence[Any] = ()) -> Any:
            found = ask(statement, parameters)
            if "FORCE INDEX" in statement:
                asked.append(found)
                late.commit()
            return found

        store.connect()
        monkeypatch.setattr(store, "_execute", interrupted)
        assert store.lookup([(1, 1), (3, 3)]) == []
        assert len(asked) == 2
        assert [row[0] for row in store.read(0, 10).rows] == [1, 2, 3], "the next moment is another"


def test_topics_that_differ_in_capitals_are_two(mariadb_database: str) -> None:
    """In a column of one's own, too, which may take them for one: `drop --topic` is for good."""
    with (
        closing(MysqlMarkStore(mariadb_database, "outbox")) as store,
        closing(dead_letters.MysqlDeadLetters(mariadb_database, "outbox")) as letters,
    ):
        store.init()
        with connect(mariadb_database, autocommit=True) as connection:
            execute(
                connection,
                "ALTER TABLE outbox MODIFY kafka_topic VARCHAR(249) COLLATE utf8mb4_general_ci",
            )
            for topic in "tT":
                execute(connection, insert("k").replace("'t'", f"'{topic}'"))
        store.mark(TERM, 0, 10, 60_000.0)
        missing = MISSING_TOPIC.format
        assert letters.add([BadRow(1, missing("t")), BadRow(2, missing("T"))], TERM) == {1, 2}
        assert letters.missing_topics() == {"t", "T"}
        assert [row.id for row in letters.rows(Selection(topic="T"), 9)] == [2]
        assert letters.drop(Selection(topic="T"), mode="mark") == Dropped(1, 0)
        assert [row.topic for row in letters.rows(Selection(), 9)] == ["t"]


def test_rows_that_are_being_set_aside_are_locked(
    mariadb_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another leader that took them over in between would publish them, too."""
    with (
        closing(MysqlMarkStore(mariadb_database, "outbox")) as store,
        closing(dead_letters.MysqlDeadLetters(mariadb_database, "outbox")) as letters,
        connect(mariadb_database, autocommit=True) as other,
    ):
        store.init()
        execute(other, insert("a"))
        (row,) = store.mark(TERM, 0, 10, 60_000.0)
        found, ours = list[str](), letters._ours

        def looked(*given: Any) -> Any:
            seen = ours(*given)
            try:
                execute(other, f"SELECT 1 FROM outbox WHERE id = {row.id} FOR UPDATE NOWAIT")
                found.append("free")
            except pymysql.OperationalError:
                found.append("locked")
            return seen

        monkeypatch.setattr(letters, "_ours", looked)
        assert letters.add([BadRow(row.id, "bad")], TERM) == {row.id}
        assert found == ["locked"]
