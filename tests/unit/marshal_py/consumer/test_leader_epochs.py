"""Leader epochs: what is known of messages that were seen, and what does not fit."""

from __future__ import annotations

from itertools import accumulate

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from marshal_py.consumer.leader_epochs import KEPT, LeaderEpochs, Unverified, truncated_at

logs = st.lists(st.integers(0, 2), min_size=1, max_size=40).map(
    lambda steps: list(accumulate(steps))
)
"""The epochs of all messages of a partition."""


def messages(*epochs: tuple[int, int]) -> list[Message]:
    return [Message(topic="t", partition=0, offset=at, leader_epoch=e) for at, e in epochs]


def test_what_comes_before_an_offset_has_the_epoch_of_the_last_message_there() -> None:
    epochs = LeaderEpochs()
    assert epochs.before(5) == -1
    assert epochs.note_all(messages((5, 2), (7, 2), (8, 4), (9, 4))) == -1
    assert [epochs.before(at) for at in range(4, 11)] == [-1, -1, 2, 2, 2, 4, 4]


@given(
    logs,
    st.data(),
)
def test_of_what_was_seen_it_is_known_and_of_the_rest_never_a_later_one(
    log: list[int], data: st.DataObject
) -> None:
    """However often, and in whichever order, parts of the log are read."""
    epochs, seen = LeaderEpochs(), set[int]()
    for _ in range(data.draw(st.integers(1, 6))):
        first = data.draw(st.integers(0, len(log) - 1))
        end = data.draw(st.integers(first + 1, len(log)))
        assert epochs.note_all(messages(*((at, log[at]) for at in range(first, end)))) == -1
        seen.update(range(first, end))
    for at, epoch in enumerate(log):
        known = epochs.before(at + 1)
        assert known == epoch if at in seen else known <= epoch


@given(
    logs,
    st.data(),
)
def test_the_first_message_of_a_later_leader_than_what_came_after_it_does_not_fit(
    log: list[int], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(log) - 1))
    grown = log[:cut] + [log[-1] + 1] * data.draw(st.integers(1, 30))
    epochs = LeaderEpochs()
    position = data.draw(st.integers(1, len(log)))
    epochs.note(log[position - 1], position - 1)
    found = epochs.note_all(messages(*enumerate(grown)))
    assert found == (cut if cut < position else -1)


def test_what_an_older_leader_wrote_behind_a_later_one_does_not_fit() -> None:
    epochs = LeaderEpochs()
    assert epochs.note_all(messages((3, 2))) == -1
    assert epochs.note_all(messages((4, 2), (5, 1), (6, 1))) == 5
    assert not epochs.note(1, 9)
    assert epochs.before(10) == 2


def test_brokers_that_tell_no_epochs_are_fine() -> None:
    epochs = LeaderEpochs()
    assert epochs.note_all([Message(topic="t", partition=0, offset=3)]) == -1
    assert epochs.before(4) == -1


def test_what_a_part_knows_is_taken_over_if_it_fits() -> None:
    epochs, fits, gone = LeaderEpochs(), LeaderEpochs(), LeaderEpochs()
    epochs.note(2, 20)
    fits.note(2, 29)
    gone.note(0, 24)
    assert epochs.take_over(fits)
    assert not epochs.take_over(gone)
    assert (epochs.before(21), epochs.before(30), epochs.before(20)) == (2, 2, -1)


def test_not_every_change_of_a_leader_is_remembered() -> None:
    epochs = LeaderEpochs()
    for at in range(KEPT + 3):
        epochs.note(at, 10 * at)
    assert (epochs.before(25), epochs.before(35)) == (-1, 3)
    assert epochs.before(10 * KEPT + 100) == KEPT + 2


class FakeKafka:
    """Of confluent-kafka's consumer: where it is told to go."""

    def __init__(self) -> None:
        self.sought: list[tuple[int, int | None]] = []

    def seek(self, where: TopicPartition) -> None:
        assert (where.topic, where.partition) == ("t", 3)
        self.sought.append((where.offset, where.leader_epoch))


@pytest.mark.parametrize(
    ("first", "sought"), [(-1, []), (0, []), (1, []), (2, [(30, 1)]), (7, [(30, 1)])]
)
def test_kafka_is_asked_once_if_a_later_leader_has_what_comes_first(
    first: int, sought: list[tuple[int, int]]
) -> None:
    epochs, kafka, unverified = LeaderEpochs(), FakeKafka(), Unverified()
    epochs.note(1, 10)
    where = unverified.place(("t", 3), 30, epochs)
    assert (where.topic, where.partition, where.offset) == ("t", 3, 30)
    message = Message(topic="t", partition=3, offset=30, leader_epoch=first)
    assert unverified.verify(("t", 4), message, kafka), "another partition"
    assert unverified.verify(("t", 3), message, kafka) is not bool(sought)
    assert unverified.verify(("t", 3), message, kafka)
    assert kafka.sought == sought


@pytest.mark.parametrize(("offset", "at"), [(10, 10), (0, 0), (-1, OFFSET_BEGINNING)])
def test_where_nothing_is_known_of_what_came_before_nothing_is_asked(offset: int, at: int) -> None:
    epochs, kafka, unverified = LeaderEpochs(), FakeKafka(), Unverified()
    epochs.note(1, 10)
    unverified.place(("t", 3), 11, epochs)  # an earlier time
    assert unverified.place(("t", 3), offset, epochs).offset == at
    message = Message(topic="t", partition=3, offset=30, leader_epoch=7)
    assert unverified.verify(("t", 3), message, kafka)
    assert kafka.sought == []


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (
            "Partition log truncation detected at offset 30 (leader epoch 0): broker end offset is "
            "20 (offset leader epoch 0). Reset to INVALID.: Local: Partition log truncation "
            "detected",
            20,
        ),
        (
            "No epoch found less or equal to offset 30 (leader epoch 99): broker end offset is -1 "
            "(offset leader epoch -1). Reset using configured policy.: Local: Partition log "
            "truncation detected (broker 1)",
            -1,
        ),
        ("fetch failed due to requested offset not available on the broker", -1),
    ],
)
def test_where_a_partition_was_cut_off_is_what_librdkafka_says(text: str, at: int) -> None:
    error = KafkaError(KafkaError._AUTO_OFFSET_RESET, text)
    assert truncated_at(Message(topic="t", partition=0, offset=30, error=error)) == at
    assert truncated_at(Message(topic="t", partition=0, offset=30)) == -1
