"""Whether the position of a group means something in the topic that is there now.

A topic that was deleted and made anew has another id, and often ends before the position: records
would be left out, without a word. `consumer.positions` judges; on Spark, an application is told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from confluent_kafka import KafkaException

from marshal_py.client.admin_on_demand import AdminOnDemand
from marshal_py.client.marshal import Claim
from marshal_py.consumer.positions import judge
from marshal_py.consumer.topics import describe
from marshal_py.errors import MessagesMissing
from marshal_py.protocol.claim_metadata import ClaimMetadata

__all__ = ["TopicIds"]

_ANSWER_S: Final = 5.0


class TopicIds:
    """Kafka's ids of topics, as far as the brokers tell them (2.8 and later)."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._admin = AdminOnDemand(dict(config))
        self._ids: dict[str, bytes] = {}

    def ask(self, topics: Iterable[str]) -> None:
        """Ask which ids the topics have now."""
        admin = self._admin.get()
        if not self._admin.tells_ids:
            return
        with contextlib.suppress(KafkaException):  # without ids, then
            found = describe(admin, topics, _ANSWER_S)
            self._ids |= {topic: about.topic_id for topic, about in found.items()}

    def close(self) -> None:
        """Ask no more; what was told stays known."""
        self._admin.close()

    def check(
        self,
        where: tuple[str, int],
        position: int,
        metadata: bytes,
        extent: tuple[int, int],
        extent_now: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        """Raise `MessagesMissing` for a position of another topic, or beyond the end.

        `extent`: where the partition begins and ends. One that was looked at before the position
        may be older than it: `extent_now` looks again.
        """
        topic, partition = where
        known_id = ClaimMetadata.decode(metadata).topic_id
        first, end = extent
        if end < position and extent_now is not None:
            first, end = extent_now()
        fate = judge(position, first, end, self._ids.get(topic, b""), known_id)
        if position < 0 or fate in ("sound", "trimmed"):
            return
        what = {"anew": "made anew", "truncated": "truncated"}.get(fate, "made anew, or truncated")
        raise MessagesMissing(
            f"{topic}/{partition}, which has records {first} to {end}, was {what}: the position of "
            f"the group is {position}. Set where to go on with `marshal group set-position`"
        )

    def tell(self, claim: Claim) -> None:
        """Let who comes next know of which topic the position is."""
        known = ClaimMetadata.decode(claim.metadata)
        topic_id = self._ids.get(claim.topic, b"")
        if topic_id and (not known.topic_id or claim.position < 0):
            claim.set_metadata(msgspec.structs.replace(known, topic_id=topic_id).encode())
