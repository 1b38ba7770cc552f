"""Range mode on real PostgreSQL: late, aborted, prepared and very long transactions, and tables
whose ids cannot be harvested in ranges."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest

from harvest.core import range as r
from harvest.core.range_checkpoint import Position
from harvest.databases.postgres.partitions import PostgresPartitions
from harvest.databases.postgres.range import PostgresRangeStore
from harvest.errors import SchemaError
from harvest.maintenance.partitions import Extent, PartitionPolicy, carry_out, plan
from harvest.outbox.record import OutboxRecord
from harvest.outbox.stasher import Stasher
from harvest.testing.memory_broker import MemoryBroker, MemorySink
from marshal_py.embedded import EmbeddedPostgres

TOPIC = "orders"
PATIENCE = 200
"""Questions until whatever can be published is published."""


class Rig:
    """The scheduler on the real table, one action after the other, and a broker in memory."""

    def __init__(self, url: str, *, checkpoint_bytes: int = 4_000) -> None:
        self.url = url
        self.store = PostgresRangeStore(url, "outbox")
        self.broker = MemoryBroker()
        self._checkpoint_bytes = checkpoint_bytes
        self._stasher = Stasher()
        self.restart()

    def restart(self) -> None:
        """As after a crash: what is known is the checkpoint."""
        self.scheduler = r.RangeScheduler(1, checkpoint_bytes=self._checkpoint_bytes)
        self._sink = MemorySink(self.broker)
        self._actions = self.scheduler.step(r.Start())

    def turn(self, actions: int = 30) -> list[int]:
        """Carry out so many actions; return the ids published so far."""
        for _ in range(actions):
            action = self._actions.pop(0)
            self._actions += self.scheduler.step(self._answer(action))
        return [row[0] for row in self.broker.published]

    def turn_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(PATIENCE):
            if condition():
                return
            self.turn(1)
        raise AssertionError(f"not after {PATIENCE} actions: {self.scheduler}")

    def _answer(self, action: r.Action) -> r.Event:
        match action:
            case r.Read(after, limit):
                return r.ReadDone(self.store.read(after, limit))
            case r.AskHolders():
                return r.HoldersSeen(self.store.holders())
            case r.Lookup(ranges):
                return r.Found(self.store.lookup(ranges))
            case r.Fetch(ids):
                return r.Fetched(self.store.fetch(ids))
            case r.CheckTable():
                return r.TableChecked(self.store.bounds())
            case r.Open():
                found = self._sink.open(lambda: True)
                return r.Opened(None if found is None else Position.decode(found))
            case r.Send(number, rows, position):
                return r.Settled((number,), self._sink.deliver(rows, position.encode()))
        raise AssertionError(action)

    # --- The application ---

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.url)

    def insert(self, connection: psycopg.Connection, key: str = "k") -> int:
        self._stasher.stash(connection, OutboxRecord(TOPIC, key, "v"))
        ((id,),) = connection.execute("SELECT currval('outbox_id_seq')").fetchall()
        return int(id)

    def insert_and_commit(self, key: str = "k") -> int:
        with self.connect() as connection:
            return self.insert(connection, key)


@pytest.fixture
def rig(postgres_database: str) -> Iterator[Rig]:
    store = PostgresRangeStore(postgres_database, "outbox")
    store.init()
    store.close()
    made = Rig(postgres_database)
    yield made
    made.store.close()


@pytest.fixture
def preparing() -> Iterator[Rig]:
    """The same on a server that prepares transactions."""
    with EmbeddedPostgres(settings={"max_prepared_transactions": 5}) as server:
        made = Rig(server.create_database())
        made.store.init()
        yield made
        made.store.close()


def test_a_late_commit_is_published_when_it_comes_and_holds_up_nothing(rig: Rig) -> None:
    with rig.connect() as late:
        first = rig.insert(late)
        second = rig.insert_and_commit("other")
        assert rig.turn() == [second]
        third = rig.insert_and_commit("other")
        assert rig.turn() == [second, third]
        assert list(rig.scheduler.gaps.ranges) == [(first, first)]
        late.commit()
    assert rig.turn() == [second, third, first]
    assert not rig.scheduler.open_gaps


def test_an_unrelated_long_transaction_delays_nothing(rig: Rig) -> None:
    with rig.connect() as unrelated:
        unrelated.execute("CREATE TABLE something AS SELECT 1 AS x")
        unrelated.execute("SELECT count(*) FROM outbox")
        assert unrelated.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() != (None,)
        with rig.connect() as aborted:
            rig.insert(aborted)
            aborted.rollback()
        row = rig.insert_and_commit()
        assert rig.turn() == [row]
        assert not rig.scheduler.open_gaps
        assert rig.scheduler.gaps.dead_ids == 1


def test_a_gap_survives_a_crash_of_the_harvester(rig: Rig) -> None:
    with rig.connect() as late:
        first = rig.insert(late)
        second = rig.insert_and_commit("other")
        rig.turn()
        rig.restart()
        assert rig.turn() == [second]
        late.commit()
    assert rig.turn() == [second, first]


def test_a_prepared_transaction_is_a_suspect_until_it_is_decided(preparing: Rig) -> None:
    rig = preparing
    for decision in ("COMMIT", "ROLLBACK"):
        before = rig.turn()
        with rig.connect() as first:
            late = rig.insert(first)
            seen = rig.insert_and_commit("other")
            rig.turn()  # it has a name of its own now, and will have another
            first.execute("PREPARE TRANSACTION 'one'")
        assert rig.turn() == [*before, seen]
        assert rig.scheduler.open_gaps == 1
        rig.restart()
        assert rig.turn() == [*before, seen]
        assert rig.scheduler.open_gaps == 1
        with psycopg.connect(rig.url, autocommit=True) as second:
            second.execute(f"{decision} PREPARED 'one'")
        assert rig.turn() == [*before, seen, *([late] if decision == "COMMIT" else [])]
        assert not rig.scheduler.open_gaps


def test_an_explicit_nextval_is_a_suspect_before_it_inserts(rig: Rig) -> None:
    with rig.connect() as late:
        ((id,),) = late.execute("SELECT nextval('outbox_id_seq')").fetchall()
        row = rig.insert_and_commit("other")
        assert rig.turn() == [row]
        assert rig.scheduler.open_gaps == 1
        late.execute(
            "INSERT INTO outbox (id, create_time, kafka_topic, kafka_key, kafka_header_keys, "
            "kafka_header_values) VALUES (%s, now(), 'orders', 'k', '{}', '{}')",
            (id,),
        )
        late.commit()
    assert rig.turn() == [row, id]


def test_a_savepoint_that_is_rolled_back_leaves_a_dead_gap(rig: Rig) -> None:
    with rig.connect() as connection:
        first = rig.insert(connection)
        with connection.transaction(force_rollback=True):
            rig.insert(connection)
        second = rig.insert(connection)
        connection.commit()
    assert rig.turn() == [first, second]
    assert not rig.scheduler.open_gaps
    assert rig.scheduler.gaps.dead_ids == 1


def test_a_bulk_that_commits_late_comes_whole_and_in_order(rig: Rig) -> None:
    with rig.connect() as late:
        late.execute(
            "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_value, "
            "kafka_header_keys, kafka_header_values) SELECT now(), 'orders', 'k', n::text, "
            "'{}', '{}' FROM generate_series(1, 30000) AS n"
        )
        row = rig.insert_and_commit("other")
        assert rig.turn() == [row]
        late.commit()
    rig.turn_until(lambda: len(rig.broker.published) == 30_001)
    assert rig.turn() == [row, *range(row - 30_000, row)]


def test_rows_under_ids_that_were_never_drawn_close_no_gap_below(rig: Rig) -> None:
    """An import chose its own id. Ids between are drawn later, and must not be taken for dead."""
    first = rig.insert_and_commit()
    with rig.connect() as connection:
        connection.execute(
            "INSERT INTO outbox (id, create_time, kafka_topic, kafka_key, kafka_header_keys, "
            "kafka_header_values) VALUES (1000, now(), 'orders', 'other', '{}', '{}')"
        )
    assert rig.turn() == [first, 1000]
    later = [rig.insert_and_commit() for _ in range(3)]
    assert rig.turn() == [first, 1000, *later]
    with rig.connect() as late:
        last = rig.insert(late)
        rig.insert_and_commit("x")
        rig.turn()
        late.commit()
    assert rig.turn()[-1] == last


def test_too_many_gaps_stop_the_position_and_lose_nothing(postgres_database: str) -> None:
    store = PostgresRangeStore(postgres_database, "outbox")
    store.init()
    store.close()
    rig = Rig(postgres_database, checkpoint_bytes=60)
    with rig.connect() as late:
        held = [rig.insert(late)]
        seen = []
        for _ in range(40):
            seen.append(rig.insert_and_commit("other"))
            held.append(rig.insert(late))
        published = rig.turn(100)
        assert rig.scheduler.crowded
        assert published == seen[: len(published)]
        assert 0 < len(published) < len(seen)
        late.commit()
    rig.turn_until(lambda: not rig.scheduler.open_gaps)
    published = rig.turn()
    assert sorted(published) == sorted(seen + held)
    assert [id for id in published if id in held] == held
    assert [id for id in published if id in seen] == seen
    rig.store.close()


def test_concurrent_writers_and_crashes(rig: Rig) -> None:
    committed: dict[str, list[int]] = {f"w{n}": [] for n in range(4)}

    def write(name: str) -> None:
        choose = random.Random(name)
        with rig.connect() as connection:
            for _ in range(60):
                ids = [rig.insert(connection, name) for _ in range(choose.randint(1, 4))]
                if choose.random() < 0.3:
                    connection.rollback()
                else:
                    connection.commit()
                    committed[name] += ids

    threads = [threading.Thread(target=write, args=(name,), daemon=True) for name in committed]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        rig.turn(7)
        rig.restart()
    for thread in threads:
        thread.join()
    everything = sum(map(len, committed.values()))
    rig.turn_until(lambda: len(rig.broker.published) >= everything)
    rig.turn()
    for name, ids in committed.items():
        assert rig.broker.of_key(TOPIC, name.encode()) == ids
    assert len(rig.broker.published) == everything


# --- Tables that cannot be harvested in ranges ---


@pytest.mark.parametrize("first", [1_000, -5])
def test_ids_may_begin_anywhere(rig: Rig, first: int) -> None:
    with psycopg.connect(rig.url, autocommit=True) as connection:
        connection.execute(
            f"ALTER SEQUENCE outbox_id_seq MINVALUE {first} START {first} RESTART {first}"
        )
    assert rig.store.bounds() == (first, first - 1)
    assert rig.store.holders().drawn == first - 1
    assert rig.insert_and_commit() == first
    assert rig.store.bounds() == (first, first)
    rig.turn_until(lambda: [row[0] for row in rig.broker.published] == [first])


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("ALTER SEQUENCE outbox_id_seq CACHE 20", "CACHE 20"),
        ("ALTER SEQUENCE outbox_id_seq INCREMENT BY 50", "INCREMENT 50"),
        ("ALTER SEQUENCE outbox_id_seq CYCLE", "CYCLE"),
        ("ALTER TABLE outbox ALTER COLUMN id DROP DEFAULT", "0 sequences"),
        ("DROP TABLE outbox_positions", "harvest init --mode range"),
    ],
)
def test_what_would_lose_rows_is_refused_with_the_way_out(
    rig: Rig, statement: str, words: str
) -> None:
    with psycopg.connect(rig.url, autocommit=True) as connection:
        connection.execute(statement)
    with pytest.raises(SchemaError, match=words):
        rig.store.connect()
    assert any(f.level == "error" and words in f.text for f in rig.store.check())


def test_an_outbox_of_mark_mode_needs_only_the_positions(postgres_database: str) -> None:
    from harvest.databases.postgres.mark import PostgresMarkStore

    marked = PostgresMarkStore(postgres_database, "outbox")
    marked.init()
    marked.close()
    store = PostgresRangeStore(postgres_database, "outbox")
    assert store.init() is False
    assert all(finding.level == "ok" for finding in store.check())
    store.connect()
    store.close()


# --- Partitions ---

POLICY = PartitionPolicy(rows=100, ahead=2, retain_s=0)


def published(last_id: int, *gaps: tuple[int, int]) -> list[Position]:
    return [Position(1, 0, 1, last_id, gaps)]


def fill(rig: Rig, rows: int) -> int:
    with psycopg.connect(rig.url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, "
            "kafka_header_values) SELECT now() - interval '1 hour', 'orders', 'k', '{}', '{}' "
            "FROM generate_series(1, %s)",
            (rows,),
        )
    return rig.store.bounds().last


@pytest.fixture
def parts(rig: Rig) -> Iterator[PostgresPartitions]:
    """The partitions of a table that has none yet but the default."""
    store = PostgresPartitions(rig.url, "outbox")
    for partition in store.inventory().partitions:
        assert store.drop(partition)
    yield store
    store.close()


def test_partitions_are_made_ahead_and_dropped_behind(rig: Rig, parts: PostgresPartitions) -> None:
    done = carry_out(plan(parts.inventory(), (), POLICY), parts, POLICY)
    assert done.create == ((0, 100), (100, 200))
    last = fill(rig, 150)
    found = parts.inventory()
    assert [(p.low, p.high) for p in found.partitions] == [(0, 100), (100, 200)]
    assert (found.drawn, found.stray, found.partitioned) == (last, 0, True)
    done = carry_out(plan(found, published(last, (50, 50)), POLICY), parts, POLICY)
    assert (done.create, done.drop) == (((200, 300), (300, 400)), ())
    done = carry_out(plan(parts.inventory(), published(last), POLICY), parts, POLICY)
    assert [(p.low, p.high) for p in done.drop] == [(0, 100)]
    assert [row[0] for row in rig.store.read(0, 1000).rows] == list(range(100, last + 1))


def test_partitions_are_made_ahead_whoever_owns_the_sequence(
    rig: Rig, parts: PostgresPartitions
) -> None:
    with psycopg.connect(rig.url, autocommit=True) as connection:
        connection.execute("ALTER SEQUENCE outbox_id_seq OWNED BY NONE")
        connection.execute("ALTER SEQUENCE outbox_id_seq RENAME TO ids")
    last = fill(rig, 150)
    assert parts.inventory().drawn == last
    done = carry_out(plan(parts.inventory(), (), POLICY), parts, POLICY)
    assert done.create[0][0] > last


def test_partitions_are_made_of_a_table_with_columns_that_the_database_fills(
    rig: Rig, parts: PostgresPartitions
) -> None:
    """Else none would be dropped, either: the first that cannot be made ends it."""
    with psycopg.connect(rig.url, autocommit=True) as connection:
        connection.execute(
            "ALTER TABLE outbox ADD size integer GENERATED ALWAYS AS (length(kafka_value)) STORED"
        )
    done = carry_out(plan(parts.inventory(), (), POLICY), parts, POLICY)
    assert done.create == ((0, 100), (100, 200))
    assert fill(rig, 150) == 150
    assert parts.inventory().stray == 0


def test_partitions_of_another_column_are_left_alone(postgres_database: str) -> None:
    """Their numbers say nothing about ids."""
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE outbox (id bigserial, create_time timestamptz, kafka_topic text, "
            "kafka_key text, kafka_value text, kafka_header_keys text[], "
            "kafka_header_values text[], day int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)"
        )
        connection.execute("CREATE TABLE one PARTITION OF outbox FOR VALUES FROM (0) TO (10)")
        connection.execute(
            "INSERT INTO outbox (create_time, day) SELECT '2020-01-01', 7 "
            "FROM generate_series(1, 100)"
        )
    with closing(PostgresPartitions(postgres_database, "outbox")) as parts:
        found = parts.inventory()
        assert not found.partitioned
        done = carry_out(plan(found, published(50), POLICY), parts, POLICY)
    assert (done.create, done.drop, done.swept) == ((), (), 0)


def test_rows_that_outran_the_partitions_are_kept_and_swept_when_published(
    rig: Rig, parts: PostgresPartitions
) -> None:
    last = fill(rig, 30)
    done = carry_out(plan(parts.inventory(), published(20), POLICY), parts, POLICY)
    assert done.swept == 20
    assert done.create[0][0] > last
    assert [row[0] for row in rig.store.read(0, 1000).rows] == list(range(21, last + 1))


def test_a_transaction_in_the_way_is_not_waited_for(rig: Rig, parts: PostgresPartitions) -> None:
    carry_out(plan(parts.inventory(), (), POLICY), parts, POLICY)
    fill(rig, 150)
    todo = plan(parts.inventory(), published(150), POLICY)
    assert todo.drop
    with rig.connect() as busy:
        busy.execute("SET LOCAL idle_in_transaction_session_timeout = '20s'")  # who waits, fails
        rig.insert(busy)
        assert carry_out(todo, parts, POLICY).drop == ()
        rig.insert_and_commit()  # and nobody waits behind the manager
        busy.rollback()
    assert carry_out(todo, parts, POLICY).drop == todo.drop
    assert carry_out(todo, parts, POLICY).drop == ()  # it is gone


def test_of_two_managers_one_does_nothing(rig: Rig, parts: PostgresPartitions) -> None:
    with psycopg.connect(rig.url) as other:
        other.execute("SELECT pg_advisory_xact_lock(1751675766, 'outbox'::regclass::oid::int)")
        assert parts.create(0, 100) is None
    assert parts.create(0, 100) == "outbox_p0"
    assert parts.create(0, 100) is None


def test_gaps_are_looked_up_without_going_through_the_table(postgres_database: str) -> None:
    """Also while the server knows nothing about the table: 5,000 rows, and 100 of them wanted."""
    store = PostgresRangeStore(postgres_database, "outbox")
    store.init()
    rows, gaps = 5_000, [(low, low) for low in range(1, 5_000, 50)]
    statement = (
        "INSERT INTO outbox (create_time, kafka_topic, kafka_key, kafka_header_keys, "
        "kafka_header_values) SELECT now(), 't', 'k', '{}', '{}' FROM generate_series(1, %s)"
    )
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute(statement, (rows,))
        read = "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname LIKE 'outbox%'"
        ((before,),) = connection.execute(read).fetchall()
        assert store.lookup(gaps) == gaps
        store.close()  # then the server counts what it did
        after = before
        while after == before:
            ((after,),) = connection.execute(read).fetchall()
        assert after - before < rows / 10


def test_rows_of_no_partition_are_swept_when_they_are_old_enough(
    rig: Rig, parts: PostgresPartitions
) -> None:
    fill(rig, 3)  # an hour ago
    rig.insert_and_commit()
    assert parts.sweep(1_000, 7_200) == 0
    assert parts.sweep(1_000, 1_800) == 3
    assert parts.sweep(1_000, 0) == 1


def test_who_has_changed_partitions_is_in_nobodys_way(rig: Rig, parts: PostgresPartitions) -> None:
    assert parts.create(0, 100) == "outbox_p0"
    with closing(PostgresPartitions(rig.url, "outbox")) as other:
        assert other.create(100, 200) == "outbox_p100"


def test_a_partition_of_the_same_name_and_other_ids_is_another_one(
    rig: Rig, parts: PostgresPartitions
) -> None:
    assert parts.create(0, 100)
    (partition,) = parts.inventory().partitions
    with psycopg.connect(rig.url, autocommit=True) as connection:
        connection.execute("ALTER TABLE outbox DETACH PARTITION outbox_p0")
        connection.execute(
            "ALTER TABLE outbox ATTACH PARTITION outbox_p0 FOR VALUES FROM (0) TO (50)"
        )
    assert not parts.drop(partition)
    assert parts.drop(partition._replace(high=50))


class Watched(PostgresPartitions):
    """Somebody tries to write while rows are counted."""

    written = 0

    def _run(self, statement: Any, parameters: tuple[object, ...] = ()) -> Any:
        found = super()._run(statement, parameters)
        if "count(*)" in repr(statement):
            with (
                suppress(psycopg.errors.LockNotAvailable),
                psycopg.connect(self.conninfo) as other,
            ):
                other.execute("LOCK TABLE outbox_p0 IN ROW EXCLUSIVE MODE NOWAIT")
                self.written += 1
        return found


def test_nobody_writes_while_it_is_seen_that_all_rows_are_in_the_archive(
    rig: Rig, parts: PostgresPartitions
) -> None:
    assert parts.create(0, 100)
    fill(rig, 5)
    (partition,) = parts.inventory().partitions
    expected = parts.extent(partition)
    with closing(Watched(rig.url, "outbox")) as watched:
        assert not watched.drop(partition, Extent(4, 1, 4))
        assert watched.drop(partition, expected)
        assert watched.written == 0
