"""The checkpoints of all shards in Kafka, for whoever is not their leader (specs/HARVEST.md §16).

Reading them disturbs nobody. Writing them fences every leader first, and changes all at once or
none: they are committed in one transaction.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from harvest.config.model import ReaperConfig
from harvest.core.gaps import Range, clip, subtract, union
from harvest.core.interfaces.range_store import RangeStore
from harvest.core.mark_checkpoint import Checkpoint
from harvest.core.range_checkpoint import Position
from harvest.core.wal_position import WalPosition
from harvest.errors import ConfigurationError, SinkUnavailable
from harvest.sinks.kafka.clients import make_client
from harvest.sinks.kafka.committed_checkpoint import newest_checkpoint
from harvest.sinks.kafka.settings import connection_settings, consumer_settings, producer_settings
from marshal_py import Marshal

__all__ = ["Checkpoints", "alone", "divided"]

_TIMEOUT_S: Final = 15.0
_ALONE_S: Final = 4.0
_FITTING: Final = 3_960


class Checkpoints:
    """Reads and writes the checkpoints of the outbox of `config`. Methods raise
    `SinkUnavailable`."""

    def __init__(self, config: ReaperConfig) -> None:
        self._config = config

    def read(self, shard: int) -> Position | None:
        """The last committed one; None if there is none. Raises `CheckpointError`."""
        found = self._read(self._name(shard), f"the checkpoint of shard {shard}")
        return None if found is None else Position.decode(found)

    def write(self, positions: Sequence[Position], *, fence: int) -> None:
        """Commit them together, after fencing the leaders of `fence` shards."""
        texts = {self._name(p.shard): p.encode() for p in positions}
        fenced = [self._name(shard) for shard in range(max(fence, len(positions)))]
        self._write(texts, fenced)

    def read_mark(self) -> Checkpoint | None:
        """The same as `read`, of mark mode."""
        found = self.text()
        return None if found is None else Checkpoint.decode(found)

    def text(self) -> str | None:
        """The same in mark or wal mode, as it is kept."""
        return self._read(f"harvest.{self._config.sink_name}", "the checkpoint")

    def wal(self) -> WalPosition | None:
        """The same as `read`, of wal mode."""
        found = self.text()
        return None if found is None else WalPosition.decode(found)

    def write_text(self, text: str) -> None:
        """The same as `write`, in mark or wal mode."""
        name = f"harvest.{self._config.sink_name}"
        self._write({name: text}, [name])

    def write_mark(self, checkpoint: Checkpoint) -> None:
        """The same as `write`, of mark mode."""
        self.write_text(checkpoint.encode())

    def fence(self) -> None:
        """Let nobody publish who began before, in the mode of the configuration."""
        if self._config.mode == "range":
            names = [self._name(shard) for shard in range(self._config.shards)]
        else:
            names = [f"harvest.{self._config.sink_name}"]
        self._write({}, names)

    def _read(self, name: str, what: str) -> str | None:
        consumer = make_client(Consumer, consumer_settings(self._config.kafka, name))
        try:
            return newest_checkpoint(consumer, self._config.coordination.topic, _TIMEOUT_S)
        except KafkaException as error:
            raise SinkUnavailable(f"{what} cannot be read: {error.args[0].str()}") from error
        finally:
            consumer.close()

    def _write(self, texts: Mapping[str, str], fenced: Sequence[str]) -> None:
        """Commit the texts, by group, in one transaction, after fencing all of `fenced`."""
        topic = self._config.coordination.topic
        kafka = self._config.kafka
        consumers = {name: make_client(Consumer, consumer_settings(kafka, name)) for name in texts}
        said = "the checkpoints were not written"
        try:
            producers = [self._fenced(name) for name in fenced]
            if not texts:
                return
            producers[0].begin_transaction()
            for name, text in texts.items():
                where = TopicPartition(topic, 0, 0, text)
                producers[0].send_offsets_to_transaction(
                    [where], consumers[name].consumer_group_metadata(), _TIMEOUT_S
                )
            said = "whether the checkpoints were written, all or none, is not known; run it again"
            producers[0].commit_transaction(_TIMEOUT_S)
        except KafkaException as error:
            raise SinkUnavailable(f"{said}: {error.args[0].str()}") from error
        finally:
            for consumer in consumers.values():
                consumer.close()

    def _name(self, shard: int) -> str:
        return f"harvest.{self._config.shard_sink_name(shard)}"

    def _fenced(self, name: str) -> Producer:
        producer = make_client(Producer, producer_settings(self._config.producer_config, name))
        producer.init_transactions(_TIMEOUT_S)
        return producer


@contextlib.contextmanager
def alone(config: ReaperConfig, shards: int) -> Iterator[None]:
    """Hold the leadership of all shards, so that no harvester works meanwhile.

    One that finds the database to be another lets go of its claim now and then: it is waited for.
    Raises `ConfigurationError` if one does work.
    """
    with Marshal(
        connection_settings(config.kafka),
        group_id=config.group,
        interval_ms=config.coordination.interval_ms,
        topic=config.coordination.topic,
    ) as marshal:
        until_s = time.monotonic() + _ALONE_S
        for topic, partition in config.shard_units(shards):
            while marshal.try_claim(topic, partition) is None:
                if time.monotonic() < until_s:
                    time.sleep(config.coordination.interval_ms / 5000)
                    continue
                raise ConfigurationError(
                    f"a harvester of {config.table} is running: stop all of them first "
                    "(one that was killed counts until two heartbeat intervals later)"
                )
        yield


def divided(store: Sequence[RangeStore], old: Sequence[Position], shards: int) -> list[Position]:
    """The checkpoints of `shards` shards that say the same as `old`, those of all shards so far.

    `store` has one for each old shard. Nobody may lead meanwhile. Raises `ConfigurationError` when
    the old shards are too far apart.
    """
    last_id = max(p.last_id for p in old)
    # What each shard may still have to publish, up to the position of the one that is ahead.
    open_ids: list[list[Range]] = []
    for position in old:
        rest = [(position.last_id + 1, last_id)] if position.last_id < last_id else []
        open_ids.append(union((*position.gaps, *rest)))
    candidates = union(r for ids in open_ids for r in ids)
    there = store[0].lookup(candidates) if candidates else []
    unsent = [
        (row[0], row[0])
        for one, ids in zip(store, open_ids, strict=True)
        for row in (one.fetch(ids) if ids else ())
    ]
    # What is not there is still open only if no shard has found it dead.
    unseen = subtract(candidates, there)
    for ids in open_ids:
        unseen = subtract(unseen, subtract(candidates, ids))
    gaps = tuple(clip(union((*unsent, *unseen)), -(1 << 63), last_id))
    epoch = max(p.epoch for p in old)
    found = [Position(epoch, shard, shards, last_id, gaps) for shard in range(shards)]
    if len(found[0].encode()) > _FITTING:
        raise ConfigurationError(
            "the shards are too far apart to be divided anew: let the harvesters publish the "
            "backlog first"
        )
    return found
