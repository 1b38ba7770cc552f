"""What an operator writes to a log of version 1, by clients that the test answers for."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from marshal_py.admin import version1 as module
from marshal_py.admin.version1 import pause_group, resume_group, set_positions
from marshal_py.errors import BrokerUnavailable, ClaimTimeout, InvalidArgument, TopicMissing
from marshal_py.protocol.text.claimant import TextClaimant
from marshal_py.protocol.text.codec import RELEASE_GROUP, TextRecord, decode_any

NOW_S = 1_700_000_000.25


class Kafka:
    """A log of three partitions, and clients of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.partitions: dict[int, None] = dict.fromkeys(range(3))
        self.failures: list[tuple[int, str]] = []
        self.written: list[tuple[int, TextRecord]] = []
        self.flushed = 0
        self.unsent = 0
        self.silent = False
        self.steps: list[str] = []
        """What was done, in order."""
        self.claimed: dict[tuple[str, int], int] = {}
        """(topic, partition) → the offset with which the claim was released."""
        self.error: Exception | None = None
        """Raised instead of claims."""
        self.ends: dict[int, str | None] = {}
        """Partition → why its claim ends when it is released, None: nothing is seen of it."""
        self.committed: dict[tuple[str, int], int] = {}
        self.commit_error: KafkaException | None = None
        self.is_text = False
        monkeypatch.setattr("time.time", lambda: NOW_S)
        monkeypatch.setattr(module, "admin_client", lambda _: self)
        monkeypatch.setattr(module, "LogWriter", lambda *_, **__: self)
        monkeypatch.setattr(module, "Marshal", self._marshal)
        monkeypatch.setattr(module, "driver_of", lambda _: self._driver)
        monkeypatch.setattr(module, "core_of", lambda claim: claim)
        monkeypatch.setattr(module, "committed_offsets", lambda *_: self.committed)
        monkeypatch.setattr(module, "write_committed_offsets", self._commit)
        claimant = TextClaimant.__new__(TextClaimant)
        self._driver: Any = SimpleNamespace(claimant=claimant, lock=contextlib.nullcontext())

    # The log

    def list_topics(self, timeout: float) -> Any:
        assert timeout > 0
        if self.silent:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "all brokers down"))
        log = SimpleNamespace(partitions=self.partitions)
        return SimpleNamespace(topics={"log": log} if self.partitions else {})

    def append(self, partition: int, _seq: int, value: bytes) -> None:
        self.written.append((partition, decode_any(value)))
        if partition == 0:
            until_s = self.written[-1][1].offset
            self.steps.append("pause" if until_s is not None and until_s > NOW_S else "resume")

    def flush(self, _timeout_s: float) -> int:
        self.flushed += 1
        return self.unsent

    def take_failures(self) -> list[tuple[int, str]]:
        return self.failures if self.flushed else []

    # The client that claims

    @contextlib.contextmanager
    def _marshal(self, _config: Any, **settings: Any) -> Iterator[Any]:
        self.is_text = settings["wire"] == "text"
        yield self

    def claim_many(self, keys: Any, timeout_s: float) -> list[Any]:
        assert not self._driver.claimant.heeds_pauses, "it would never win a partition"
        if self.error is not None:
            raise self.error
        return [self._claim(*key) for key in keys]

    def _claim(self, topic: str, partition: int) -> Any:
        holding = SimpleNamespace(next_offset=77)

        claim = SimpleNamespace(topic=topic, partition=partition, holding=holding, reason=None)

        def release(timeout_s: float) -> None:
            self.claimed[topic, partition] = holding.next_offset
            self.steps.append("release")
            claim.reason = self.ends.get(partition, "released")
            if claim.reason is None:
                raise ClaimTimeout(f"not seen within {timeout_s} s")

        claim.release = release
        return claim

    def _commit(self, _admin: Any, group: str, offsets: Any, _timeout_s: float) -> None:
        assert group == "g"
        self.steps.append(f"commit {offsets}")
        if self.commit_error is not None:
            raise self.commit_error


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    return Kafka(monkeypatch)


def test_a_pause_is_written_to_every_partition_and_ends_no_sooner_than_asked_for(
    kafka: Kafka,
) -> None:
    until_s = pause_group("x:1", "g", for_s=10, topic="log")
    assert until_s == math.ceil(NOW_S + 10)
    assert [partition for partition, _ in kafka.written] == [0, 1, 2]
    for _, record in kafka.written:
        told = (record.type, record.group_id, record.offset, record.time_s)
        assert told == (RELEASE_GROUP, "g", until_s, int(NOW_S))
    kafka.written.clear()
    resume_group("x:1", "g", topic="log")
    assert [record.offset for _, record in kafka.written] == [int(NOW_S)] * 3, "it is over"


@pytest.mark.parametrize("for_s", [0, -1, math.nan])
def test_a_pause_of_no_length_is_refused(kafka: Kafka, for_s: float) -> None:
    with pytest.raises(InvalidArgument, match="for_s"):
        pause_group("x:1", "g", for_s=for_s, topic="log")
    assert kafka.written == []


def test_a_pause_that_one_partition_did_not_take_is_no_pause(kafka: Kafka) -> None:
    kafka.failures = [(1, "not enough replicas")]
    with pytest.raises(BrokerUnavailable, match="log/1: the pause was not written: not enough rep"):
        pause_group("x:1", "g", for_s=10, topic="log")


def test_a_pause_that_is_on_its_way_still_when_the_time_is_up_is_none(kafka: Kafka) -> None:
    """As where a partition has no leader: librdkafka tells of its failure later still."""
    kafka.unsent = 1
    with pytest.raises(BrokerUnavailable, match="the pause was not written to 1 of 3 partitions"):
        pause_group("x:1", "g", for_s=10, topic="log")


def test_brokers_that_do_not_answer_are_told_of(kafka: Kafka) -> None:
    kafka.silent = True
    with pytest.raises(BrokerUnavailable, match="no answer from the brokers: all brokers down"):
        pause_group("x:1", "g", for_s=10, topic="log")


def test_without_the_topic_nothing_is_paused(kafka: Kafka) -> None:
    kafka.partitions = {}
    with pytest.raises(TopicMissing, match="'log'"):
        pause_group("x:1", "g", for_s=10, topic="log")


def move(offsets: dict[tuple[str, int], int]) -> None:
    set_positions("x:1", "g", offsets, topic="log")


def test_positions_are_set_while_the_group_is_paused(kafka: Kafka) -> None:
    move({("t", 0): 5, ("t", 1): 9})
    assert kafka.claimed == {("t", 0): 5, ("t", 1): 9}
    assert kafka.steps == ["pause", "release", "release", "resume"]
    assert kafka.is_text


def test_a_group_goes_on_when_its_positions_could_not_be_set(kafka: Kafka) -> None:
    kafka.error = ClaimTimeout("t/0 was not won within 180 s")
    with pytest.raises(ClaimTimeout, match="not won within 180 s; no position was changed"):
        move({("t", 0): 5})
    assert kafka.steps == ["pause", "resume"]
    kafka.error = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        move({("t", 0): 5})
    assert kafka.steps[2:] == ["pause", "resume"]


@pytest.mark.parametrize(
    ("why", "told"), [(None, "no answer"), ("taken over by go", "taken over by go")]
)
def test_how_many_positions_were_set_is_told_where_one_was_not_seen_to_be(
    kafka: Kafka, why: str | None, told: str
) -> None:
    kafka.ends = {1: why}
    with pytest.raises(BrokerUnavailable, match=f"1 of 3 positions were set; .* t/1 .*{told}"):
        move({("t", 0): 5, ("t", 1): 0, ("t", 2): 7})
    assert kafka.steps == ["pause", "release", "release", "resume"]


def test_to_begin_at_the_first_message_what_was_committed_to_kafka_is_set_as_well(
    kafka: Kafka,
) -> None:
    """In version 1, 0 means that there is no position: Go begins at what was committed then."""
    kafka.committed = {("t", 0): 1, ("t", 1): 8, ("t", 3): 9}
    move({("t", 0): 0, ("t", 1): 5, ("t", 2): 0})
    assert kafka.steps[-2:] == ["commit {('t', 0): 0}", "resume"]
    kafka.commit_error = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerUnavailable, match="Go clients begin there and not at the first"):
        move({("t", 0): 0})
    assert kafka.steps[-1] == "resume"


@pytest.mark.parametrize("offset", [-1, 2**63, True, 1.5])
def test_an_offset_that_cannot_be_is_refused_before_anything_is_paused(
    kafka: Kafka, offset: Any
) -> None:
    with pytest.raises(InvalidArgument, match="offset of t/0"):
        move({("t", 0): offset})
    assert kafka.steps == []
