"""Reading the checkpoint that a consumer group has (specs/HARVEST.md §5)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from marshal_py.client.committed import ask_again, committed, newest_committed

__all__ = ["committed_checkpoint", "newest_checkpoint"]

_LOG: Final = logging.getLogger("harvest.kafka")


def committed_checkpoint(
    reader: Consumer, topic: str, timeout_s: float, still: Callable[[], bool] = lambda: True
) -> str | None:
    """What the group of `reader` has committed for partition 0 of `topic`; None if nothing.

    It may be what was committed some time ago: this is for looking at it. While the coordinator
    moves, it is asked again: for `timeout_s`, and as long as `still` says that there is a point in
    it. Raises `KafkaException`.
    """
    place = TopicPartition(topic, 0)
    return _text(ask_again(lambda: committed(reader, [place], timeout_s)[0], timeout_s, still))


def newest_checkpoint(
    reader: Consumer, topic: str, timeout_s: float, still: Callable[[], bool] = lambda: True
) -> str | None:
    """The same, and nothing older than what was committed before the call: to publish behind it.

    For that, it commits to the group, too (see `newest_committed`): for partition 1 of `topic`, or
    for partition 0 of the topic of its snapshots if it has only one. With neither, it warns, and is
    no better than `committed_checkpoint`.
    """
    mark = _place_of_a_mark(reader, topic, timeout_s)
    if mark is None:
        _LOG.warning(
            "%r has one partition, and no topic of snapshots that can be seen: should Kafka answer "
            "with an old checkpoint, rows are published again; let the topic have two partitions",
            topic,
        )
        return committed_checkpoint(reader, topic, timeout_s, still)
    return _text(newest_committed(reader, TopicPartition(topic, 0), mark, timeout_s, still))


def _place_of_a_mark(reader: Consumer, topic: str, timeout_s: float) -> TopicPartition | None:
    for name, partition in ((topic, 1), (f"{topic}.snapshots", 0)):
        found = reader.list_topics(name, timeout=timeout_s).topics.get(name)
        if found is not None and found.error is None and partition in found.partitions:
            return TopicPartition(name, partition)
    return None


def _text(found: TopicPartition) -> str | None:
    return found.metadata if found.offset >= 0 and found.metadata else None
