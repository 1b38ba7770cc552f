"""The claimant, rule by rule, where the sentences of the specification (test_spec_claimant) do not
reach."""

from __future__ import annotations

from typing import Any

import pytest

from marshal_py.errors import DuplicateClientId, InvalidArgument, NotHeld
from marshal_py.protocol import claimant as claims
from marshal_py.protocol.claimant import ClaimState
from marshal_py.protocol.messages import (
    ClaimingMessages,
    ClaimingPartition,
    ForgetGroup,
    Heartbeat,
    ReleaseGroup,
    ReleasingPartition,
    ResumeGroup,
    SetPosition,
    decode,
)
from marshal_py.protocol.world import MS
from tests.support.claimant_harness import INTERVAL_MS, LEASE_MS, MARGIN_MS, Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


def pause(bench: Bench) -> None:
    bench.paused_at = bench.write(ReleaseGroup(2, "op", "op.1", "g", 1, 0))


def resume(bench: Bench) -> None:
    bench.write(ResumeGroup(2, "op", "op.1", "g", 2, bench.paused_at))


def until(holding: claims.Holding) -> int:
    return holding.lease_until_ns


# Wanting


@pytest.mark.parametrize(
    ("topic", "partition"),
    [("", 0), ("t" * 250, 0), (7, 0), ("t", -1), ("t", 2**31), ("t", "0"), ("t", True)],
)
def test_wanting_what_no_record_can_carry_is_refused(
    bench: Bench, topic: Any, partition: Any
) -> None:
    with pytest.raises(InvalidArgument, match=r"topic|partition"):
        bench.client("a").want(topic, partition)


def test_wanting_the_longest_topic_and_the_largest_partition_is_fine(bench: Bench) -> None:
    a = bench.client("a")
    assert a.held(a.get("t" * 249, 2**31 - 1))


def test_wanting_again_returns_the_same_holding(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.want()
    assert a.want() is holding
    a.turn()
    assert a.want() is holding
    assert list(a.claimant.holdings()) == [holding]
    a.release(holding)
    assert a.want() is not holding
    assert len(list(a.claimant.holdings())) == 2


def test_claim_cancelled_and_wanted_again_may_use_the_first_attempt(bench: Bench) -> None:
    a = bench.client("a")
    first = a.want()
    a.release(first)
    assert a.notices(first) == ["lost"]
    second = a.want()
    a.turn()
    assert a.held(second)
    assert second.epoch == 0
    assert first.state is ClaimState.ENDED


def test_rejected_attempt_of_a_cancelled_claim_is_no_news(bench: Bench) -> None:
    a, b = bench.client("a"), bench.client("b")
    waiting = a.want()
    attempt = a.appends()
    b.get()
    a.release(waiting)
    a.notices()
    a.put(attempt)
    a.turn()
    assert a.notices() == []
    assert a.claimant.settled


def test_what_is_released_is_claimed_by_who_waits_without_a_pause(bench: Bench) -> None:
    a, b = bench.client("a"), bench.client("b")
    mine = a.get()
    b.read()
    waiting = b.want()
    b.turn()
    assert not b.held(waiting)
    a.release(mine)
    a.turn()
    b.turn()
    assert b.held(waiting)


def test_release_is_repeated_until_it_is_read(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    a.release(holding)
    for _ in range(3):
        release = a.appends()
        assert len(release) == 1
        a.fail(release)
        assert a.appends() == []
        bench.wait(100)
    a.turn()
    assert holding.state is ClaimState.ENDED
    bench.wait(1_000)
    assert a.sends() == []


def test_wanting_while_releasing_claims_when_the_release_was_read(bench: Bench) -> None:
    a = bench.client("a")
    first = a.get()
    a.release(first)
    second = a.want()
    assert [type(record) for record in a.sends()] == [ReleasingPartition]
    bench.wait(5 * INTERVAL_MS)
    a.tick()
    assert a.sends() == []
    assert second.state is ClaimState.WAITING


def test_failed_claim_is_tried_again_after_a_moment(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.want()
    a.fail(a.appends())
    assert holding.state is ClaimState.WAITING
    assert a.sends() == []
    bench.wait(99)
    assert a.sends() == []
    bench.wait(1)
    assert [type(record) for record in a.sends()] == [ClaimingPartition]


def test_failure_of_an_attempt_that_was_answered_is_no_news(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.want()
    claim = a.appends()
    a.put(claim)
    a.turn()
    a.fail(claim)
    a.turn()
    assert a.held(holding)
    assert a.notices(holding) == ["acquired"]


def test_who_waits_looks_again_when_the_cell_is_old_enough(bench: Bench) -> None:
    a, b = bench.client("a"), bench.client("b")
    a.get()
    b.read()
    b.want()
    assert b.claimant.next_deadline_ns() == (bench.now_ms + 2 * INTERVAL_MS) * MS + 1
    bench.wait(2 * INTERVAL_MS)
    assert b.sends() == []
    bench.wait(1)
    (claim,) = b.sends()
    assert isinstance(claim, ClaimingPartition)


def test_client_without_claims_has_nothing_to_do(bench: Bench) -> None:
    a = bench.client("a")
    assert a.claimant.next_deadline_ns() is None
    assert a.sends() == []


# The lease


def test_claim_is_held_until_just_before_two_intervals_less_the_margin(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.want()
    claim = a.appends()
    a.put(claim)
    bench.wait(300)
    a.read()
    assert until(holding) == (bench.now_ms - 300 + 2 * INTERVAL_MS - MARGIN_MS) * MS
    bench.wait(LEASE_MS - 301)
    assert a.held(holding)
    bench.wait(1)
    assert not a.held(holding)
    a.tick()
    assert holding.state is ClaimState.LAPSED


def test_accepted_too_late_is_not_held_until_a_heartbeat_comes_through(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.want()
    a.send()
    bench.wait(LEASE_MS)
    a.read()
    assert holding.state is ClaimState.LAPSED
    assert a.notices(holding) == []
    a.turn()
    assert a.notices(holding) == ["acquired"]


def test_heartbeats_read_out_of_the_order_of_sending_never_shorten_the_lease(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    bench.wait(INTERVAL_MS)
    (first,) = a.appends()
    bench.wait(INTERVAL_MS // 2)
    a.claimant.commit(holding, 1, bench.now_ns, flush=True)
    (second,) = a.appends()
    a.put([second])
    a.read()
    best = until(holding)
    a.put([first])
    a.read()
    assert until(holding) == best


def test_two_claims_that_lapse_at_different_times_each_lapse_then() -> None:
    bench = Bench()
    a = bench.client("a")
    first = a.get("t", 0)
    bench.wait(INTERVAL_MS - 1)
    second = a.want("t", 1)
    claim = a.appends()
    a.put(claim)
    a.read()
    a.appends()  # a heartbeat that renews both never arrives
    bench.wait(LEASE_MS - INTERVAL_MS + 1)
    a.tick()
    assert [h.state for h in (first, second)] == [ClaimState.LAPSED, ClaimState.HELD]
    bench.wait(INTERVAL_MS)
    a.tick()
    assert second.state is ClaimState.LAPSED
    heard = [(notice.kind, notice.holding) for notice in a.claimant.take_notices()]
    assert heard[-2:] == [("lapsed", first), ("lapsed", second)]


def test_metadata_is_published_with_the_next_heartbeat(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    a.claimant.set_metadata(holding, b"m" * 256)
    bench.wait(INTERVAL_MS)
    a.turn()
    cell = a.cell()
    assert cell is not None
    assert cell.metadata == b"m" * 256
    for wrong in (b"m" * 257, "m"):
        with pytest.raises(InvalidArgument, match="metadata"):
            a.claimant.set_metadata(holding, wrong)  # type: ignore[arg-type]


# Commits and messages


def test_commit_goes_with_the_next_heartbeat_or_at_once(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    a.claimant.commit(holding, 5, bench.now_ns, flush=False)
    assert a.sends() == []
    a.claimant.commit(holding, 7, bench.now_ns, flush=True)
    (record,) = a.sends()
    assert isinstance(record, Heartbeat)
    assert record.positions == [holding.epoch, 7]


def test_commit_only_goes_up_and_is_told_when_stored(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    a.notices()
    a.claimant.commit(holding, 7, bench.now_ns, flush=True)
    a.claimant.commit(holding, 3, bench.now_ns, flush=True)
    assert holding.next_offset == 7
    a.turn()
    assert a.notices(holding) == ["stored"]
    assert (a.heard[0].number, holding.stored_offset) == (7, 7)
    a.claimant.commit(holding, 7, bench.now_ns, flush=True)
    assert a.sends() == []


@pytest.mark.parametrize("offset", [-1, 2**63, "7", True])
def test_offsets_that_no_record_can_carry_are_refused(bench: Bench, offset: Any) -> None:
    a = bench.client("a")
    holding = a.get()
    with pytest.raises(InvalidArgument, match="next_offset"):
        a.claimant.commit(holding, offset, bench.now_ns, flush=False)
    with pytest.raises(InvalidArgument, match="proposed_offset"):
        a.claimant.claim_messages(holding, offset, bench.now_ns)


@pytest.mark.parametrize("end", ["waiting", "released", "lost"])
def test_commits_and_messages_of_what_is_not_held_are_refused(bench: Bench, end: str) -> None:
    a, b = bench.client("a"), bench.client("b")
    if end == "waiting":
        b.get()
        a.read()
        holding = a.want()
    else:
        holding = a.get()
    if end == "released":
        a.release(holding)
    if end == "lost":
        b.read()
        b.want()
        bench.wait(2 * INTERVAL_MS + 1)
        b.turn()
        a.turn()
    with pytest.raises(NotHeld, match="t/0"):
        a.claimant.commit(holding, 1, bench.now_ns, flush=False)
    with pytest.raises(NotHeld, match="t/0"):
        a.claimant.claim_messages(holding, 1, bench.now_ns)


def test_new_holder_starts_where_the_last_one_stopped(bench: Bench) -> None:
    a, b = bench.client("a"), bench.client("b")
    mine = a.get()
    a.claimant.commit(mine, 5, bench.now_ns, flush=False)
    a.claimant.claim_messages(mine, 9, bench.now_ns)
    a.release(mine)
    a.turn()
    assert mine.stored_offset == 5
    b.read()
    taken = b.get()
    assert (taken.next_offset, taken.stored_offset, taken.claimed_offset) == (5, 5, 9)


def test_messages_are_claimed_or_rejected_under_the_seq_that_was_returned(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    a.notices()
    seqs = [a.claimant.claim_messages(holding, stop, bench.now_ns) for stop in (5, 9, 7)]
    a.turn()
    assert a.notices(holding) == ["messages_claimed", "messages_claimed", "messages_rejected"]
    assert [notice.number for notice in a.heard] == seqs
    assert a.heard[2].detail == "offset_not_ahead"
    assert holding.claimed_offset == 9


def test_messages_are_claimed_under_the_epoch_of_the_holding(bench: Bench) -> None:
    a, b = bench.client("a"), bench.client("b")
    mine = a.get()
    b.read()
    b.want()
    bench.wait(2 * INTERVAL_MS + 1)
    b.turn()
    a.world.states[0] = b.world.states[0]  # the fold is ahead of what the claimant has heard
    a.claimant.claim_messages(mine, 5, bench.now_ns)
    claimed = [record for record in a.sends() if isinstance(record, ClaimingMessages)]
    assert [record.epoch for record in claimed] == [mine.epoch]


# Cold start


def old_claim(bench: Bench) -> None:
    """Somebody claimed t/0 long ago, and is dead."""
    bench.client("dead").get()
    bench.wait(60 * INTERVAL_MS)


def test_cold_start_takes_an_old_claim_over_after_one_heartbeat_of_its_own(bench: Bench) -> None:
    old_claim(bench)
    a = bench.client("a", cold_start_skew_ms=1_000)
    holding = a.want()
    assert [type(record) for record in a.sends()] == [Heartbeat]
    holding = bench.client("b", cold_start_skew_ms=1_000).get()
    assert holding.epoch > 0


def test_probe_that_failed_is_sent_again_for_the_next_claim(bench: Bench) -> None:
    bench.client("dead").get("t", 0)
    bench.client("dead2").get("t", 1)
    bench.wait(60 * INTERVAL_MS)
    a = bench.client("a", cold_start_skew_ms=1_000)
    first = a.want("t", 0)
    a.fail(a.appends())
    assert a.sends() == []
    second = a.want("t", 1)
    a.turn()
    assert a.held(first)
    assert a.held(second)


def test_somebody_elses_heartbeat_is_no_probe(bench: Bench) -> None:
    old_claim(bench)
    a = bench.client("a", cold_start_skew_ms=1_000)
    holding = a.want()
    probe = a.appends()
    bench.client("other", member=True).send()
    a.read()
    assert a.sends() == []
    a.put(probe)
    a.turn()
    assert a.held(holding)


@pytest.mark.parametrize(("elapsed_ms", "takes"), [(2_500, False), (2_520, True)])
def test_cold_start_allows_for_the_coarseness_of_its_own_measuring(
    bench: Bench, elapsed_ms: int, takes: bool
) -> None:
    # Another record within the same 10 ms as the probe makes the probe look up to 9 ms later.
    holder = bench.client("dead")
    holder.want()
    (claim,) = holder.appends()
    bench.log.append(0, claim.value, 1_000_000)
    a = bench.client("a", cold_start_skew_ms=500)
    a.want()
    (probe,) = a.appends()
    bench.log.append(0, probe.value, 1_000_000 + elapsed_ms)
    bench.log.append(0, b"anything", 1_000_000 + elapsed_ms + 9)
    a.read()
    assert bool(a.sends()) is takes


def test_one_probe_is_enough_for_all_cells_of_a_partition(bench: Bench) -> None:
    bench.client("dead").get("t", 0)
    bench.client("dead2").get("t", 1)
    bench.wait(60 * INTERVAL_MS)
    a = bench.client("a", cold_start_skew_ms=1_000)
    holdings = [a.want("t", 0), a.want("t", 1)]
    assert [type(record) for record in a.sends()] == [Heartbeat]
    b = bench.client("b", cold_start_skew_ms=1_000)
    holdings = [b.want("t", 0), b.want("t", 1)]
    b.turn()
    assert all(b.held(holding) for holding in holdings)


# Pause


def test_pause_is_told_and_nothing_brings_the_lease_back(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    bench.wait(INTERVAL_MS)
    in_flight = a.appends()
    pause(bench)
    a.read()
    assert a.notices(holding) == ["acquired", "paused"]
    assert not a.held(holding)
    a.put(in_flight)
    a.read()
    assert not a.held(holding)
    assert a.sends() == []


def test_second_pause_changes_nothing(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    a.notices()
    pause(bench)
    pause(bench)
    a.read()
    assert a.notices(holding) == ["paused"]
    bench.wait(LEASE_MS)
    assert [type(record) for record in a.sends()] == [ReleasingPartition]


def test_position_set_and_forgotten_cells_are_claimed_after_the_pause(bench: Bench) -> None:
    a = bench.client("a")
    waiting = a.want()
    pause(bench)
    a.send()
    a.turn()
    bench.write(SetPosition(2, "op", "op.1", "g", 3, "t", 0, 70, -1))
    a.turn()
    assert a.sends() == []
    resume(bench)
    a.turn()
    assert a.held(waiting)
    assert (waiting.next_offset, waiting.claimed_offset) == (70, 70)


def test_forgotten_cell_starts_anew(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    a.claimant.commit(holding, 5, bench.now_ns, flush=False)
    a.release(holding)
    a.turn()
    pause(bench)
    bench.write(ForgetGroup(2, "op", "op.1", "g", 3, bench.paused_at))
    resume(bench)
    a.turn()
    again = a.get()
    assert (again.next_offset, again.epoch) == (-1, len(bench.log.partitions[0]) - 2)


# Twins


def test_fenced_instance_wants_nothing_new(bench: Bench) -> None:
    old = bench.client("a", "old")
    old.get()
    twin = bench.client("a", "new")
    twin.get()
    old.turn()
    with pytest.raises(DuplicateClientId, match=r"instance a\.new"):
        old.want("t", 1)


def test_loss_to_another_client_is_no_twin(bench: Bench) -> None:
    a, b = bench.client("a"), bench.client("b")
    a.get()
    b.read()
    b.want()
    bench.wait(2 * INTERVAL_MS + 1)
    b.turn()
    a.turn()
    assert a.claimant.duplicate_instance_id is None
    a.want("t", 1)


# A log that changed


def test_truncation_starts_everything_anew(bench: Bench) -> None:
    a = bench.client("a", member=True)
    held, claiming = a.get("t", 0), a.want("t", 1)
    a.appends()
    bench.wait(INTERVAL_MS)
    a.appends()  # heartbeats that will never be answered
    bench.log.partitions[0].truncate(len(bench.log.partitions[0]))
    a.claimant.truncated()
    assert not a.held(held)
    assert a.notices(held)[-1] == "lost"
    a.replay()
    a.turn()
    assert a.held(claiming)
    assert a.held(a.get("t", 0))
    a.pass_time(5 * INTERVAL_MS)
    assert a.held(claiming)
    assert [member.client_id for member in a.world.members("g")] == ["a"]


def test_silent_client_neither_claims_nor_renews(bench: Bench) -> None:
    a = bench.client("a", member=True)
    holding, waiting = a.get("t", 0), a.want("t", 1)
    a.appends()
    a.claimant.stop_claiming("the topic changed")
    assert waiting.state is ClaimState.ENDED
    assert waiting.reason == "the topic changed"
    bench.wait(2 * INTERVAL_MS)
    assert a.sends() == []
    assert holding.state is ClaimState.LAPSED


# Membership


def test_members_report_every_interval_and_say_what_changed() -> None:
    bench = Bench(partitions=3)
    a = bench.client("a", member=True, member_metadata=b"here")
    (first,) = a.appends()
    assert first.coordinator == a.claimant.home
    assert (claims_of(first).membership, claims_of(first).member_metadata) == (1, b"here")
    a.put([first])
    a.read()
    for n in range(9):
        a.get("t", n)
    bench.wait(INTERVAL_MS)
    (second,) = a.appends()
    assert second.coordinator == a.claimant.home
    assert (claims_of(second).membership, claims_of(second).member_metadata) == (1, None)
    assert (claims_of(second).positions, claims_of(second).metadata) == ([], [])
    a.put([second])
    a.read()
    a.claimant.set_member_metadata(b"there", bench.now_ns)
    (third,) = a.appends()
    assert claims_of(third).member_metadata == b"there"


def claims_of(append: claims.Append) -> Heartbeat:
    record = decode(append.value)
    assert isinstance(record, Heartbeat)
    return record
