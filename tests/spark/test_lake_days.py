"""What a day's tables say of rows that are given, without Kafka; most without a table on a disk."""

from __future__ import annotations

import datetime as dt
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from harvest.core import topic_names
from harvest.core.envelope import CloudEvents
from harvest.core.row import Row
from harvest.core.templates import Template
from marshal_py.client import settings as client_settings
from marshal_py.errors import ConfigurationError
from marshal_py.protocol.slots import slot_of_key
from marshal_py.spark.lake import gold, sql
from marshal_py.spark.lake.bronze import _published
from marshal_py.spark.lake.deliveries import check_days, days_left, write_deliveries
from marshal_py.spark.lake.gold import (
    _FINDINGS,
    _GROUPS,
    _LAG,
    _LEADERSHIP,
    _OUTBOXES,
    Expectations,
    write_gold,
)
from marshal_py.spark.lake.report import render_lake
from marshal_py.spark.lake.run import LakeSettings, _days_again
from marshal_py.spark.lake.sql import PARTS, date_literal, fill, time_literal
from marshal_py.spark.lake.tables import LAKE_TABLES, Lake, spark_types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY = dt.date(2026, 3, 1)
BOX = "shop/outbox"
Values = dict[str, Any]


def at(hour: float = 0, *, days: int = 0, ms: int = 0) -> dt.datetime:
    """A moment of the day, or of another one."""
    midnight = dt.datetime.combine(DAY, dt.time(), dt.UTC)
    return midnight + dt.timedelta(days=days, hours=hour, milliseconds=ms)


class Tables:
    """Tables that are given as rows; what is written into one is kept."""

    def __init__(self, spark: SparkSession, **tables: list[Values]) -> None:
        self.spark = spark
        self._rows = {name.replace("__", "."): rows for name, rows in tables.items()}
        self.written: list[Values] = []

    def frame(self, _spark: object, table: str) -> DataFrame:
        columns = LAKE_TABLES[table]
        rows = [tuple(row.get(c.name) for c in columns) for row in self._rows.get(table, [])]
        return self.spark.createDataFrame(rows, spark_types(columns))

    def replace_day(self, _table: str, frame: DataFrame, _day: dt.date) -> None:
        self.written = [row.asDict() for row in frame.collect()]

    def ask(self, query: str, *names: str, as_of: dt.datetime | None = None) -> list[Values]:
        """The rows of a query of gold, by the tables of silver that it reads."""
        values = {"day": date_literal(DAY), "as_of": time_literal(as_of or at(days=2))}
        query = fill(query, **values, days="1", still="20", parts=PARTS)
        frames = {name: self.frame(None, f"silver.{name}") for name in names}
        if "{published}" in query:
            frames["published"] = self.frame(None, "bronze.published")
        found = self.spark.sql(query, **cast(Any, frames)).collect()
        return sorted((row.asDict() for row in found), key=repr)

    def found(self) -> DataFrame:
        """The findings of the day."""
        frames = {name: self.frame(None, f"silver.{name}") for name in ("deliveries", "anomalies")}
        return self.spark.sql(fill(_FINDINGS, day=date_literal(DAY)), **cast(Any, frames))


# Bronze


@pytest.mark.parametrize(
    ("headers", "outbox", "id"),
    [
        ([("harvest-id", b"shop/outbox/7")], "shop/outbox", 7),
        ([("trace", b"1"), ("harvest-id", b"x/y/9"), ("harvest-id", b"a/b/c/-8")], "a/b/c", -8),
        ([("harvest-id", b"a/b/-8"), ("trace", b"1"), ("harvest-id", None)], None, None),
        ([("harvest-id", b"shop/outbox/seven")], None, None),
        ([("harvest-id", b"outbox/7")], None, None),
        ([("harvest-id", b"7")], None, None),
        ([("harvest-id", None)], None, None),
        ([("other", b"shop/outbox/7")], None, None),
        ([], None, None),
        (None, None, None),
    ],
)
def test_a_record_is_of_the_row_that_its_header_names(
    spark: SparkSession, headers: Any, outbox: str | None, id: int | None
) -> None:
    given = [("t", 3, 5, at(days=1, ms=-1), b"k", None, headers)]
    frame = spark.createDataFrame(
        given,
        "topic string, partition int, offset bigint, timestamp timestamp, key binary, "
        "value binary, headers array<struct<key:string,value:binary>>",
    )
    (found,) = _published(frame).collect()
    assert (found["outbox"], found["id"], found["day"]) == (outbox, id, DAY)
    assert (found["partition"], found["offset"], found["value"]) == (3, 5, None)


def test_a_table_of_an_earlier_version_has_its_new_columns_without_a_value(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake.to_write(spark, str(tmp_path))
    older = spark.sql("SELECT 'g' AS group_id, 4L AS claims, DATE '2026-03-01' AS day")
    older.write.format("delta").partitionBy("day").save(lake.path("gold.groups"))
    (found,) = lake.frame(spark, "gold.groups").collect()
    assert list(found.asDict()) == [column.name for column in LAKE_TABLES["gold.groups"]]
    assert (found["claims"], found["takeovers"]) == (4, None)
    newer = Tables(spark, gold__groups=[{"group_id": "h", "takeovers": 1, "day": DAY}])
    lake.replace_day("gold.groups", newer.frame(None, "gold.groups"), DAY + dt.timedelta(1))
    both = lake.frame(spark, "gold.groups").orderBy("group_id").collect()
    assert [(each["group_id"], each["takeovers"]) for each in both] == [("g", None), ("h", 1)]


def test_a_table_whose_first_write_was_killed_is_one_that_was_never_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake.to_write(spark, str(tmp_path))
    one = Tables(spark, gold__groups=[{"group_id": "g", "day": DAY}]).frame(None, "gold.groups")
    # Files that no commit names; and the folder of commits, which may be there by then.
    place = Path(lake.path("gold.groups"))
    one.write.partitionBy("day").parquet(str(place))
    for _ in range(2):
        assert not lake.exists(spark, "gold.groups")
        assert lake.frame(spark, "gold.groups").isEmpty()
        (place / "_delta_log").mkdir(exist_ok=True)
    lake.replace_day("gold.groups", one, DAY)
    assert lake.frame(spark, "gold.groups").count() == 1


def test_a_catalog_knows_a_lake_where_it_is_now(spark: SparkSession, tmp_path: Path) -> None:
    def registered() -> list[str]:
        lake.register(spark, "days")
        return [row["group_id"] for row in spark.table("days.gold_groups").collect()]

    try:
        for name in ("a", "b b", "c"):
            tables = Tables(spark, gold__groups=[{"group_id": name, "day": DAY}])
            lake = Lake.to_write(spark, str(tmp_path / name))
            lake.replace_day("gold.groups", tables.frame(None, "gold.groups"), DAY)
            assert registered() == registered() == [name]
            if name == "b b":
                shutil.rmtree(lake.place)
        assert Path(tmp_path / "a" / "gold" / "groups").exists()
    finally:
        spark.sql("DROP SCHEMA IF EXISTS days CASCADE")


# Deliveries


def row(id: int, created: dt.datetime, **more: Any) -> Values:
    given = {"outbox": BOX, "id": id, "at": created, "topic": "t", "key": b"k", "value": b"v"}
    return given | {"day": created.date()} | more


def record(id: int, offset: int, published: dt.datetime, **more: Any) -> Values:
    given = {"outbox": BOX, "id": id, "topic": "t", "partition": 0, "offset": offset, "key": b"k"}
    return given | {"at": published, "value": b"v", "headers": [], "day": published.date()} | more


def claim(first: int | None, last: int, **more: Any) -> Values:
    given = {"group_id": "g", "topic": "t", "partition": 0, "client_id": "c", "epoch": 1}
    return given | {"first_offset": first, "last_offset": last} | more


def delivered(
    spark: SparkSession,
    rows: list[Values],
    records: list[Values],
    claims: list[Values] | None = None,
    *,
    as_of: dt.datetime | None = None,
    upto: list[dt.datetime | None] | None = None,
    topics: Sequence[str] = ("s", "t"),
) -> dict[int, Values]:
    """The deliveries of the day, by id; `upto`: what looks for rows have noted."""
    looks = [{"outbox": BOX, "at": at(), "upto": each, "day": DAY} for each in upto or []]
    tables = Tables(
        spark,
        bronze__outbox_rows=rows,
        bronze__published=records,
        bronze__outbox_looks=looks,
        silver__claims=claims or [],
    )
    write_deliveries(
        spark,
        cast(Lake, tables),
        DAY,
        topics=topics,
        as_of=as_of or at(days=2),
        grace_s=3_600,
        late_days=1,
    )
    ids = [each["id"] for each in tables.written]
    assert len(set(ids)) == len(ids)
    return {each["id"]: each for each in tables.written}


def test_a_row_is_of_the_day_it_was_inserted_on_and_its_record_may_come_a_day_later(
    spark: SparkSession,
) -> None:
    found = delivered(
        spark,
        [
            row(1, at()),
            row(2, at(days=1, ms=-1)),
            row(3, at(days=1)),  # tomorrow's
            row(4, at(ms=-1)),  # yesterday's
            row(5, at(1)),
            row(6, at(1)),
        ],
        [
            record(1, 0, at(ms=7)),
            record(2, 1, at(days=2, ms=-1)),
            record(3, 2, at(days=1)),
            record(4, 3, at()),
            record(5, 4, at(ms=-1)),  # its sender's clock is behind
            record(6, 5, at(days=2)),  # later than it is looked for
        ],
    )
    assert {id: each["status"] for id, each in found.items()} == {
        1: "delivered",
        2: "delivered",
        5: "delivered",
        6: "lost",
    }
    assert {each["day"] for each in found.values()} == {DAY}
    assert (found[1]["latency_ms"], found[5]["latency_ms"]) == (7, -3_600_001)


def test_a_row_without_a_record_is_lost_when_it_is_older_than_the_grace(
    spark: SparkSession,
) -> None:
    rows = [row(1, at(2)), row(2, at(2, ms=1))]
    found = delivered(spark, rows, [], as_of=at(3))
    assert {id: each["status"] for id, each in found.items()} == {1: "lost", 2: "pending"}


@pytest.mark.parametrize(
    ("topics", "unread"),
    [(["s", "t"], {3, 4}), (["t", "payments", "t2"], set()), ([], {2, 3, 4})],
)
def test_a_row_that_asks_for_a_topic_that_is_not_read_is_not_lost(
    spark: SparkSession, topics: list[str], unread: set[int]
) -> None:
    """Nobody knows whether it is; it is no matter of how old it is."""
    rows = [
        row(1, at(2)),
        row(2, at(2)),
        row(3, at(2), topic="payments"),
        row(4, at(4), topic="t2"),
        row(5, at(2), topic="no topic"),  # Kafka allows no such name
        row(6, at(2), topic=""),
    ]
    found = delivered(spark, rows, [record(1, 0, at(2))], as_of=at(4), topics=topics)
    known = {1: "delivered", 2: "lost", 3: "lost", 4: "pending", 5: "lost", 6: "lost"}
    assert {id: each["status"] for id, each in found.items()} == {
        id: "unread" if id in unread else status for id, status in known.items()
    }


def test_sql_and_both_packages_know_the_same_names_of_topics(spark: SparkSession) -> None:
    """A row that asks for one that cannot be is lost, and no run is asked to read it."""
    names = ["orders", "a", "...", ".a", "A-Z_0.9", "a" * 249]
    others = ["", ".", "..", "a" * 250, "a b", "a/b", "a\nb", "ö", "١", "a\0", "'", "\\w"]
    ends = ["orders" + end for end in ("\n", "\r\n", "\r", "\u0085", "\u2028", "\n\n", " ")]
    asked = [*names, *others, *ends]
    frame = spark.createDataFrame([(name,) for name in asked], "t string")
    found = [row[0] for row in frame.selectExpr(sql.is_topic("t")).collect()]
    assert found == [*map(client_settings.is_topic, asked)] == [*map(topic_names.is_topic, asked)]
    assert found == [True] * len(names) + [False] * len([*others, *ends])


def test_a_record_without_a_row_is_unexpected_when_it_is_older_than_the_grace(
    spark: SparkSession,
) -> None:
    """Rows are brought by another command: the last ones may still be on their way."""
    records = [record(2, 0, at(2)), record(3, 1, at(2, ms=1))]
    found = delivered(spark, [row(1, at(2))], records, as_of=at(3))
    assert {id: each["status"] for id, each in found.items()} == {
        1: "lost",
        2: "unexpected",
        3: "pending",
    }


@pytest.mark.parametrize(
    ("upto", "unexpected"),
    [
        ([at(3), None, at(2)], {2}),  # rows are known of an hour after it: the grace
        ([at(4)], {2, 3}),
        ([at(99)], {2, 3}),
        ([None], {2, 3}),  # by an earlier version
    ],
)
def test_a_record_is_pending_until_the_rows_of_its_time_are_known(
    spark: SparkSession, upto: list[dt.datetime | None], unexpected: set[int]
) -> None:
    """An archive gets rows a day or more after they were inserted."""
    records = [record(2, 0, at(2)), record(3, 1, at(2, ms=1)), record(9, 2, at(2), outbox="s/o")]
    rows = [row(1, at(1)), row(8, at(1), outbox="s/o")]
    found = delivered(spark, rows, records, upto=upto)
    assert {id for id, each in found.items() if each["status"] == "unexpected"} == {*unexpected, 9}
    assert {id for id, each in found.items() if each["status"] == "pending"} == {2, 3} - unexpected


def test_a_record_without_a_row_is_unexpected_where_rows_of_its_outbox_are_known(
    spark: SparkSession,
) -> None:
    other = {"outbox": "shop/other"}
    found = delivered(
        spark, [row(1, at(days=-1))], [record(2, 0, at(1)), record(3, 1, at(1), **other)]
    )
    assert {id: each["status"] for id, each in found.items()} == {2: "unexpected", 3: "unarchived"}


def test_of_copies_the_first_counts_and_order_is_that_of_a_key_in_its_partition(
    spark: SparkSession,
) -> None:
    rows = [row(id, at(), key=key) for id, key in ((1, b"k"), (2, b"k"), (3, b"l"), (4, None))]
    found = delivered(
        spark,
        [*rows, row(5, at(), key=None)],
        [
            record(2, 0, at(1)),
            record(1, 1, at(1, ms=1)),  # behind a later row
            record(1, 9, at(2)),
            record(3, 2, at(1), key=b"l"),  # of another key
            record(5, 3, at(1), key=None),
            record(4, 4, at(1), key=None),  # without a key there is no order
        ],
    )
    assert [id for id, each in sorted(found.items()) if each["disordered"]] == [1]
    assert (found[1]["copies"], found[1]["offset"], found[2]["copies"]) == (2, 1, 1)


def test_of_copies_in_several_partitions_the_earliest_counts(spark: SparkSession) -> None:
    copies = [record(1, 5, at(2)), record(1, 9, at(1), partition=1), record(1, 0, at(3), topic="s")]
    (found,) = delivered(spark, [row(1, at())], copies).values()
    assert [found[name] for name in ("topic", "partition", "offset", "latency_ms", "copies")] == [
        *("t", 1, 9),
        *(3_600_000, 3),
    ]


def test_order_is_that_of_one_outbox_in_one_topic(spark: SparkSession) -> None:
    """Ids of another outbox say nothing, nor where a record is in another topic."""
    other = {"outbox": "shop/other", "topic": "u"}
    found = delivered(
        spark,
        [row(1, at(), topic="s"), row(2, at()), row(5, at(), topic="u"), row(9, at(), **other)],
        [
            record(2, 0, at(1)),
            record(1, 1, at(1), topic="s"),
            record(9, 2, at(1), **other),
            record(5, 3, at(1), topic="u"),
        ],
        topics=["s", "t", "u"],
    )
    assert [id for id, each in found.items() if each["disordered"]] == []
    assert {each["status"] for each in found.values()} == {"delivered"}


def test_of_rows_with_one_id_each_has_its_own_records(spark: SparkSession) -> None:
    """The table was made anew, and its ids began anew: one that is lost has not arrived before."""
    ids = range(1, 5)
    rows = [row(id, at(1, days=days)) for id in ids for days in (-1, 0)]
    of_yesterday = [record(id, id, at(2, days=-1)) for id in ids if id != 4]
    of_today = [
        record(1, 11, at(1)),
        record(3, 13, at(2)),
        record(3, 14, at(3)),
        record(4, 15, at(2)),
    ]
    found = delivered(spark, rows, [*of_yesterday, *of_today])
    assert {id: (each["status"], each["copies"], each["offset"]) for id, each in found.items()} == {
        1: ("delivered", 1, 11),
        2: ("lost", 0, None),
        3: ("delivered", 2, 13),
        4: ("delivered", 1, 15),
    }
    assert (found[1]["latency_ms"], found[4]["latency_ms"]) == (0, 3_600_000)


def test_a_record_is_altered_when_a_topic_a_key_or_a_value_is_another(spark: SparkSession) -> None:
    found = delivered(
        spark,
        [
            row(1, at()),
            row(2, at()),
            row(3, at(), value=None),
            row(4, at()),
            row(5, at(), key=None),
        ],
        [
            record(1, 0, at(1)),
            record(2, 0, at(1), topic="u"),
            record(3, 1, at(1), value=b""),
            record(4, 2, at(1), key=None),
            record(5, 3, at(1), key=None),
        ],
    )
    assert {id: each["altered"] for id, each in found.items()} == {
        1: False,
        2: True,
        3: True,
        4: True,
        5: False,
    }


def test_a_value_in_an_event_is_the_one_of_its_row(spark: SparkSession) -> None:
    """With `cloudevents: {mode: structured}`, as the harvester writes it."""
    id, source, type = map(Template.parse, ("{id}", "/shop", "sold"))
    events = CloudEvents(id, source, type, mode="structured")
    values = (b'{"a": 1.10}', b"", b"\xff" * 99)

    def event(id: int, value: bytes) -> bytes | None:
        return events.wrap(Row(id, "t", b"k", value), value, [])[0]

    found = delivered(
        spark,
        [row(id, at(), value=value) for id, value in enumerate((*values, *values))],
        [
            *(record(id, id, at(1), value=event(id, v)) for id, v in enumerate(values)),
            *(record(id, id, at(1), value=event(id, v + b" ")) for id, v in enumerate(values, 3)),
        ],
    )
    assert {id for id, each in found.items() if each["altered"]} == {3, 4, 5}


def test_who_handled_a_record_is_whose_claim_went_past_it(spark: SparkSession) -> None:
    ids = range(1, 6)
    claims = [
        claim(None, 1, client_id="first", day=DAY),
        claim(1, 3, client_id="held", day=None),
        claim(3, 4, client_id="long ago", day=DAY - dt.timedelta(1)),
        claim(0, 9, partition=1, client_id="elsewhere", day=DAY),
    ]
    found = delivered(
        spark, [row(id, at()) for id in ids], [record(id, id - 1, at(1)) for id in ids], claims
    )
    handlers = {id: [h["client_id"] for h in each["handled"]] for id, each in found.items()}
    assert handlers == {1: ["first"], 2: ["held"], 3: ["held"], 4: [], 5: []}


def test_who_handled_a_record_of_a_shared_partition_is_who_had_the_slot_of_its_key(
    spark: SparkSession,
) -> None:
    keys = [b"key-%d" % n for n in range(6)]
    claims = [
        claim(0, 9, topic="t/0#2", partition=slot, client_id=f"slot {slot}", day=DAY)
        for slot in (0, 1)
    ]
    rows = [row(n, at(), key=key) for n, key in enumerate(keys)]
    records = [record(n, n, at(1), key=key) for n, key in enumerate(keys)]
    found = delivered(spark, rows, records, claims)
    handlers = [[h["client_id"] for h in found[n]["handled"]] for n in range(6)]
    assert handlers == [[f"slot {slot_of_key(key, n, 2)}"] for n, key in enumerate(keys)]


def test_who_handled_a_record_without_a_key_is_who_had_the_slot_of_its_offset(
    spark: SparkSession,
) -> None:
    offset = 2**32 + 1
    claims = [
        claim(0, 2**40, topic="t/0#3", partition=slot, epoch=slot, day=DAY) for slot in range(3)
    ]
    given = [row(1, at(), key=None)], [record(1, offset, at(1), key=None)]
    (handler,) = delivered(spark, *given, claims)[1]["handled"]
    assert handler["epoch"] == slot_of_key(None, offset, 3) != offset % 2**32 % 3


def test_who_handled_a_record_of_a_range_is_whose_claim_of_it_went_past(
    spark: SparkSession,
) -> None:
    ids = range(6)
    claims = [
        claim(0, 2, topic="t/0@0", client_id="a", day=DAY),
        claim(None, 4, topic="t/0@2", client_id="b", day=DAY),  # since before the log begins
        claim(4, 5, topic="t/0@4", client_id="c", day=None),
        claim(0, 9, topic="t/1@0", client_id="of another partition", day=DAY),
        claim(0, 9, topic="t/99999999999999999999@0", client_id="a name alone", day=DAY),
        claim(0, 9, topic="t/0#0", client_id="a name alone", day=DAY),
        claim(0, 9, topic="t/0#99999999999", client_id="a name alone", day=DAY),
    ]
    found = delivered(
        spark, [row(id, at()) for id in ids], [record(id, id, at(1)) for id in ids], claims
    )
    handlers = ["".join(h["client_id"] for h in found[id]["handled"]) for id in ids]
    assert handlers == ["a", "a", "b", "b", "c", ""]


def test_a_claim_of_many_records_has_handled_each_once(spark: SparkSession) -> None:
    offsets = [4, 9_999, 10_000, 25_000, 30_000, 30_001]
    claims = [
        claim(5, 30_001, client_id="a", day=DAY),
        claim(0, 1 << 50, client_id="b", day=DAY, partition=1),
        claim(30_001, 1 << 50, client_id="c", day=None),
    ]
    rows = [row(id, at()) for id in range(6)]
    records = [record(id, offset, at(1)) for id, offset in enumerate(offsets)]
    found = delivered(spark, rows, records, claims)
    handlers = ["".join(h["client_id"] for h in found[id]["handled"]) for id in range(6)]
    assert handlers == ["", "a", "a", "a", "a", "c"]


def test_a_day_whose_records_were_of_no_outbox_and_are_gone_keeps_its_lag(
    spark: SparkSession,
) -> None:
    days = [DAY - dt.timedelta(n) for n in (0, 40)]
    lags = [{"topic": "t", "day": day} for day in days]
    # Nothing came on the day itself: the topic stood still.
    some = [record(1, 0, at(days=-9), outbox=None)]
    tables = Tables(spark, gold__lag=lags, bronze__published=some)
    check_days(spark, cast(Lake, tables), days[:1], late_days=1)
    for wanted in (days, days[1:]):
        with pytest.raises(ConfigurationError, match=f"nothing of {days[1]} any more"):
            check_days(spark, cast(Lake, tables), wanted, late_days=1)


def test_a_day_whose_rows_or_records_are_gone_is_not_written_anew(spark: SparkSession) -> None:
    days = [DAY + dt.timedelta(n) for n in range(-5, 1)]
    made_of = [
        # rows and records then, and now
        ((True, True), (False, False)),
        ((True, False), (True, False)),
        ((False, True), (False, True)),
        ((True, True), (True, False)),
        ((True, True), (True, True)),
        ((True, True), (False, True)),
    ]
    deliveries, rows, records = [], [], []
    for n, (day, (then, now)) in enumerate(zip(days, made_of, strict=True)):
        moment = at(days=n - 5)
        placed = {"offset": n, "published_at": moment} if then[1] else {}
        created = moment if then[0] else None
        deliveries.append(delivery(n, "any", day=day, created_at=created, **placed))
        rows += [row(n, moment)] if now[0] else []
        records += [record(n, n, moment)] if now[1] else []
    tables = Tables(
        spark, bronze__outbox_rows=rows, bronze__published=records, silver__deliveries=deliveries
    )

    def check(*wanted: dt.date, late_days: int = 1) -> None:
        check_days(spark, cast(Lake, tables), wanted, late_days=late_days)

    check()
    check(days[2])
    check(DAY + dt.timedelta(2))  # of which nothing was ever written
    left = days_left(spark, cast(Lake, tables), [*days, DAY + dt.timedelta(2)], late_days=1)
    assert left == {days[2], DAY + dt.timedelta(2)}
    for n in (0, 1, 3, 4, 5):
        with pytest.raises(ConfigurationError, match=f"the tables of {days[n]} stay as they are"):
            check(days[2], days[n])
    with pytest.raises(ConfigurationError, match=f"nothing of {days[0]} any more"):
        check(days[2], late_days=2)


def test_a_day_keeps_its_gold_where_silver_was_deleted_to_fold_anew(spark: SparkSession) -> None:
    days = [DAY - dt.timedelta(3 * n) for n in range(5)]
    counts = [(3, 3), (3, 0), (None, 2), (0, 1), (0, 0)]
    outboxes = [
        {"outbox": BOX, "rows": rows, "records": records, "day": day}
        for day, (rows, records) in zip(days, counts, strict=True)
    ]
    tables = Tables(spark, gold__outboxes=outboxes)
    assert days_left(spark, cast(Lake, tables), days, late_days=1) == {days[4]}
    rows = [row(n, moment) for n, moment in enumerate((at(), at(days=-3)))]
    records = [record(n, n, moment) for n, moment in enumerate((at(days=-6), at(days=-9)))]
    tables = Tables(
        spark, gold__outboxes=outboxes, bronze__outbox_rows=rows, bronze__published=records
    )
    assert days_left(spark, cast(Lake, tables), days, late_days=1) == set(days)


# Gold


def delivery(id: int, status: str, **more: Any) -> Values:
    given = {"outbox": BOX, "id": id, "status": status, "copies": int(status == "delivered")}
    created = None if status in ("unexpected", "unarchived") else at()
    flags = {"altered": False, "disordered": False, "handled": [], "created_at": created}
    return given | flags | {"topic": "t", "day": DAY} | more


def test_an_outbox_is_counted_by_what_became_of_its_rows(spark: SparkSession) -> None:
    who = {"group_id": "g", "client_id": "c", "epoch": 1, "from_at": None, "until_at": None}
    tables = Tables(
        spark,
        silver__deliveries=[
            *[delivery(n, "delivered", latency_ms=n) for n in range(1, 101)],
            delivery(101, "delivered", copies=3, latency_ms=1_000, altered=True, handled=[who]),
            delivery(102, "lost"),
            delivery(103, "pending"),
            delivery(104, "unexpected", copies=1),
            delivery(105, "lost", day=DAY - dt.timedelta(1)),
            delivery(1, "unarchived", outbox="shop/other", copies=1, latency_ms=None),
        ],
    )
    unknown, known = tables.ask(_OUTBOXES, "deliveries")
    assert known == {
        "outbox": BOX,
        "rows": 103,
        "delivered": 101,
        "records": 104,
        "lost": 1,
        "pending": 1,
        "unexpected": 1,
        "duplicated": 2,
        "disordered": 0,
        "altered": 1,
        "handled": 1,
        "unread": None,
        "latency_p50_ms": 51,
        "latency_p95_ms": 96,
        "latency_p99_ms": 100,
        "latency_max_ms": 1_000,
        "day": DAY,
    }
    assert [unknown[name] for name in ("rows", "lost", "unexpected", "records")] == [
        None,
        None,
        None,
        1,
    ]


def test_the_latency_of_many_rows_is_exact(spark: SparkSession) -> None:
    """An estimate is another one in each run, for it depends on which task is the first."""
    count = 20_000
    frame = spark.range(0, count, 1, 7).selectExpr(
        f"'{BOX}' AS outbox",
        "'orders' AS topic",
        "'delivered' AS status",
        "1L AS copies",
        "true AS altered",
        "true AS disordered",
        "array(1) AS handled",
        "current_timestamp() AS created_at",
        f"{date_literal(DAY)} AS day",
        f"id * 7919 % {count} + 1 AS latency_ms",
    )
    found = spark.sql(fill(_OUTBOXES, day=date_literal(DAY)), deliveries=frame).collect()
    names = [f"latency_{name}_ms" for name in ("p50", "p95", "p99", "max")]
    assert [tuple(row[name] for name in names) for row in found] == [
        (count * 50 // 100, count * 95 // 100, count * 99 // 100, count)
    ]


def test_a_group_is_counted_by_what_happened_on_the_day(spark: SparkSession) -> None:
    before, after = {"day": DAY - dt.timedelta(1)}, {"day": DAY + dt.timedelta(1)}

    def taken(moment: dt.datetime, how: str, silence_ms: int, beat_ms: int | None) -> Values:
        given = {"group_id": "g", "at": moment, "how": how, "silence_ms": silence_ms}
        return given | {"first_beat_ms": beat_ms, "day": moment.date()}

    tables = Tables(
        spark,
        silver__claims=[
            claim(0, 1, client_id="a", from_at=at(), day=DAY),
            claim(0, 1, client_id="b", from_at=at(days=1, ms=-1), day=None),
            claim(0, 1, client_id="c", from_at=at(ms=-1), **after),  # held all day
            claim(0, 1, client_id="d", from_at=None, day=DAY),
            claim(0, 1, client_id="e", from_at=at(days=-1), **before),
            claim(0, 1, client_id="f", from_at=at(days=1), **after),
        ],
        silver__takeovers=[
            taken(at(), "taken_over", 100, 20),
            taken(at(1), "taken_over", 300, None) | {"day": None},
            taken(at(2), "resumed", 900, 0),
            taken(at(ms=-1), "taken_over", 9_000, 0),
            taken(at(days=1), "taken_over", 9_000, 0),
            # There is none like this: it is in a file that is not read for the day.
            taken(at(3), "taken_over", 9_000, 0) | before,
        ],
        silver__rejections=[{"group_id": "g", "day": DAY}, {"group_id": "g", **before}],
        silver__anomalies=[{"group_id": "h", "day": DAY}, {"group_id": None, "day": DAY}],
    )
    found = tables.ask(_GROUPS, "claims", "takeovers", "rejections", "anomalies")
    assert [tuple(each.values()) for each in found] == [
        ("g", 2, 4, 2, 120, 300, 1, 0, DAY),
        ("h", 0, 0, 0, None, None, 0, 1, DAY),
    ]


def position(upto: int, moment: dt.datetime, **more: Any) -> Values:
    given = {"group_id": "g", "topic": "t", "partition": 0, "next_offset": upto}
    return given | {"claimed_offset": None, "at": moment, "day": moment.date()} | more


def lag(found: list[Values]) -> dict[float, tuple[int, int | None, int]]:
    """Hour of the day → end, position and lag."""
    return {
        (each["hour"].replace(tzinfo=dt.UTC) - at()).total_seconds() / 3_600: (
            each["end_offset"],
            each["position"],
            each["lag"],
        )
        for each in found
    }


def test_lag_is_what_had_come_and_was_not_done_when_an_hour_ended(spark: SparkSession) -> None:
    tables = Tables(
        spark,
        bronze__published=[
            record(0, 0, at(ms=-1)),
            record(1, 5, at(0.5)),
            record(2, 9, at(1)),
            record(3, 11, at(2, ms=-1)),
        ],
        silver__positions=[
            position(1, at(ms=-1)),
            position(2, at(1)),
            position(3, at(2, ms=-1), claimed_offset=12),
            position(99, at(2.5), day=None),
        ],
    )
    found = tables.ask(_LAG, "positions", "claims", as_of=at(2.25))
    assert lag(found) == {1: (6, 1, 5), 2: (12, 12, 0), 2.25: (12, 12, 0)}
    assert len(found) == 3


def test_lag_of_a_shared_partition_is_that_of_its_last_slot(spark: SparkSession) -> None:
    tables = Tables(
        spark,
        bronze__published=[record(0, 9, at(0.5))],
        silver__positions=[
            position(8, at(0.5), topic="t/0#2", partition=0),
            position(4, at(0.25), topic="t/0#2", partition=1),
            position(3, at(0.5), topic="t/1#2", partition=0),  # of a partition without records
            position(2, at(0.2)),  # it was not shared yet
            position(1, at(0.2), topic="t/0#3", partition=0),  # and by three, then
        ],
    )
    assert lag(tables.ask(_LAG, "positions", "claims", as_of=at(1))) == {1: (10, 4, 6)}


def test_lag_of_a_partition_that_is_shared_by_ranges_is_that_of_the_furthest(
    spark: SparkSession,
) -> None:
    tables = Tables(
        spark,
        bronze__published=[record(0, 9, at(0.5))],
        silver__positions=[
            position(4, at(0.25), topic="t/0@0"),  # it is done
            position(8, at(0.5), topic="t/0@4"),
            position(5, at(0.75), topic="t/0@4"),
            position(6, at(1.5), topic="t/0@8", day=None),
        ],
    )
    assert lag(tables.ask(_LAG, "positions", "claims", as_of=at(1))) == {1: (10, 8, 2)}


@pytest.mark.parametrize(("done", "found"), [(4, (10, 4, 6)), (0, (10, 0, 10))])
def test_lag_by_ranges_is_not_from_where_nobody_has_begun(
    spark: SparkSession, done: int, found: tuple[int, int, int]
) -> None:
    """Who finds all messages granted gets a range behind the topic's end, and waits there."""
    tables = Tables(
        spark,
        bronze__published=[record(0, 9, at(0.1))],
        silver__positions=[
            position(done, at(0.25), topic="t/0@0", epoch=7),
            position(1_000, at(0.5), topic="t/0@1000", epoch=8),
            position(2_000, at(0.5), topic="t/0@2000", epoch=9),
        ],
    )
    assert lag(tables.ask(_LAG, "positions", "claims", as_of=at(1))) == {1: found}


@pytest.mark.parametrize("order", [1, -1])
def test_lag_by_ranges_is_from_where_a_position_was_set_on(spark: SparkSession, order: int) -> None:
    """Its ranges were set free for that, in the same moment."""
    positions = [
        position(8, at(0.25), topic="t/0@4", epoch=9),
        position(8, at(0.5), topic="t/0@8", client_id=None, epoch=10),
        position(2, at(0.5), client_id=None, epoch=1),
        position(3, at(1.5), topic="t/0@2", epoch=11),
        position(5, at(2.5), topic="t/0@4", epoch=12),
        position(4, at(2.5), topic="t/0@2", epoch=11),
    ]
    tables = Tables(
        spark, bronze__published=[record(0, 9, at(0.1))], silver__positions=positions[::order]
    )
    found = lag(tables.ask(_LAG, "positions", "claims", as_of=at(3)))
    assert found == {1: (10, 2, 8), 2: (10, 3, 7), 3: (10, 5, 5)}


@pytest.mark.parametrize("order", [1, -1])
def test_lag_is_from_where_a_position_was_set_though_a_claim_ended_with_it(
    spark: SparkSession, order: int
) -> None:
    ended = position(8, at(0.5), client_id="c", epoch=7)
    was_set = position(3, at(0.5), client_id=None, epoch=7)
    before = position(9, at(0.25), client_id="c", epoch=7)
    tables = Tables(
        spark,
        bronze__published=[record(0, 9, at(0.25))],
        silver__positions=[before, ended, was_set][::order],
    )
    assert lag(tables.ask(_LAG, "positions", "claims", as_of=at(1))) == {1: (10, 3, 7)}


def test_lag_of_a_group_that_has_stood_still_for_days_is_known(spark: SparkSession) -> None:
    """Its client lives and beats on: what is open is of now, and its last step of days ago."""
    tables = Tables(
        spark,
        bronze__published=[record(0, 9, at(0.5))],
        silver__positions=[
            position(3, at(days=-7)),
            position(4, at(days=-5)),
            position(4, at(1, days=1), day=None),
            position(1, at(days=-9), group_id="of another time"),
        ],
        silver__claims=[
            claim(0, 4, from_at=at(days=-8), day=None),
            claim(0, 1, from_at=at(days=-9), day=DAY - dt.timedelta(9), group_id="of another time"),
        ],
    )
    found = lag(tables.ask(_LAG, "positions", "claims"))
    assert len(found) == 24
    assert set(found.values()) == {(10, 4, 6)}


def test_lag_of_a_topic_that_has_had_no_record_for_days_is_known(spark: SparkSession) -> None:
    tables = Tables(
        spark,
        bronze__published=[record(0, 9, at(days=-5)), record(1, 8, at(days=-6))],
        silver__positions=[position(4, at(days=-5))],
        silver__claims=[claim(0, 4, from_at=at(days=-8), day=None)],
    )
    found = lag(tables.ask(_LAG, "positions", "claims"))
    assert len(found) == 24
    assert set(found.values()) == {(10, 4, 6)}


def test_who_holds_a_partition_and_has_stored_no_position_has_all_of_it_before_it(
    spark: SparkSession,
) -> None:
    """It is stuck at its first message, say. Of a partition that is shared by keys, a slot."""
    claims = [
        claim(None, 0, from_at=at(0.25), last_offset=None, day=None),
        claim(None, 9, from_at=None, group_id="since before the log", day=None),
        claim(None, 9, from_at=at(days=-1), group_id="of another day", day=DAY - dt.timedelta(1)),
        claim(4, 9, from_at=at(), topic="t/0#2", group_id="h", day=None),
        claim(None, 0, from_at=at(), topic="t/0#2", partition=1, group_id="h", day=None),
    ]
    tables = Tables(
        spark,
        bronze__published=[record(0, 3, at(days=-1)), record(1, 9, at(0.5))],
        silver__claims=claims,
        silver__positions=[
            position(5, at(1.5)),
            position(9, at(0.5), topic="t/0#2", partition=0, group_id="h"),
        ],
    )
    found = tables.ask(_LAG, "positions", "claims", as_of=at(2))
    groups = {each["group_id"] for each in found}
    assert groups == {"g", "h"}
    alone, by_keys = (lag([e for e in found if e["group_id"] == g]) for g in ("g", "h"))
    assert alone == {1: (10, None, 7), 2: (10, 5, 5)}
    assert by_keys == {1: (10, None, 7), 2: (10, None, 7)}


def term(name: str, since: dt.datetime | None, until: dt.datetime | None, **more: Any) -> Values:
    given = {"group_id": "g", "topic": f"leader:{name}", "client_id": "c", "interval_ms": 1_000}
    ended = {"until_at": until, "how": None if until is None else "released"}
    return given | ended | {"from_at": since, "day": None if until is None else until.date()} | more


@pytest.mark.parametrize(
    ("terms", "led_h", "span_h"),
    [
        ([("n", at(days=-1), at(6))], 6, 24),
        ([("n", at(6), at(12)), ("n", at(18), at(days=3))], 12, 18),
        ([("n", None, at(6))], 6, 24),
        ([("n", at(0), None, at(days=2))], 24, 24),
        ([("n", at(0), None, at(6))], 6, 24),
        ([("n", at(0), None, None)], 0, 24),
    ],
)
def test_a_name_is_led_while_its_leader_was_heard_of(
    spark: SparkSession, terms: list[Any], led_h: float, span_h: float
) -> None:
    rows = [term(*each[:3], last_beat_at=each[3] if len(each) > 3 else None) for each in terms]
    (found,) = Tables(spark, silver__claims=rows).ask(
        _LEADERSHIP, "claims", "elections", "operations"
    )
    assert (found["name"], found["leaders"]) == ("n", 1)
    assert (found["led_ms"], found["span_ms"]) == (led_h * 3_600_000, span_h * 3_600_000)
    assert found["availability"] == pytest.approx(led_h / span_h)


def test_a_name_that_had_a_leader_before_is_without_one_from_midnight_to_the_first_election(
    spark: SparkSession,
) -> None:
    before: list[Values] = [
        {"group_id": "g", "name": "n", "day": DAY - dt.timedelta(n)} for n in (1, 2)
    ]
    other: list[Values] = [
        {"group_id": "h", "name": "n", "day": DAY},
        {"group_id": "g", "name": "m"},
    ]
    tables = Tables(
        spark, silver__claims=[term("n", at(6), at(12))], silver__elections=[*before, *other]
    )
    (found,) = tables.ask(_LEADERSHIP, "claims", "elections", "operations")
    assert (found["led_ms"], found["span_ms"]) == (6 * 3_600_000, 24 * 3_600_000)


@pytest.mark.parametrize(
    ("as_of", "led"), [(at(12), [("g", 0, 12), ("h", 0, 12)]), (at(0), []), (at(days=-1), [])]
)
def test_a_name_whose_leader_went_before_is_without_one_until_its_group_is_forgotten(
    spark: SparkSession, as_of: dt.datetime, led: list[tuple[str, int, int]]
) -> None:
    ended: list[Values] = [
        {"group_id": g, "name": "n", "until_at": at(12, days=-3), "day": DAY - dt.timedelta(3)}
        for g in "ghij"
    ]
    forgotten: list[Values] = [
        {"group_id": group, "what": what, "at": when, "day": when.date()}
        for group, what, when in (
            ("g", "pause", at(13, days=-3)),
            ("h", "forget", at(11, days=-3)),  # and led again since
            ("i", "forget", at(13, days=-3)),
            ("j", "forget", at(11)),
        )
    ]
    tables = Tables(spark, silver__elections=ended, silver__operations=forgotten)
    found = tables.ask(_LEADERSHIP, "claims", "elections", "operations", as_of=as_of)
    hour_ms = 3_600_000
    assert [(f["group_id"], f["led_ms"], f["span_ms"] // hour_ms) for f in found] == led
    assert {(f["leaders"], f["availability"]) for f in found} <= {(0, 0.0)}


@pytest.mark.parametrize("how", ["taken_over", "resumed", "claimed_again"])
def test_who_was_taken_over_from_led_until_its_last_heartbeat(
    spark: SparkSession, how: str
) -> None:
    """Also by itself: a leader that was down is none, though nobody else has taken over."""
    taken = {"how": how, "last_beat_at": at(6)}
    rows = [
        term("n", at(), at(8), **taken),
        term("n", at(8), at(9), client_id="d"),
        term("n", at(days=1), at(days=1, hour=1), client_id="tomorrow's"),
        claim(0, 1, from_at=at(), day=None),
    ]
    tables = Tables(spark, silver__claims=rows)
    (found,) = tables.ask(_LEADERSHIP, "claims", "elections", "operations", as_of=at(12))
    assert (found["leaders"], found["led_ms"]) == (2, 7 * 3_600_000)
    assert found["span_ms"] == 12 * 3_600_000


def test_who_leads_still_is_heard_of_for_two_of_its_intervals(spark: SparkSession) -> None:
    beats = {"n": at(12, ms=-2_000), "m": at(12, ms=-2_001)}
    rows = [term(name, at(), None, last_beat_at=beat) for name, beat in beats.items()]
    tables = Tables(spark, silver__claims=rows)
    found = tables.ask(_LEADERSHIP, "claims", "elections", "operations", as_of=at(12))
    noon_ms = 12 * 3_600_000
    assert {each["name"]: each["led_ms"] for each in found} == {"n": noon_ms, "m": noon_ms - 2_001}


@pytest.mark.parametrize(
    ("lag", "availability", "met"), [(5, 0.5, (True, True)), (4, 0.51, (False, False))]
)
def test_a_day_is_judged_by_its_last_hour_and_by_what_was_led_least(
    spark: SparkSession, lag: int, availability: float, met: tuple[bool, bool]
) -> None:
    """Who was behind in the morning and has caught up is not behind."""
    of_day = {"day": DAY}
    tables = Tables(
        spark,
        gold__lag=[{"hour": at(h), "lag": n, **of_day} for h, n in ((3, 99), (24, 5), (24, 2))],
        gold__leadership=[{"name": str(a), "availability": a, **of_day} for a in (1.0, 0.5)],
    )
    wanted = Expectations(lag=lag, availability=availability)
    gates = gold._gates(spark, cast(Lake, tables), DAY, at(30), wanted, {}, print)
    assert [(gate.name, gate.found, gate.met) for gate in gates[-2:]] == [
        ("lag", 5, met[0]),
        ("availability", 0.5, met[1]),
    ]


def test_a_finding_is_named_alike_in_each_run_and_unlike_any_other(spark: SparkSession) -> None:
    strange = {"kind": "zombie", "what": "w", "group_id": "g", "coordinator": 1, "day": DAY}
    tables = Tables(
        spark,
        silver__deliveries=[
            delivery(1, "delivered"),
            delivery(2, "delivered", copies=3, altered=True, disordered=True),
            delivery(3, "lost"),
            delivery(3, "lost", outbox="shop/other"),
            delivery(4, "unexpected", copies=2),
            delivery(5, "pending"),
            delivery(6, "unarchived", copies=1),
            delivery(7, "lost", day=DAY + dt.timedelta(1)),
        ],
        silver__anomalies=[
            strange | {"log_offset": 7},
            strange | {"log_offset": 8},
            strange | {"log_offset": 9, "day": DAY - dt.timedelta(1)},
        ],
    )
    found = tables.found().collect()
    assert sorted(each["finding"] for each in found) == [
        "altered|shop/outbox|2",
        "disordered|shop/outbox|2",
        "duplicated|shop/outbox|2",
        "duplicated|shop/outbox|4",
        "lost|shop/other|3",
        "lost|shop/outbox|3",
        "unexpected|shop/outbox|4",
        "zombie|1|7|g",
        "zombie|1|8|g",
    ]
    assert {each["what"] for each in found if each["kind"] == "duplicated"} == {
        "3 records of one row",
        "2 records of one row",
    }


def test_a_report_is_in_utc_wherever_it_is_written(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    lags = [
        {"hour": at(hour), "group_id": "g", "lag": lag, "day": DAY}
        for hour, lag in ((1, 7), (1, 1), (24, 2))
    ]
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        page = render_lake(spark, cast(Lake, Tables(spark, gold__lag=lags)), DAY)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert f'>lag: 8</text><text x="0" y="146">{DAY} 01:00</text>' in page
    assert f">{DAY + dt.timedelta(1)} 00:00</text>" in page


def test_a_report_has_as_many_days_as_are_wanted(spark: SparkSession) -> None:
    days = [DAY + dt.timedelta(n) for n in range(-3, 2)]
    groups = [{"group_id": f"group of {day}", "day": day} for day in days]
    page = render_lake(spark, cast(Lake, Tables(spark, gold__groups=groups)), DAY, 3)
    assert f"{days[1]} to {DAY}, UTC." in page
    assert [f"group of {day}" in page for day in days] == [False, True, True, True, False]


def test_a_report_that_shows_the_newest_lines_alone_sums_up_all(spark: SparkSession) -> None:
    outboxes: list[Values] = [
        {"outbox": f"shop/{n}", "records": 1, "lost": 0, "day": DAY - dt.timedelta(days)}
        for n in range(30)
        for days in range(20)
    ]
    lost = {"outbox": "shop/30", "records": 0, "lost": 7, "day": DAY}
    tables = Tables(spark, gold__outboxes=[*outboxes, lost])
    page = render_lake(spark, cast(Lake, tables), DAY)
    assert "The last 500." in page
    assert ("shop/30" in page, str(DAY - dt.timedelta(19)) in page) == (True, False)
    assert "<b>600</b>records of rows" in page
    assert "<b>7</b>rows lost" in page


def write(
    spark: SparkSession,
    lake: Lake,
    *deliveries: Values,
    said: list[str] | None = None,
    **expected: Any,
) -> dict[str, Any]:
    """Write the gold of the day for these deliveries; what was expected, by name: found and met."""
    told = [] if said is None else said

    def of_the_day() -> None:
        frame = Tables(spark, silver__deliveries=list(deliveries)).frame(None, "silver.deliveries")
        lake.replace_day("silver.deliveries", frame, DAY)

    gates = write_gold(
        spark,
        lake,
        DAY,
        as_of=at(12),
        late_days=1,
        lifetime_days=30,
        expectations=Expectations(**expected),
        deliveries=of_the_day,
        progress=told.append,
    )
    return {gate.name: (gate.found, gate.met) for gate in gates}


def test_what_has_come_after_all_is_no_finding_any_more_and_a_day_is_judged_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake.at(str(tmp_path))
    first = write(spark, lake, delivery(1, "lost"), delivery(2, "delivered", copies=2))
    assert first == {
        "findings: altered": (0, True),
        "findings: disordered": (0, True),
        "findings: duplicated": (1, False),
        "findings: lost": (1, False),
        "findings: unexpected": (0, True),
    }
    # Another run has made the table meanwhile: what that has found stays.
    with monkeypatch.context() as patch:
        patch.setattr(Lake, "exists", lambda *_: False)
        gold._add_findings(
            spark,
            lake,
            Tables(spark, silver__deliveries=[delivery(9, "lost")]).found(),
            DAY,
            30,
        )
    again = write(
        spark,
        lake,
        delivery(1, "delivered", latency_ms=40),
        delivery(2, "delivered", copies=2, latency_ms=7),
        allowed=["duplicated"],
        latency_p99_ms=40,
        lag=5,
    )
    assert again == {
        "findings: altered": (0, True),
        "findings: disordered": (0, True),
        "findings: lost": (0, True),
        "findings: unexpected": (0, True),
        "latency_p99_ms": (40, True),
        "lag": (None, False),  # nothing is known of it
    }
    kept = lake.frame(spark, "gold.findings").collect()
    assert sorted(each["finding"] for each in kept) == [
        "duplicated|shop/outbox|2",
        "lost|shop/outbox|1",
        "lost|shop/outbox|9",
    ]
    expires = dt.datetime.now(dt.UTC).date() + dt.timedelta(30)
    assert {(expires - each["expires_on"]).days for each in kept} <= {0, 1}
    noted = lake.frame(spark, "gold.expectations").filter("NOT met").collect()
    assert [(each["name"], each["found"], each["limit"]) for each in noted] == [("lag", None, 5)]


def test_records_that_have_no_row_are_told_to_be_of_a_table_that_does_not_keep_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Mark mode deletes what it has published: hardly a row is in the lake. All are findings."""
    said: list[str] = []
    other = {"outbox": "shop/marked"}
    deliveries = [delivery(1, "delivered"), delivery(2, "unexpected")]
    deliveries += [delivery(id, "unexpected", copies=1, **other) for id in (1, 2)]
    deliveries += [delivery(3, "delivered", **other)]
    gates = write(spark, Lake.at(str(tmp_path)), *deliveries, said=said)
    assert gates["findings: unexpected"] == (3, False)
    [line] = [each for each in said if "have no row" in each]
    assert line.startswith(f"{DAY}: most records of shop/marked have no row: ")


QUICK = {  # by default as many as large tables need; a new session has none of ours
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}
OF_SOMEBODY_ELSE = {
    "spark.databricks.delta.replaceWhere.constraintCheck.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
}


def test_a_session_of_somebody_else_writes_the_same_tables(
    spark: SparkSession, tmp_path: Path
) -> None:
    found: list[tuple[str, str, Any]] = []
    for name, settings in (("ours", {}), ("theirs", OF_SOMEBODY_ELSE)):
        session = spark.newSession()
        for key, value in (QUICK | settings).items():
            session.conf.set(key, value)
        lake = Lake.to_write(session, str(tmp_path / name))
        held = claim(0, 4, from_at=at(days=-1, ms=1), topic="leader:n", interval_ms=1_000)
        ended = held | {"until_at": at(3), "how": "released", "day": DAY}
        for claims in ([held], [ended, held | {"epoch": 2, "last_beat_at": at(11.9997)}], []):
            tables = Tables(session, silver__claims=claims)
            lake.replace("silver.claims", tables.frame(None, "silver.claims"), "day IS NULL")
            kept = lake.frame(session, "silver.claims").count()
            assert kept == max(1, len(claims))
            gates = write(session, lake, delivery(1, "lost"), delivery(2, "delivered"))
            gates |= write(session, lake, delivery(2, "delivered", latency_ms=40), lag=4)
            found.append((name, "gates", gates))
            for table in ("silver.claims", "gold.outboxes", "gold.groups", "gold.leadership"):
                rows = lake.frame(spark, table).orderBy("day").collect()
                found.append((name, table, rows))
                types = lake.frame(spark, table).schema.simpleString()
                found.append((name, table, types))
    half = len(found) // 2
    assert [each[1:] for each in found[:half]] == [each[1:] for each in found[half:]]


def test_what_is_lost_is_not_known_where_rows_that_were_there_stay_away(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The job that brings them has failed for days, say."""
    lake = Lake.at(str(tmp_path))
    record = delivery(1, "unarchived", copies=1)
    assert write(spark, lake, record)["findings: lost"] == (0, True)  # there never were any
    known = [{"outbox": BOX, "rows": 3, "lost": 0, "day": DAY - dt.timedelta(30)}]
    rows = Tables(spark, gold__outboxes=known).frame(None, "gold.outboxes")
    lake.replace_day("gold.outboxes", rows, DAY - dt.timedelta(30))
    assert write(spark, lake, record)["findings: lost"] == (None, False)
    assert "findings: lost" not in write(spark, lake, record, allowed=["lost"])
    assert write(spark, lake, record, delivery(2, "delivered"))["findings: lost"] == (0, True)


def test_what_is_lost_is_not_known_where_rows_ask_for_a_topic_that_was_not_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake.at(str(tmp_path))
    said: list[str] = []

    def found(*rows: Values) -> list[Any]:
        """What is expected of `lost`, and what the table of outboxes has."""
        said.clear()
        gate = write(spark, lake, *rows, said=said)["findings: lost"]
        assert lake.frame(spark, "gold.findings").filter("kind <> 'lost'").isEmpty()
        (kept,) = lake.frame(spark, "gold.outboxes").collect()
        return [gate, *(kept[name] for name in ("rows", "lost", "unread"))]

    rows = [
        delivery(1, "delivered"),
        *(delivery(n, "unread", topic=f"t{n % 2}") for n in (2, 3, 4)),
    ]
    assert found(*rows) == [(None, False), 4, None, "t0 t1"]
    assert said == [f"{DAY}: rows ask for topics that were not read: --published t0 --published t1"]
    assert found(*rows, delivery(5, "lost")) == [(1, False), 5, 1, "t0 t1"]
    assert found(rows[0]) == [(0, True), 1, 0, None]
    assert said == []


@pytest.mark.parametrize(
    ("as_of", "counts", "looked", "away"),
    [
        # Rows (None: not known) and lost of each day; when somebody looked for rows.
        (at(30), {-3: (5, 0)}, [], True),
        (at(23.9), {-3: (5, 0)}, [], False),  # it is not over
        (at(30), {-3: (5, 0)}, [at(days=-1), at(23.9)], True),
        (at(30), {-3: (5, 0)}, [at(24), at(3)], False),  # there were none
        (at(30), {-31: (5, 0)}, [], False),  # nobody expects any
        (at(30), {-3: (None, None)}, [], False),
        (at(30), {0: (5, 0)}, [], False),  # a lake of before there were looks
        (at(30), {0: (5, 0)}, [at(days=-1, ms=-1)], False),  # another one brought them
        (at(30), {0: (5, 0)}, [at(20)], True),  # of the evening nobody knows
        (at(30), {0: (5, 0)}, [at(24)], False),
        (at(30), {0: (None, None), -1: (5, 0)}, [at(24)], True),
    ],
)
def test_what_is_lost_is_not_known_where_nobody_has_brought_rows_since_the_day_ended(
    spark: SparkSession,
    as_of: dt.datetime,
    counts: dict[int, tuple[int | None, int | None]],
    looked: list[dt.datetime],
    away: bool,
) -> None:
    """Neither rows nor records: all is well, or nothing works any more."""
    tables = Tables(
        spark,
        gold__outboxes=[
            {"outbox": BOX, "rows": rows, "lost": lost, "day": DAY + dt.timedelta(days)}
            for days, (rows, lost) in counts.items()
        ],
        bronze__outbox_looks=[
            {"outbox": BOX, "at": moment, "rows": 0, "day": moment.date()} for moment in looked
        ],
    )
    found = gold._rows_stay_away(spark, cast(Lake, tables), DAY, as_of)
    assert found == ([BOX] if away else [])


def test_a_day_is_written_again_by_the_first_run_that_can_say_more_of_it(
    spark: SparkSession,
) -> None:
    def begun(started: dt.datetime, *days: int) -> Values:
        written = " ".join(str(DAY + dt.timedelta(n)) for n in days)
        return {"started_at": started, "days": written, "day": started.date()}

    def run(started: dt.datetime, *days: int) -> Values:
        return begun(started, *days) | {"ended_at": started + dt.timedelta(1)}

    runs = [
        run(at(2), -1),  # in the night after it
        run(at(20), 0),  # before it was over
        run(at(12, days=-3), -9, -10),  # long after them
        begun(at(11, days=-3), -9),  # one was killed, and another one came to its end since
        begun(at(1, days=-1), -10),  # what rows that had come late say was told by nobody
        begun(at(1, days=-4), -4),
        begun(at(20), 0),
        run(at(1, days=-7), -8),  # in its night, and a week later
        run(at(9, days=-1), -8),
        run(at(9, days=-1)),
        run(at(9, days=-1)) | {"days": None},  # of an earlier version
        run(at(9, days=-40), -40),
    ]
    lake = cast(Lake, Tables(spark, gold__runs=runs))
    found = [_days_again(spark, lake, at(hour), LakeSettings(), DAY) for hour in (24.9, 25, 49)]
    days = [sorted((day - DAY).days for day in each) for each in found]
    assert days == [[-10, -4], [-10, -4, -1, 0], [-10, -4, -1, 0]]


def test_a_day_whose_night_failed_is_written_by_the_next_run(spark: SparkSession) -> None:
    """The one of -6 never began; what came of that day is in bronze."""

    def some(*days: int) -> list[Values]:
        return [{"day": DAY + dt.timedelta(n)} for n in days]

    def again(last: int, *noted: int) -> list[int]:
        written = " ".join(str(DAY + dt.timedelta(n)) for n in noted)
        tables = Tables(
            spark,
            gold__runs=[{"started_at": at(), "ended_at": at(), "days": written, "day": DAY}],
            bronze__coordination=some(-40, -9, -7),
            bronze__published=some(-6, -3),
            bronze__outbox_rows=some(-2, -1),
        )
        found = _days_again(
            spark, cast(Lake, tables), at(1), LakeSettings(), DAY + dt.timedelta(last)
        )
        return sorted((day - DAY).days for day in found)

    assert again(-1, -8, -5) == [-7, -6, -3, -2]  # of -4 there is nothing
    assert again(-5, -8, -7) == [-6]
    assert again(-9, -8, -7) == []
    assert again(-2, -50, -9, -7, -6, -5, -3) == []  # those long ago other runs have noted
    assert again(-1) == []


def test_a_day_is_written_again_when_more_is_known_of_its_rows(spark: SparkSession) -> None:
    """All days were written when, by the time alone, their last rows and records were in."""
    days = {n: DAY + dt.timedelta(n) for n in range(-14, -7)}
    written = " ".join(map(str, days.values()))
    runs = [{"started_at": at(), "ended_at": at(), "days": written, "day": DAY}]

    def again(
        rows: dict[int, int],
        counts: dict[int, tuple[int | None, int]],
        upto: int | None = None,
        unread: str | None = None,
        without_row: Sequence[tuple[int, int]] = (),
    ) -> list[int]:
        """Rows in bronze of each day; in gold, and how many were pending. `s` and `t` are read.
        Days and ids of records that had no row."""
        look = at(days=upto + 1, hour=1) if upto else None
        tables = Tables(
            spark,
            gold__runs=runs,
            bronze__outbox_rows=[
                row(id, at(days=n)) for n, count in rows.items() for id in range(count)
            ],
            bronze__outbox_looks=[{"outbox": BOX, "at": at(), "upto": look, "day": DAY}],
            gold__outboxes=[
                {
                    "outbox": BOX,
                    "rows": known,
                    "pending": pending,
                    "unread": unread,
                    "day": days[n],
                }
                for n, (known, pending) in counts.items()
            ],
            silver__deliveries=[
                {"outbox": BOX, "id": id, "status": "unexpected", "day": days[n]}
                for n, id in without_row
            ],
        )
        settings = LakeSettings(published=["s", "t"])
        found = _days_again(spark, cast(Lake, tables), at(1), settings, DAY)
        return sorted((day - DAY).days for day in found)

    assert again({-12: 2}, {-12: (2, 0), -11: (None, 0)}) == []
    # A record of the day after may be of a row that has come.
    assert again({-12: 2}, {-12: (1, 0)}) == [-12, -11]
    assert again({-12: 2}, {-12: (None, 0)}) == [-12, -11]
    assert again({-8: 1}, {}) == [-8]
    # No run has written that day, or will: nor is the day after it, for that alone, each night.
    assert again({-20: 1}, {}) == []
    assert again({-20: 8, -15: 1}, {-14: (2, 0)}, without_row=[(-14, 7), (-12, 0)]) == []
    assert again({-15: 1}, {-14: (2, 0)}, without_row=[(-14, 0), (-13, 0)]) == [-14]
    # Retention may have deleted rows. What was pending is judged when rows are known up to its end.
    assert again({}, {-12: (2, 0)}) == []
    assert again({}, {-12: (2, 1)}, upto=-13) == []
    assert again({}, {-12: (2, 1)}, upto=-12) == [-12, -11]
    assert again({}, {-12: (2, 1)}) == [-12, -11]
    # A topic is read that was not.
    assert again({}, {-12: (2, 0)}, unread="a t") == [-12, -11]
    assert again({}, {-12: (2, 0)}, unread="a") == []


def test_how_long_it_took_is_not_known_where_the_rows_of_an_outbox_are_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake.at(str(tmp_path))
    known = delivery(1, "delivered", latency_ms=7)
    pending = delivery(1, "pending", outbox="shop/young")
    unknown = delivery(1, "unarchived", outbox="shop/other", copies=1)
    for rows, found in ((pending, (7, True)), (unknown, (None, False))):
        assert write(spark, lake, known, rows, latency_p99_ms=40)["latency_p99_ms"] == found
