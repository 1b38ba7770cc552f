"""What a reconciliation reads of either side, and how it adds it up: no Kafka, no JVM."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from harvest.errors import ConfigurationError, SchemaError, StoreUnavailable, TableMissing
from harvest.spark import reconcile as module
from harvest.spark.compare import BUCKETS
from harvest.spark.details import Rules
from harvest.spark.reconcile import Outbox, _extent, _fingerprint, _only, _prints, _Window
from harvest.spark.sources import (
    _NEEDED,
    Part,
    ids_of_postgres,
    of_kafka,
    of_postgres,
    postgres_rows,
)
from harvest.spark.state import State, StateFolder
from marshal_py.errors import TopicMissing
from tests.support.watched_cluster import watched_sessions


class Ends:
    """Where topics begin and end; at a time, the offset that is that time."""

    def __init__(self, topics: dict[str, dict[int, tuple[int, int]]]) -> None:
        self.topics = topics

    def __enter__(self) -> Ends:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def extent(self, topic: str) -> dict[int, tuple[int, int]]:
        if topic not in self.topics:
            raise TopicMissing(topic)
        return self.topics[topic]

    def at(self, topic: str, partitions: list[int], at_ms: int) -> dict[int, int]:
        return dict.fromkeys(partitions, at_ms)


def extent(
    monkeypatch: pytest.MonkeyPatch,
    topics: dict[str, dict[int, tuple[int, int]]],
    compared: dict[str, dict[int, int]],
    first_ms: int | None = None,
) -> Any:
    monkeypatch.setattr(module, "Offsets", lambda *_: Ends(topics))
    return _extent({}, ["t", "u"], 1.0, compared, first_ms)


def test_records_are_read_from_what_was_compared_to_what_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics = {"t": {0: (2, 10), 1: (0, 10), 2: (0, 3), 3: (0, 5)}}
    # 0 has lost its beginning, of 2 nothing is new, 3 has been added, u is not there.
    starts, ends = extent(monkeypatch, topics, {"t": {0: 1, 1: 7, 2: 3}, "u": {0: 4}})
    assert starts == {"t": {0: 2, 1: 7, 2: 3, 3: 0}}
    assert ends == {"t": {0: 10, 1: 10, 2: 3, 3: 5}}
    starts, ends = extent(monkeypatch, topics, {}, first_ms=4)
    assert starts == {"t": dict.fromkeys(range(4), 4)}
    assert ends == {"t": {0: 10, 1: 10, 2: 4, 3: 5}}  # 2 has got a record since its end was asked


@pytest.mark.parametrize("partition", [0, 1])
def test_a_topic_that_ends_before_what_was_compared_needs_a_full_run(
    monkeypatch: pytest.MonkeyPatch, partition: int
) -> None:
    """It was made anew: nothing of it would be read, and all of its rows would be missing."""
    with pytest.raises(ConfigurationError, match=f"t/{partition} was compared up to offset 1000,"):
        extent(monkeypatch, {"t": {0: (0, 50)}}, {"t": {partition: 1_000}})


def test_an_outbox_without_a_row_and_without_a_topic_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """That of mark mode, say, which is emptied as it is published."""
    monkeypatch.setattr(module, "_topics", lambda *_: [])
    monkeypatch.setattr(Outbox, "frame", lambda *_: None)  # it is an outbox
    monkeypatch.setattr(module, "cluster_watched", lambda _: nullcontext())
    outbox = Outbox(dsn="x", table="shop.outbox")
    for state in (None, tmp_path):
        with pytest.raises(ConfigurationError, match=r"shop\.outbox has no row .*--topic"):
            module.reconcile(cast(Any, None), outbox, "kafka:1", state=state)


def test_what_was_found_is_told_before_the_state_says_that_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A missing row is told once: by a run that ends in between it would be told to nobody."""
    result = module.Reconciliation(1, 0, 1, {"missing": 1}, 0, {}, [], 0.1)
    following = State("outbox", run=1, last_id=7)
    monkeypatch.setattr(module._Run, "compare", lambda *_: (result, following))
    monkeypatch.setattr(module, "cluster_watched", lambda _: nullcontext())
    outbox = Outbox(dsn="x")
    told: list[object] = []

    def fail(_result: object) -> None:
        raise BrokenPipeError

    def compare(tell: Any) -> Any:
        return module.reconcile(cast(Any, None), outbox, "kafka:1", state=tmp_path, tell=tell)

    with pytest.raises(BrokenPipeError):
        compare(fail)
    assert StateFolder(tmp_path).load("outbox") == State("outbox")
    assert compare(told.append) is result
    assert told == [result]
    assert StateFolder(tmp_path).load("outbox").last_id == 7


class Writer:
    """A session that keeps which table is written, how, and where."""

    def __init__(self) -> None:
        self.write, self.did = self, list[Any]()

    def createDataFrame(self, *table: Any) -> Writer:
        self.did.append(table)
        return self

    def mode(self, how: str) -> Writer:
        self.did.append(how)
        return self

    def parquet(self, path: str) -> None:
        self.did.append(path)


@pytest.mark.parametrize("out", ["/out", None])
def test_where_all_arrived_the_table_of_findings_has_none_of_the_run_before(
    monkeypatch: pytest.MonkeyPatch, out: str | None
) -> None:
    """The report beside it says that all is well."""
    spark = Writer()
    monkeypatch.setattr(module, "_extent", lambda *_: ({}, {}))
    monkeypatch.setattr(Outbox, "frame", lambda *_: None)
    given: Any = (spark, Outbox(dsn="x"), {}, ["t"], 60.0, out, 10, 1.0, _Window())
    assert module._Run(*given).compare(State("outbox"), None, 0)[0].clean
    table: list[Any] = [([], module.FINDING_COLUMNS), "overwrite", "/out/findings"]
    assert spark.did == (table if out else [])


@pytest.mark.parametrize("with_state", [False, True])
def test_a_run_keeps_others_out_and_does_not_wait_for_a_cluster_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, with_state: bool
) -> None:
    watched = watched_sessions(monkeypatch, module)

    result = module.Reconciliation(1, 0, 1, {}, 0, {}, [], 0.1)

    def compare(*_: object) -> Any:
        assert watched == ["spark"]
        with raises_if(with_state), StateFolder(tmp_path).locked():
            pass
        return result, State("outbox")

    def raises_if(locked: bool) -> Any:
        return pytest.raises(ConfigurationError, match="another") if locked else nullcontext()

    monkeypatch.setattr(module._Run, "compare", compare)
    state = tmp_path if with_state else None
    spark = cast(Any, "spark")
    assert module.reconcile(spark, Outbox(dsn="x"), "k:1", topics=["t"], state=state) is result


def test_times_are_given_in_seconds_and_compared_in_milliseconds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    young: list[int] = []
    late: list[int] = []

    def rules(young_ms: int, **more: Any) -> Rules:
        young.append(young_ms)
        return Rules(young_ms, **more)

    monkeypatch.setattr(module, "Rules", rules)
    monkeypatch.setattr(module, "_extent", lambda *_: ({}, {}))
    monkeypatch.setattr(Outbox, "frame", lambda *_: None)
    clock = SimpleNamespace(time=lambda: 1_000.0, perf_counter=lambda: 0.0)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "cluster_watched", lambda _: nullcontext())
    outbox, spark = Outbox(dsn="x"), cast(Any, None)
    found = module.reconcile(spark, outbox, "k:1", topics=["t"], grace_s=2.5)
    assert young == [997_500]

    def compare(_run: object, _previous: object, _folder: object, late_ms: int) -> Any:
        late.append(late_ms)
        return found, State("outbox")

    monkeypatch.setattr(module._Run, "compare", compare)
    module.reconcile(spark, outbox, "k:1", state=tmp_path, late_s=2.5)
    assert late == [2_500]


def test_where_topics_end_is_asked_before_which_rows_there_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise a record of a row that commits in between is one that nobody committed."""
    did: list[str] = []

    def ends(*_: object) -> Any:
        did.append("ends")
        return {}, {}

    def ids(*_: object) -> list[Any]:
        did.append("ids")
        return []

    monkeypatch.setattr(module, "_extent", ends)
    monkeypatch.setattr(Outbox, "ids", ids)
    given: Any = (None, Outbox(dsn="x"), {}, ["t"], 60.0, None, 10, 1.0, _Window())
    module._Run(*given).compare(State("outbox"), StateFolder(tmp_path), 0)
    assert did == ["ends", "ids"]


def test_a_window_has_what_explains_it_and_findings_of_itself_alone() -> None:
    hour_ms = 3_600_000
    window = _Window(10 * hour_ms, 20 * hour_ms)
    assert window.part == Part(None, 9 * hour_ms, 21 * hour_ms)
    assert window.first_ms == 9 * hour_ms
    at = "coalesce(row_at_ms, record_at_ms)"
    assert window.conditions() == [f"{at} >= {10 * hour_ms}", f"{at} < {20 * hour_ms}"]
    assert _Window(until_ms=7).conditions() == [f"{at} < 7"]
    assert (_Window().part, _Window().conditions()) == (Part(), [])


@pytest.mark.parametrize("until_ms", [5, 4])
def test_a_window_in_which_nothing_can_lie_proves_nothing(until_ms: int) -> None:
    """All that is not compared would have arrived."""
    spark: Any = None
    with pytest.raises(ConfigurationError, match="until is not after since"):
        module.reconcile(spark, Outbox(parquet="/a"), "k:1", since_ms=5, until_ms=until_ms)


def test_a_part_of_the_rows_has_its_first_and_not_its_end() -> None:
    assert Part(-3, 5, 9).conditions("ms({:d})") == [
        "id >= -3",
        "create_time >= ms(5)",
        "create_time < ms(9)",
    ]
    assert Part().conditions("ms({:d})") == []


class Frame:
    """A side whose rows are read by several tasks."""

    def __init__(self, *tasks: list[tuple[int, int, int, int]]) -> None:
        self._tasks = tasks

    def select(self, *names: str) -> Frame:
        assert names == ("key_hash", "row_hash", "a", "b")
        return self

    def mapInArrow(self, function: Any, _columns: str) -> Any:
        rows: list[tuple[Any, ...]] = []
        for task in self._tasks:
            columns = list(zip(*task, strict=True)) or [(), (), (), ()]
            batches = [
                pa.RecordBatch.from_arrays(
                    [pa.array(c[low : low + 2], pa.int64()) for c in columns], names=list("krab")
                )
                for low in range(0, len(task), 2)
            ]
            for found in function(iter(batches)):
                rows += [tuple(row.values()) for row in found.to_pylist()]
        return SimpleNamespace(collect=lambda: rows)


def prints(*tasks: list[tuple[int, int, int, int]], wanted: Any = None) -> Any:
    return _prints(cast(Any, Frame(*tasks)), wanted)


def test_both_sides_have_the_same_fingerprints_however_they_are_read() -> None:
    big = 1 << 62
    rows = [(key, 100 + id, id, 0) for id, key in enumerate((5, 5, -7, big, 5, -7))]
    # Its record's partition and offset in place of the id: keys interleave otherwise.
    places = {5: [(0, 0), (0, 4), (0, 6)], -7: [(1, 0), (1, 1)], big: [(2, 9)]}
    records = [(key, row, *places[key].pop(0)) for key, row, _, _ in rows]
    of = [[r for r in records if r[2] == p] for p in range(3)]
    assert prints(rows) == prints(*of, []) == prints(rows[3:4], [r for r in rows if r[0] != big])
    assert prints(rows) != prints(rows[:-1])
    assert prints(rows, wanted=[(0, 1), (4, 4)]) == prints([r for r in rows if r[0] == 5])
    assert module._total(prints(rows)) == 6
    assert _prints(None, None) == {}


def test_a_bucket_of_several_tasks_is_the_sum_of_all() -> None:
    row = [(5, 100, 1, 0), (6, 101, 2, 0)]
    ((count, both),) = prints(*([each] for each in row)).values()
    singles = [next(iter(prints([each]).values()))[1] for each in row]
    assert (count, both) == (2, sum(singles) % 2**64)


def test_where_nothing_is_wanted_there_is_no_fingerprint() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(np.array([1]))] * 4, names=list("krab"))
    assert [b.num_rows for b in _fingerprint([(5, 9)])(iter([batch]))] in ([], [0])


class Selected:
    """A frame that keeps what it was asked for."""

    def __init__(self) -> None:
        self.expressions: tuple[str, ...] = ()

    def selectExpr(self, *expressions: str) -> Selected:
        self.expressions = expressions
        return self


def test_a_row_is_late_if_its_id_was_passed_by_an_earlier_run() -> None:
    frame = Selected()
    everything = set(range(BUCKETS))
    _only(cast(Any, frame), everything, "false", 12)
    assert frame.expressions[-3:] == (
        "false AS in_kafka",
        "false AS carried",
        "cast(CASE WHEN a <= 12L THEN 1 ELSE 0 END AS int) AS flags",
    )
    _only(cast(Any, frame), everything, "true", None)
    assert frame.expressions[-1] == "cast(0 AS int) AS flags"


class Session:
    """Keeps how Kafka and PostgreSQL are read."""

    def __init__(self) -> None:
        self.read, self.given = self, dict[str, Any]()

    def format(self, name: str) -> Session:
        return self

    def options(self, **given: str) -> Session:
        self.given.update(given)
        return self

    def option(self, name: str, value: str) -> Session:
        return self.options(**{name: value})

    def load(self) -> Session:
        return self

    def selectExpr(self, *expressions: str) -> Session:
        self.given.setdefault("expressions", expressions)
        return self

    def jdbc(self, url: str, table: str, *, predicates: list[str], properties: Any) -> Session:
        self.given = {"url": url, "table": table, "predicates": predicates, **properties}
        return self


def test_of_kafka_committed_records_are_read_between_the_offsets_and_gaps_are_errors() -> None:
    session = Session()
    config = {"bootstrap.servers": "x", "kafka.max.poll.records": "7"}
    of_kafka(cast(Any, session), config, {"t": {1: 4, 0: 2}}, {"t": {1: 9, 0: 3}})
    given = session.given
    assert json.loads(given["assign"]) == {"t": [0, 1]}
    assert json.loads(given["startingOffsets"]) == {"t": {"0": 2, "1": 4}}
    assert json.loads(given["endingOffsets"]) == {"t": {"0": 3, "1": 9}}
    assert given["kafka.isolation.level"] == "read_committed"
    assert given["kafka.max.poll.records"] == "7"
    assert (given["includeHeaders"], given["failOnDataLoss"]) == ("true", "true")
    assert "unix_millis(timestamp) AS at_ms" in given["expressions"]


def connected(
    monkeypatch: pytest.MonkeyPatch, *columns: str, password: str = "secret", host: str = "db"
) -> list[Any]:
    """Have psycopg connect to a table of these columns; the list may grow."""
    names: list[Any] = [SimpleNamespace(name=name, type_code=1184) for name in columns]

    class Connection:
        def __init__(self, dsn: str) -> None:
            given = conninfo_to_dict(dsn)
            given.pop("password", None)
            self.info = SimpleNamespace(
                host=host,
                port=6000,
                dbname=given.get("dbname", "me"),
                password=password,
                get_parameters=lambda: given,
            )

        def __enter__(self) -> Connection:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def execute(self, _query: str) -> Any:
            return SimpleNamespace(description=names)

    monkeypatch.setattr(psycopg, "connect", Connection)
    return names


def test_of_postgres_each_row_is_read_by_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    names = connected(monkeypatch, "id", "kafka_topic")
    session = Session()
    dsn = "postgresql://me:secret@db:6000/shop?sslmode=require"
    with pytest.raises(ConfigurationError, match="the outbox has no column 'create_time'"):
        of_postgres(cast(Any, session), dsn, "outbox", 2)
    assert session.given == {}
    names += [SimpleNamespace(name=name, type_code=1184) for name in _NEEDED]
    monkeypatch.setattr("harvest.spark.sources.as_published", lambda frame: frame)
    of_postgres(cast(Any, session), dsn, "outbox", 2, Part(7, 1_500, None))
    conditions = "id >= 7 AND create_time >= to_timestamp(1500 / 1000.0) AND mod("
    assert [p.startswith(conditions) for p in session.given["predicates"]] == [True, True]
    assert [p.rpartition(" = ")[2] for p in session.given["predicates"]] == ["0", "1"]
    assert session.given["url"] == "jdbc:postgresql://db:6000/shop"
    assert [session.given[name] for name in ("user", "password", "sslmode")] == [
        "me",
        "secret",
        "require",
    ]
    with pytest.raises(ConfigurationError, match="cannot be read"):
        of_postgres(cast(Any, session), "host='x", "outbox", 2)
    with pytest.raises(ConfigurationError, match="give a host name instead of a socket"):
        of_postgres(cast(Any, session), "host=/tmp", "outbox", 2)


@pytest.mark.parametrize(("type_code", "is_moment"), [(1184, True), (1114, False), (1082, False)])
def test_a_time_without_a_zone_is_read_as_utc(
    monkeypatch: pytest.MonkeyPatch, type_code: int, is_moment: bool
) -> None:
    """Spark would read it as one of the zone that its machine is in, and a date not at all."""
    for column in connected(monkeypatch, *_NEEDED):
        column.type_code = type_code
    session = Session()
    postgres_rows(cast(Any, session), "host=db", "outbox", ["true"])
    assert ("SELECT id, create_time, " in session.given["table"]) is is_moment
    in_utc = "SELECT id, create_time::timestamp AT TIME ZONE 'UTC' AS create_time, "
    assert (in_utc in session.given["table"]) is not is_moment


def test_workers_connect_as_the_driver_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """What libpq has looked up, too: the password from a file, the one host of several."""
    connected(monkeypatch, *_NEEDED, password="from .pgpass", host="::1")
    monkeypatch.setattr("harvest.spark.sources.as_published", lambda frame: frame)
    session = Session()
    dsn = (
        "host=a,b port=1,2 dbname=shop user=me sslmode=verify-full sslrootcert=/ca.pem "
        "options='-csearch_path=mine' connect_timeout=7 keepalives_idle=9 "
        "target_session_attrs=read-write channel_binding=require application_name=looks "
        "sslcertmode=allow"
    )
    of_postgres(cast(Any, session), dsn, "outbox", 2)
    given = session.given
    assert given.pop("url") == "jdbc:postgresql://[::1]:6000/shop"
    for name in ("table", "predicates", "expressions"):
        del given[name]
    assert given == {
        "driver": "org.postgresql.Driver",
        "fetchsize": "20000",
        "prepareThreshold": "-1",
        "tcpKeepAlive": "true",
        "user": "me",
        "password": "from .pgpass",
        "sslmode": "verify-full",
        "sslrootcert": "/ca.pem",
        "options": "-csearch_path=mine",
        "connectTimeout": "7",
        "channelBinding": "require",
        "ApplicationName": "looks",
    }


@pytest.mark.parametrize("setting", ["sslkey=/secret.key", "sslrootcert=system"])
def test_what_the_drivers_of_workers_do_not_have_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    connected(monkeypatch, *_NEEDED)
    session = Session()
    name, _, value = setting.partition("=")
    with pytest.raises(ConfigurationError, match=f"^{name} has no translation") as refused:
        of_postgres(cast(Any, session), f"host=db {setting}", "outbox", 2)
    assert value not in str(refused.value)
    assert session.given == {}


class Lines:
    """A frame whose every question has the next of the answers."""

    def __init__(self, *answers: list[Any]) -> None:
        self.answers = list(answers)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self

    def collect(self) -> list[Any]:
        return self.answers.pop(0)


@pytest.mark.parametrize("parquet", [None, "/archive"])
def test_a_row_whose_topic_is_null_is_in_no_topic(
    monkeypatch: pytest.MonkeyPatch, parquet: str | None
) -> None:
    """A table of one's own may have such a row; it is set aside, and never published."""
    found = [("u",), (None,), ("t",)]
    connection = SimpleNamespace(execute=lambda _: SimpleNamespace(fetchall=lambda: found))
    monkeypatch.setattr(psycopg, "connect", lambda _: nullcontext(connection))
    monkeypatch.setattr(module, "read_archive", lambda *_: Lines(found))
    outbox = Outbox(dsn=None if parquet else "dbname=x", parquet=parquet)
    assert module._topics(cast(Any, None), outbox) == ["t", "u"]


NOT_ANSWERED = [
    (psycopg.ProgrammingError("a missing ="), True, ConfigurationError, "string cannot be read"),
    (psycopg.OperationalError("down\nsay"), True, StoreUnavailable, "cannot be reached: down say"),
    (psycopg.errors.UndefinedTable(), False, TableMissing, "table sales.box does not exist: name"),
    (psycopg.errors.UndefinedColumn("id"), False, SchemaError, "sales.box cannot be read: id"),
    (
        psycopg.errors.InsufficientPrivilege("no"),
        False,
        SchemaError,
        "sales.box cannot be read: no",
    ),
    (psycopg.errors.AdminShutdown("gone"), False, StoreUnavailable, "broke off a statement: gone"),
]


@pytest.mark.parametrize(("error", "at_once", "raised", "said"), NOT_ANSWERED)
def test_a_database_that_does_not_answer_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch,
    error: psycopg.Error,
    at_once: bool,
    raised: type[Exception],
    said: str,
) -> None:
    """Nobody foresaw it otherwise: a traceback, and an exit code that says so."""

    def refuse(*_: object) -> Any:
        raise error

    info = SimpleNamespace(host="db", port=1, dbname="x", password="", get_parameters=dict)
    connection = SimpleNamespace(execute=refuse, info=info)
    connect = refuse if at_once else lambda _: nullcontext(connection)
    monkeypatch.setattr(psycopg, "connect", connect)
    for ask in (
        lambda: postgres_rows(cast(Any, None), "host=db", "sales.box", ["true"]),
        lambda: ids_of_postgres("host=db", "sales.box", [(1, 2)]),
        lambda: module._topics(cast(Any, None), Outbox(dsn="host=db", table="sales.box")),
    ):
        with pytest.raises(raised, match=said):
            ask()


class Counted(dict[str, Any]):
    """A line that Spark has counted."""

    asDict = dict.copy


def test_what_has_no_topic_or_no_time_is_counted_beside_the_rest() -> None:
    lines = [
        Counted(topic=topic, hour_ms=hour_ms, kind="missing", count=n)
        for n, (topic, hour_ms) in enumerate([("t", 7), (None, 7), ("t", None), (None, None)], 1)
    ]
    found = module._Findings.of(cast(Any, Lines(lines, [], [])), 10)
    assert found.kinds == {"missing": 10}
    assert found.topics == {None: {"missing": 6}, "t": {"missing": 4}}
    assert [line["count"] for line in found.hours] == [4, 2, 3, 1]
