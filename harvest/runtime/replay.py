"""Publish a range of ids again, from the archive and from what the table still has.

Rows are read by id from both, merged, and produced in that order, so each key keeps its order.
Those that are set aside, with an error or behind one, never were published, and are left out.
They go in transactions: a reader with read_committed sees all of one or nothing. Each record has
the header ``harvest.replay``, the id of its row: a consumer can tell it from the first one.
(specs/HARVEST.md §12)
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from harvest.config.model import ReaperConfig
from harvest.core.extra_columns import placement
from harvest.core.kafka_headers import Headers, kafka_headers
from harvest.core.row import Row, named
from harvest.databases.registry import database
from harvest.errors import ConfigurationError, InvalidRecord, SinkUnavailable
from harvest.maintenance.archive import ParquetArchive
from harvest.runtime.checkpoints import Checkpoints
from harvest.runtime.partition_upkeep import make_archive
from harvest.runtime.parts import make_range_store
from harvest.sinks.kafka.clients import make_client
from harvest.sinks.kafka.settings import producer_settings
from marshal_py.client.kafka_clients import NO_CREATION, PRODUCER_FAILED

__all__ = ["HEADER", "Replay", "Replayed", "replay"]

HEADER: Final = "harvest.replay"
_BATCH: Final = 5_000
_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Replay:
    """Which rows: of `topic`, with ids from `low` to `high`; into the topic `into`."""

    low: int
    high: int
    topic: str
    into: str

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise ConfigurationError(
                f"--from {self.low} --to {self.high}: the first id must be 0 or more, and not "
                "above the last"
            )


@dataclass(slots=True)
class Replayed:
    """What was published again, or would be: how many rows, from which id to which."""

    rows: int = 0
    payload_bytes: int = 0
    first_id: int | None = None
    last_id: int | None = None

    def add(self, row: Row) -> None:
        """Count a row."""
        self.rows += 1
        self.payload_bytes += len(row.key or b"") + len(row.value or b"")
        self.first_id = row.id if self.first_id is None else self.first_id
        self.last_id = row.id


def replay(
    config: ReaperConfig,
    wanted: Replay,
    *,
    dry_run: bool = False,
    progress: Callable[[Replayed], None] = lambda _: None,
) -> Replayed:
    """Publish again what is `wanted`; `progress` is told of every committed transaction.

    What `progress` was last told is in Kafka, whatever happens then. Another replay of the outbox
    that is under way is fenced. Rows that are set aside are left out. Raises `ConfigurationError`
    for a range that is not published yet, `HarvestError` when servers or files fail: it says how
    far it came, and of which ids it is not known whether they were published.
    """
    if config.mode != "range":
        raise ConfigurationError(
            f"mode is {config.mode}, must be range: the other modes keep no rows to publish again"
        )
    _check_published(config, wanted)
    dead_letters = _dead_letters(config, wanted)  # below what is published, there will be no more
    with contextlib.closing(_rows(config, wanted)) as found:
        rows = (row for row in found if row.topic == wanted.topic and row.id not in dead_letters)
        if not dry_run:
            return _publish_all(config, wanted, rows, progress)
        done = Replayed()
        for row in rows:
            done.add(row)
        return done


def _publish_all(
    config: ReaperConfig,
    wanted: Replay,
    rows: Iterator[Row],
    progress: Callable[[Replayed], None],
) -> Replayed:
    done = Replayed()
    batch: list[Row] = []
    try:
        producer = _producer(config, wanted.into)
        while batch := list(itertools.islice(rows, _BATCH)):
            _publish(producer, batch, wanted.into)
            for row in batch:
                done.add(row)
            progress(done)
    except _Failed as error:
        where = "nothing was published" if done.last_id is None else f"up to id {done.last_id}"
        if error.in_doubt:
            low, high = batch[0].id, batch[-1].id
            where += (
                f" (whether ids {low} to {high} were, all of them or none, is not known: look in "
                f"{wanted.into!r} for header {HEADER} = {high})"
            )
        raise SinkUnavailable(f"the replay broke off, {where}: {error.reason}") from None
    return done


def _check_published(config: ReaperConfig, wanted: Replay) -> None:
    """A row that was not published yet must not overtake the harvester, nor come twice."""
    checkpoints = Checkpoints(config)
    positions = [checkpoints.read(shard) for shard in range(config.shards)]
    floor = min([0 if p is None else p.low_id for p in positions])
    if wanted.high >= floor:
        raise ConfigurationError(
            f"--to {wanted.high}: ids from {floor} on are not published yet, or may still appear; "
            f"the highest that can be replayed is {floor - 1}"
        )


def _dead_letters(config: ReaperConfig, wanted: Replay) -> frozenset[int]:
    if config.primary is not None:  # its rows are not set aside
        return frozenset()
    with contextlib.closing(database(config.database).dead_letters(config.table)) as dead_letters:
        return dead_letters.ids(wanted.low, wanted.high)


def _rows(config: ReaperConfig, wanted: Replay) -> Generator[Row]:
    """By id. A partition may be in the archive and not dropped yet: then each row comes once.

    Page by page, first from the table and then from the archive: a partition that is dropped
    meanwhile was archived before, and what the table does not have any more is there.
    """
    archive = make_archive(config)
    if config.shards > 1:  # a store for one shard reads the rows of all
        config = config.model_copy(update={"shards": 1})
    with contextlib.closing(make_range_store(config)) as store:
        after = wanted.low - 1
        while after < wanted.high:
            window = store.read(after, _BATCH)
            upto = min(window.last_id, wanted.high) if window.full else wanted.high
            kept = (row for row in named(window.rows) if row.id <= upto)
            for row in heapq.merge(kept, _archived(archive, after + 1, upto), key=lambda r: r.id):
                if row.id > after:
                    after = row.id
                    yield row
            after = upto


def _archived(archive: ParquetArchive | None, low: int, high: int) -> Iterator[Row]:
    if archive is None or not archive.folder.is_dir():
        return
    for row in archive.read(low, high):
        yield Row(
            row["id"],
            row["kafka_topic"],
            row["kafka_key"],
            row["kafka_value"],
            tuple(row["kafka_header_keys"] or ()),
            tuple(row["kafka_header_values"] or ()),
        )


class _Failed(Exception):
    """A transaction that is not known to be committed; `in_doubt`: nor not to be."""

    def __init__(self, error: Exception, *, in_doubt: bool = False) -> None:
        self.reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        self.in_doubt = in_doubt


def _producer(config: ReaperConfig, topic: str) -> Producer:
    name = f"harvest.{config.sink_name}.replay"
    settings = {**NO_CREATION, **producer_settings(config.producer_config, name)}
    producer = make_client(Producer, settings)
    try:
        found = producer.list_topics(topic, _TIMEOUT_S).topics.get(topic)
        error = None if found is None else found.error
        if found is None or (error and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART):
            raise ConfigurationError(f"there is no topic {topic!r}: create it first")
        if error is not None:
            raise KafkaException(error)
        producer.init_transactions(_TIMEOUT_S)
    except PRODUCER_FAILED as failed:
        raise _Failed(failed) from None
    return producer


def _publish(producer: Producer, rows: list[Row], topic: str) -> None:
    """In one transaction: all or none. Raises `_Failed`."""
    is_committing = False
    try:
        producer.begin_transaction()
        for row in rows:
            headers, placed = _headers(row)
            headers.append((HEADER, b"%d" % row.id))
            placed.pop("partition", None)  # the other topic has partitions of its own
            while True:
                try:
                    producer.produce(topic, row.value, row.key, headers=headers, **placed)
                    break
                except BufferError:  # the producer's queue is full
                    producer.poll(0.1)
        is_committing = True
        producer.commit_transaction(_TIMEOUT_S)
    except BaseException as error:
        in_doubt = is_committing
        with contextlib.suppress(*PRODUCER_FAILED):
            producer.purge()
            producer.abort_transaction(_TIMEOUT_S)
            in_doubt = False
        if isinstance(error, PRODUCER_FAILED):
            raise _Failed(error, in_doubt=in_doubt) from None
        raise


def _headers(row: Row) -> tuple[Headers, dict[str, Any]]:
    try:
        return placement(kafka_headers(row))
    except InvalidRecord as error:
        raise InvalidRecord(f"row {row.id} cannot be published: {error}") from None
