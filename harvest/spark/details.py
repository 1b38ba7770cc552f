"""The keys whose buckets differ, compared one by one, in a Spark task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from harvest.core.gaps import Range
from harvest.spark.compare import Flag, Found, Item, compare_key, within

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CARRIED_COLUMNS",
    "CARRY",
    "FINDING_COLUMNS",
    "Rules",
    "details",
    "output_columns",
    "schema_of",
]

FINDING_COLUMNS: Final = (
    "kind string, topic string, key string, id bigint, row_at_ms bigint, partition bigint, "
    "offset bigint, record_at_ms bigint"
)
"""Columns of the table of findings. `key` is text, or hex where it is no UTF-8; times are in
milliseconds since 1970; `id` is the row's, `partition` and `offset` are the record's."""

CARRY: Final = "carry"
"""The kind of the lines that are no findings, but are carried over to the next run."""

CARRIED_COLUMNS: Final = (
    "key_hash bigint, row_hash bigint, a bigint, b bigint, at_ms bigint, topic string, key binary, "
    "in_kafka boolean, carried boolean, flags int"
)
"""Columns of what is compared, and of what is carried."""

_AT_ONCE: Final = 10_000
"""Lines that are given together."""
_ARROW: Final = {"bigint": "int64", "boolean": "bool", "int": "int32"}


@dataclass(frozen=True, slots=True)
class Rules:
    """How differences are judged.

    - `young_ms`: what was written later may still be on its way.
    - `wanted`: the ids whose rows are compared in this run; None for all.
    - `carrying`: whether there is a next run for what is on its way.
    - `whole`: all rows that may have records are here. Otherwise a record without a row here cannot
      be taken for an altered one.
    """

    young_ms: int
    wanted: Sequence[Range] | None = None
    carrying: bool = False
    whole: bool = True


def schema_of(columns: str) -> pa.Schema:
    """Return columns in Spark's words as an Arrow schema."""
    import pyarrow

    pairs = (column.split() for column in columns.split(", "))
    return pyarrow.schema([(name, _ARROW.get(kind, kind)) for name, kind in pairs])


def details(rules: Rules) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that compares the keys of one task, all items of each key.

    They come sorted by `key_hash`: no more than those of one hash are in memory, and what was found
    since the last batch. It takes `CARRIED_COLUMNS`, and gives `FINDING_COLUMNS` and behind them
    `CARRIED_COLUMNS` with their names prefixed by an underscore.
    """

    def compare(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        schema = schema_of(output_columns())
        found: list[tuple[Any, ...]] = []
        for keys in _by_hash(batches, rules.wanted):
            for key, (rows, records) in keys.items():
                found += _judged(key, rows, records, rules)
            if len(found) >= _AT_ONCE:
                yield pyarrow.RecordBatch.from_arrays(_columns(found, schema), schema=schema)
                found = []
        yield pyarrow.RecordBatch.from_arrays(_columns(found, schema), schema=schema)

    return compare


def output_columns() -> str:
    """Return the columns that `details` gives."""
    carried = ", ".join(f"_{column}" for column in CARRIED_COLUMNS.split(", "))
    return f"{FINDING_COLUMNS}, {carried}"


class _Key(NamedTuple):
    topic: str
    key: bytes | None
    key_hash: int


_Sides = tuple[list[Item], list[Item]]


def _columns(found: list[tuple[Any, ...]], schema: pa.Schema) -> list[pa.Array]:
    import pyarrow

    columns: list[Any] = list(zip(*found, strict=True)) if found else [[] for _ in schema]
    return [pyarrow.array(values, type=f.type) for f, values in zip(schema, columns, strict=True)]


def _by_hash(
    batches: Iterator[pa.RecordBatch], wanted: Sequence[Range] | None
) -> Iterator[dict[_Key, _Sides]]:
    """Give the rows and the records of each key; those with one hash (nearly always 1) at once."""
    import pyarrow

    keys: dict[_Key, _Sides] = {}
    of_hash = None
    names = ("topic", "key", "key_hash", "row_hash", "a", "b", "at_ms", "flags", "in_kafka")
    for batch in batches:
        if wanted is not None:
            kept = (
                batch.column("in_kafka").to_numpy(zero_copy_only=False)
                | batch.column("carried").to_numpy(zero_copy_only=False)
                | within(batch.column("a").to_numpy(), wanted)
            )
            batch = batch.filter(pyarrow.array(kept, type=pyarrow.bool_()))
        columns = (batch.column(name).to_pylist() for name in names)
        for topic, key, key_hash, row_hash, a, b, at_ms, flags, in_kafka in zip(
            *columns, strict=True
        ):
            if key_hash != of_hash:
                if keys:
                    yield keys
                keys, of_hash = {}, key_hash
            sides = keys.setdefault(_Key(topic, key, key_hash), ([], []))
            sides[in_kafka].append(Item((a, b), row_hash, at_ms, flags))
    if keys:
        yield keys


def _judged(
    key: _Key, rows: list[Item], records: list[Item], rules: Rules
) -> Iterator[tuple[Any, ...]]:
    found = compare_key(rows, records, pair=rules.whole)
    alone = {f.row for f in found if f.kind in ("missing", "altered")}
    matched = [row.place for row in rows if row not in alone and not row.flags & Flag.LATE]
    newest = max(matched, default=())
    for kind, row, record in found:
        young_row, young_record = _is_young(row, rules), _is_young(record, rules)
        if kind == "missing" or (kind == "altered" and rules.carrying and young_row):
            assert row is not None  # noqa: S101
            flags = row.flags
            if young_row:
                yield _line(key, Found("pending", row, None))
            elif flags & Flag.TOLD:
                yield _line(key, Found("outstanding", row, None))
            else:
                yield _line(key, Found("missing", row, None))
                flags |= Flag.TOLD
            if rules.carrying:
                if row.place < newest and not flags & Flag.LATE:
                    flags |= Flag.OVERTAKEN
                yield _carry(key, row, flags, in_kafka=False)
                if record is not None:
                    yield _carry(key, record, Flag.NONE, in_kafka=True)
        elif kind == "never_committed" and rules.carrying and young_record:
            assert record is not None  # noqa: S101
            yield _carry(key, record, Flag.NONE, in_kafka=True)
        else:
            carried = (key.key_hash, None if record is None else record.row_hash)
            yield _line(key, Found(kind, row, record), carried)


def _is_young(item: Item | None, rules: Rules) -> bool:
    """What has no time, such as one that was infinite, is old."""
    return item is not None and (item.at_ms or 0) > rules.young_ms


def _line(key: _Key, found: Found, hashes: Sequence[Any] = (None, None)) -> tuple[Any, ...]:
    kind, row, record = found
    return (
        kind,
        key.topic,
        _text(key.key),
        None if row is None else row.place[0],
        None if row is None else row.at_ms,
        *((None, None) if record is None else record.place),
        None if record is None else record.at_ms,
        *hashes,
        *[None] * 8,
    )


def _carry(key: _Key, item: Item, flags: int, *, in_kafka: bool) -> tuple[Any, ...]:
    return (
        CARRY,
        key.topic,
        *[None] * 6,
        key.key_hash,
        item.row_hash,
        *item.place,
        item.at_ms,
        key.topic,
        key.key,
        in_kafka,
        True,
        int(flags),
    )


def _text(key: bytes | None) -> str | None:
    if key is None:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return "0x" + key.hex()
