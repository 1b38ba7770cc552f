"""The claims of all groups and how topics are shared, of a log that is written by hand."""

from __future__ import annotations

from marshal_py.admin.claim_list import claim_rows
from marshal_py.admin.sharing import Share, Sharings, agreed_on, has_open_ranges, slots_of
from marshal_py.protocol.messages import (
    ClaimingPartition,
    ClaimingRange,
    Message,
    ReleasingPartition,
)
from marshal_py.protocol.slots import BY_PARTITIONS, BY_RANGES, agreement_cell, slots_cell
from tests.support.log_by_hand import LogByHand


def claim(who: str, topic: str, partition: int) -> Message:
    return ClaimingPartition(2, who, f"{who}1", "g", 0, topic, partition, 1_000, -1)


def agree(log: LogByHand, topic: str, agreed: int) -> None:
    cell = agreement_cell(topic)
    epoch = log.write(claim("a", *cell))
    log.write(ReleasingPartition(2, "a", "a1", "g", 9, *cell, epoch, agreed))


def test_claims_are_listed_by_partition_and_its_slots_follow_it() -> None:
    log = LogByHand()
    four = slots_cell("t", 1, 4)
    for topic, partition in ((four, 2), ("u", 0), ("t", 10), ("t", 2), (four, 0), ("t", 1)):
        log.write(claim("a", topic, partition))
    listed = [(row.topic, row.partition) for row in claim_rows(log.view())]
    assert listed == [("t", 1), (four, 0), (four, 2), ("t", 2), ("t", 10), ("u", 0)]


def test_of_one_topic_its_slots_are_listed_and_of_held_ones_no_others() -> None:
    log = LogByHand()
    four = slots_cell("t", 1, 4)
    log.write(claim("a", four, 2))
    log.write(claim("a", "u", 0))
    epoch = log.write(claim("a", "t", 0))
    log.write(ReleasingPartition(2, "a", "a1", "g", 9, "t", 0, epoch, 7))
    view = log.view()
    free, slot = claim_rows(view, topic="t")
    assert (free.holder, free.next_offset, free.liveness) == (None, 7, None)
    assert (slot.source_topic, slot.source_partition, slot.partition) == ("t", 1, 2)
    assert claim_rows(view, topic=four) == [slot]
    assert [row.topic for row in claim_rows(view, held=True)] == [four, "u"]
    assert claim_rows(view, group="h") == []


def test_ranges_are_listed_as_they_follow_with_their_ends() -> None:
    log = LogByHand()
    for who in ("a", "b"):
        log.write(ClaimingRange(2, who, f"{who}1", "g", 0, "t", 0, 1_000, 95, 10))
    told = [(r.next_offset, r.end, r.granted) for r in claim_rows(log.view()) if r.end is not None]
    assert told == [(95, 105, 1), (105, 115, 1)]


def test_cells_of_another_number_of_slots_count_for_nothing() -> None:
    log = LogByHand()
    agree(log, "t", 8)
    agree(log, "r", BY_RANGES)
    world = log.view().world
    assert (slots_of(world, "g", "t"), slots_of(world, "g", "r")) == (8, BY_PARTITIONS)
    assert (agreed_on(world, "g", "r"), agreed_on(world, "g", "u")) == (BY_RANGES, BY_PARTITIONS)
    sharings = Sharings(world, "g")
    assert sharings.share("g", slots_cell("t", 1, 8), 3) == Share("t", 1, 3)
    assert sharings.share("g", slots_cell("t", 1, 4), 3) is None
    assert sharings.share("g", "t", 1) is None, "it is shared by slots"
    assert sharings.share("g", "r", 1) == Share("r", 1)
    assert sharings.share("h", "t", 1) == Share("t", 1), "another group shares otherwise"
    assert sharings.share("g", *agreement_cell("t")) is None


def test_a_partition_with_open_ranges_is_known_by_its_own_number() -> None:
    log = LogByHand()
    log.write(ClaimingRange(2, "a", "a1", "g", 0, "t", 1, 1_000, 0, 10))
    world = log.view().world
    assert has_open_ranges(world, "g", "t", 1)
    assert not has_open_ranges(world, "g", "t", 0)
    assert not has_open_ranges(world, "h", "t", 1)
