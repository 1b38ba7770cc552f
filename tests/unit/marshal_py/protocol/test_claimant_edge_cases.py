"""Guards of the claimant that stand behind other guards, each by itself: events that no healthy log
brings, leaving, and what it remembers."""

from __future__ import annotations

from typing import Any

import pytest

from marshal_py.errors import Closed, InvalidArgument, NotHeld
from marshal_py.protocol import claimant as claims
from marshal_py.protocol import events as ev
from marshal_py.protocol import unread_appends
from marshal_py.protocol.claimant import MIN_ANSWER_TIMEOUT_MS, ClaimState
from marshal_py.protocol.heartbeat_schedule import MAX_UNREAD_HEARTBEATS
from marshal_py.protocol.messages import (
    MAX_MEMBER_METADATA_BYTES,
    ClaimingPartition,
    ForgetGroup,
    Heartbeat,
    ReleaseGroup,
    ReleasingPartition,
    SetPosition,
)
from marshal_py.protocol.world import MS
from tests.support.claimant_harness import INTERVAL_MS, Bench, Client
from tests.support.spec import spec


@pytest.fixture
def bench() -> Bench:
    return Bench()


def until(holding: claims.Holding) -> int:
    return holding.lease_until_ns


# Events that do not come from a healthy log: each guard by itself, without the others behind it


def beat(client: Client, seq: int, **changes: Any) -> ev.Beat:
    fields: dict[str, Any] = {
        "client_id": client.claimant.client_id,
        "instance_id": client.claimant.instance_id,
        "group_id": client.group,
        **changes,
    }
    return ev.Beat(90, fields["client_id"], fields["instance_id"], fields["group_id"], seq, 1, 1, 0)


def renewed(client: Client, seq: int, epoch: int, **changes: Any) -> ev.Renewed:
    fields: dict[str, Any] = {
        "client_id": client.claimant.client_id,
        "instance_id": client.claimant.instance_id,
        "topic": "t",
        **changes,
    }
    return ev.Renewed(
        90,
        fields["client_id"],
        fields["instance_id"],
        client.group,
        seq,
        fields["topic"],
        0,
        epoch,
        5,
    )


def test_renewals_count_only_behind_a_heartbeat_that_this_instance_sent(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    bench.wait(INTERVAL_MS)
    (append,) = a.appends()
    before = until(holding)

    def hears(*events: ev.Event) -> int:
        a.claimant.applied(0, list(events), bench.now_ns)
        return until(holding) - before

    assert hears(renewed(a, append.seq, holding.epoch)) == 0
    assert hears(beat(a, append.seq, instance_id="a.other")) == 0
    assert hears(beat(a, append.seq, client_id="b")) == 0
    assert hears(beat(a, 99)) == 0
    assert hears(beat(a, append.seq, group_id="h")) == 0
    assert hears(beat(a, append.seq)) == INTERVAL_MS * MS


def test_a_position_of_another_epoch_instance_or_cell_is_not_stored(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    for wrong in (
        renewed(a, 0, holding.epoch + 1),
        renewed(a, 0, holding.epoch - 1),
        renewed(a, 0, holding.epoch, instance_id="a.other"),
        renewed(a, 0, holding.epoch, topic="u"),
    ):
        a.claimant.applied(0, [wrong], bench.now_ns)
    assert holding.stored_offset == -1
    a.claimant.applied(0, [renewed(a, 0, holding.epoch)], bench.now_ns)
    assert holding.stored_offset == 5


@spec("C-44")
def test_what_the_log_does_not_give_is_lost_with_the_next_heartbeat(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    a.world.states[0].groups.clear()
    bench.wait(INTERVAL_MS)
    assert a.sends() == []
    assert holding.state is ClaimState.ENDED
    assert a.notices(holding) == ["acquired", "lost"]
    assert not a.held(holding)


def test_entry_of_an_earlier_epoch_that_is_rejected_ends_nothing(bench: Bench) -> None:
    a = bench.client("a")
    first = a.get()
    bench.wait(INTERVAL_MS)
    late = a.appends()
    a.release(first)
    a.turn()
    second = a.get()
    a.put(late)
    a.turn()
    assert a.held(second)
    assert second.epoch > first.epoch


def test_events_of_other_groups_are_nothing_to_it(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    pause_of_another = ReleaseGroup(2, "op", "op.1", "h", 1, 0)
    bench.write(pause_of_another)
    bench.write(ClaimingPartition(2, "x", "x.1", "h", 1, "t", 0, 1_000, -1))
    bench.write(b"nonsense")
    a.turn()
    assert a.held(holding)
    assert a.notices(holding) == ["acquired"]


def test_no_takeover_of_what_was_never_observed(bench: Bench) -> None:
    a, b = bench.client("a"), bench.client("b")
    a.get()
    b.read()
    waiting = b.want()
    b.observers[0].seen._offsets.clear()
    b.observers[0].seen._times.clear()
    bench.wait(10 * INTERVAL_MS)
    b.tick()
    assert b.sends() == []
    assert waiting.state is ClaimState.WAITING


def test_nothing_is_wanted_after_leaving(bench: Bench) -> None:
    a = bench.client("a", member=True)
    a.turn()
    a.claimant.leave(bench.now_ns)
    a.turn()
    with pytest.raises(Closed):
        a.want()
    assert a.sends() == []


def test_a_claim_in_flight_when_leaving_is_not_taken_for_another_one(bench: Bench) -> None:
    """Who closes would hold it, renew it, and never be done."""
    a = bench.client("a")
    a.want()
    in_flight = a.appends()
    a.claimant.leave(bench.now_ns)
    with pytest.raises(Closed):
        a.want()
    a.put(in_flight)
    a.read()
    assert ReleasingPartition in map(type, a.sends())


def test_leaving_is_settled_when_every_release_was_read(bench: Bench) -> None:
    a = bench.client("a", member=True)
    holding = a.get()
    assert not a.claimant.settled
    a.claimant.leave(bench.now_ns)
    assert holding.state is ClaimState.RELEASING
    assert not a.claimant.settled
    sent = a.sends()
    assert [type(record) for record in sent] == [ReleasingPartition, Heartbeat]
    assert isinstance(sent[1], Heartbeat)
    assert (sent[1].membership, sent[1].positions) == (2, [])


def test_who_has_said_goodbye_is_no_member_again(bench: Bench) -> None:
    a = bench.client("a", member=True)
    a.get()
    a.claimant.leave(bench.now_ns)
    assert len(a.sends()) == 2  # the release, and the goodbye, which nobody reads
    bench.wait(3 * INTERVAL_MS)
    assert a.sends() == []


def test_a_claim_that_is_being_released_has_no_lease(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    a.release(holding)
    assert holding.state is ClaimState.RELEASING
    assert until(holding) == 0


def test_leaving_is_settled_only_when_a_claim_in_flight_was_answered(bench: Bench) -> None:
    a = bench.client("a")
    a.want()
    claim = a.appends()
    a.claimant.leave(bench.now_ns)
    assert not a.claimant.settled
    a.put(claim)
    a.turn()
    assert a.claimant.settled
    cell = a.cell()
    assert cell is not None
    assert not cell.held


def test_leaving_without_membership_says_no_goodbye(bench: Bench) -> None:
    a = bench.client("a")
    a.claimant.leave(bench.now_ns)
    assert a.sends() == []


def test_what_is_kept_has_no_lease_here_any_more(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    a.claimant.keep(bench.now_ns)
    assert (holding.state, until(holding)) == (ClaimState.LAPSED, 0)


def test_keeping_claims_says_nothing_where_there_are_none() -> None:
    bench = Bench(partitions=4)
    a = bench.client("a")
    holding = a.get()
    a.claimant.keep(bench.now_ns)
    (last,) = a.appends()
    assert last.coordinator == holding.coordinator
    assert not a.held(holding)


# What members tell


def test_what_a_member_tells_the_others_is_told_at_once() -> None:
    bench = Bench()
    a = bench.client("a", member=True)
    a.turn()
    assert a.sends() == []
    a.claimant.set_member_metadata(b"news", bench.now_ns)
    (told,) = a.sends()
    assert isinstance(told, Heartbeat)
    assert told.member_metadata == b"news"


def test_what_is_told_at_once_waits_for_no_tick() -> None:
    bench = Bench()
    a = bench.client("a", member=True)
    (joined,) = a.claimant.take_appends()
    a.put([joined])
    a.read()
    a.claimant.set_member_metadata(b"news", bench.now_ns)
    assert len(a.claimant.take_appends()) == 1
    holding = a.get()
    a.turn()
    a.claimant.commit(holding, 5, bench.now_ns, flush=True)
    assert len(a.claimant.take_appends()) == 1


@pytest.mark.parametrize("settings", [{"member": False}, {"member": True, "caught_up": False}])
def test_who_is_no_member_yet_tells_it_later(bench: Bench, settings: dict[str, Any]) -> None:
    a = bench.client("a", **settings)
    a.claimant.set_member_metadata(b"news", bench.now_ns)
    assert a.sends() == []
    assert a.claimant.member_metadata == b"news"


def test_no_heartbeat_is_larger_than_it_may_be(bench: Bench) -> None:
    """Four bytes a character, and all the metadata that a claim may have."""
    a = bench.client("a")
    for partition in range(1_200):
        a.claimant.set_metadata(
            a.want("\N{MATHEMATICAL BOLD SMALL T}" * 249, partition), b"m" * 256
        )
    a.send()
    a.read()
    sizes = [len(append.value) for append in a.appends()]
    assert len(sizes) == 2
    assert max(sizes) <= claims.MAX_METADATA_AT_ONCE + 1_024


def test_the_smallest_margin_will_do(bench: Bench) -> None:
    assert bench.client("a", margin_ms=1).claimant.lease_ns == (2 * INTERVAL_MS - 1) * MS


def test_who_holds_no_more_hears_why(bench: Bench) -> None:
    a = bench.client("a")
    released, taken = a.get("t", 0), a.get("t", 1)
    a.release(released)
    a.turn()
    version = a.world.version("g", "t", 1)
    bench.write(ClaimingPartition(2, "x", "x.1", "g", 1, "t", 1, INTERVAL_MS, version))
    a.read()
    for holding, why in ((released, "released"), (taken, "taken over by x")):
        with pytest.raises(NotHeld, match=why):
            a.claimant.commit(holding, 1, bench.now_ns, flush=False)
        with pytest.raises(NotHeld, match=why):
            a.claimant.claim_messages(holding, 1, bench.now_ns)


def test_as_much_as_a_heartbeat_can_carry_is_told() -> None:
    a = Bench().client("a", member=True)
    a.turn()
    a.claimant.set_member_metadata(b"x" * MAX_MEMBER_METADATA_BYTES, a.bench.now_ns)
    (told,) = a.sends()
    assert isinstance(told, Heartbeat)
    assert told.member_metadata is not None
    assert len(told.member_metadata) == MAX_MEMBER_METADATA_BYTES


@pytest.mark.parametrize("metadata", ["text", b"x" * (MAX_MEMBER_METADATA_BYTES + 1)])
def test_what_no_heartbeat_can_carry_is_not_told(bench: Bench, metadata: Any) -> None:
    with pytest.raises(InvalidArgument, match="member_metadata"):
        bench.client("a").claimant.set_member_metadata(metadata, bench.now_ns)


# Pauses


def test_an_expired_pause_is_ended_by_whoever_does_not_leave(bench: Bench) -> None:
    a, b = bench.client("a"), bench.client("b")
    bench.write(ReleaseGroup(2, "op", "op.1", "g", 1, 0))
    waiting = b.want()
    b.turn()
    a.claimant.leave(bench.now_ns)
    a.claimant.end_expired_pause(0)
    assert a.sends() == []
    b.claimant.end_expired_pause(-1)
    assert b.sends() == []
    b.claimant.end_expired_pause(0)
    b.turn()
    assert b.held(waiting)


def test_who_releases_in_a_pause_does_so_once(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    bench.write(ReleaseGroup(2, "op", "op.1", "g", 1, 0))
    a.read()
    a.release(holding)
    a.release(holding)
    assert [type(record) for record in a.sends()] == [ReleasingPartition]
    bench.wait(10 * INTERVAL_MS)
    assert a.sends() == []


def test_what_was_repositioned_before_its_release_is_not_released(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    bench.write(ReleaseGroup(2, "op", "op.1", "g", 1, 0))
    a.read()
    version = a.world.version("g", "t", 0)
    bench.write(SetPosition(2, "op", "op.1", "g", 2, "t", 0, 70, version))
    a.read()
    assert (holding.state, holding.reason) == (ClaimState.ENDED, "repositioned by op")
    bench.wait(10 * INTERVAL_MS)
    assert a.sends() == []


def test_a_claim_that_was_forgotten_before_it_was_heard_of_is_not_held(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.want()
    (claim,) = a.send()
    pause = bench.write(ReleaseGroup(2, "op", "op.1", "g", 1, 0))
    bench.write(SetPosition(2, "op", "op.1", "g", 2, "t", 0, 70, claim))
    bench.write(ForgetGroup(2, "op", "op.1", "g", 3, pause))
    a.read()
    assert a.cell() is None
    assert not a.held(holding)
    assert list(a.claimant.holdings()) == [] or holding.state is ClaimState.WAITING


# Claims that the log gives and takes


def test_what_another_process_released_under_our_epoch_is_lost(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    bench.write(ReleasingPartition(2, "x", "x.1", "g", 1, "t", 0, holding.epoch, 5))
    a.read()
    assert a.notices(holding) == ["acquired", "lost"]
    assert holding.reason == "released by x"
    assert "ended epoch=0" in repr(holding)


def test_a_claim_taken_over_before_its_holder_was_told_of_it_is_wanted_on(bench: Bench) -> None:
    a, b = bench.client("a"), bench.client("b")
    wanted = a.want()
    a.send()
    b.read()
    other = b.want()
    b.pass_time(3 * INTERVAL_MS)
    assert b.held(other)
    a.read()
    assert "lost" not in a.notices(wanted)
    assert wanted.state is ClaimState.WAITING
    b.release(other)
    b.turn()
    a.turn()
    assert a.held(wanted)


def test_a_pause_before_its_holder_was_told_of_a_claim_gives_it_back_at_once(bench: Bench) -> None:
    a = bench.client("a")
    wanted = a.want()
    a.send()
    bench.wait(3 * INTERVAL_MS)  # read when its lease was over already
    bench.write(ReleaseGroup(2, "op", "op.1", "g", 1, 0))
    a.read()
    assert wanted.state is ClaimState.WAITING
    assert [type(record) for record in a.sends()] == [ReleasingPartition]
    bench.wait(INTERVAL_MS)
    assert a.sends() == []


def test_what_the_log_says_is_ours_is_claimed_again_without_a_wait(bench: Bench) -> None:
    a = bench.client("a", resume=False)
    first = a.get()
    a.claimant.truncated()  # and what was left of the log has our claim after all
    a.replay()
    assert first.state is ClaimState.ENDED
    again = a.get()
    assert again.epoch > first.epoch


def test_a_claim_given_up_for_lost_that_turns_up_is_held_from_its_first_heartbeat_on(
    bench: Bench,
) -> None:
    a = bench.client("a")
    holding = a.want()
    late = a.appends()
    bench.wait(MIN_ANSWER_TIMEOUT_MS + INTERVAL_MS)
    a.tick()
    a.put(late)
    a.read()
    assert holding.epoch == 0
    assert not a.held(holding), "nobody knows any more when it was sent"
    a.turn()
    assert a.held(holding)


def test_of_two_claims_of_ours_that_were_accepted_the_later_counts(bench: Bench) -> None:
    a = bench.client("a")
    first = a.get()
    again = ev.Claimed(9, "a", "a.1", "g", 77, "t", 0, 9, INTERVAL_MS, "a", "a.1", first.epoch)
    a.claimant.applied(0, [again], bench.now_ns)
    assert (first.state, first.reason) == (ClaimState.ENDED, "claimed again")
    (release,) = a.sends()
    assert isinstance(release, ReleasingPartition)
    assert release.epoch == 9


# Answers that nobody waits for any more


def test_a_release_that_failed_is_no_news_once_another_one_was_read(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    a.release(holding)
    failed = a.appends()
    a.fail(failed)
    bench.wait(100)
    a.turn()
    assert holding.state is ClaimState.ENDED
    a.fail(failed)
    bench.wait(MIN_ANSWER_TIMEOUT_MS + INTERVAL_MS)
    assert a.sends() == []
    a.put(failed)
    a.turn()
    assert a.notices(holding) == ["acquired", "released"]


def test_messages_of_unknown_outcome_that_turn_up_rejected_are_no_news(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    a.claimant.claim_messages(holding, 5, bench.now_ns)
    unknown = a.appends()
    a.fail(unknown)
    a.claimant.claim_messages(holding, 9, bench.now_ns)
    a.turn()
    assert a.notices(holding) == ["acquired", "messages_rejected", "messages_claimed"]
    a.put(unknown)
    a.turn()
    assert a.notices(holding) == []
    assert holding.claimed_offset == 9


# Memory


def test_what_is_settled_is_forgotten(bench: Bench) -> None:
    a = bench.client("a", member=True)
    holding = a.get()
    for n in range(50):
        bench.wait(INTERVAL_MS)
        a.claimant.commit(holding, n, bench.now_ns, flush=True)
        a.claimant.claim_messages(holding, n + 1, bench.now_ns)
        a.turn()
    assert len(a.claimant._sent) == 0
    assert len(a.claimant._timers) < 8


def test_what_nobody_answers_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_appends, "MAX_UNREAD", 10)
    a = bench.client("a")
    holding = a.get()
    for n in range(100):
        a.claimant.claim_messages(holding, n + 1, bench.now_ns)
    assert len(a.claimant._sent) <= 10


# Guards that neither histories nor tests noticed when they were left out


@pytest.mark.parametrize(("elapsed_ms", "takes"), [(5_000, False), (9_000, True)])
def test_a_cold_start_waits_by_the_interval_of_the_holder_not_by_its_own(
    bench: Bench, elapsed_ms: int, takes: bool
) -> None:
    holder = bench.client("slow", interval_ms=4_000)
    holder.want()
    (claim,) = holder.appends()
    bench.log.append(0, claim.value, 1_000_000)
    a = bench.client("a", cold_start_skew_ms=500)
    a.want()
    (probe,) = a.appends()
    bench.log.append(0, probe.value, 1_000_000 + elapsed_ms)
    a.read()
    assert bool(a.sends()) is takes


def test_heartbeats_that_a_truncation_took_with_it_are_not_waited_for(bench: Bench) -> None:
    a = bench.client("a")
    a.get()
    for _ in range(MAX_UNREAD_HEARTBEATS):
        bench.wait(INTERVAL_MS)
        assert a.sends()
    bench.log.partitions[0].truncate(len(bench.log.partitions[0]))
    a.claimant.truncated()
    a.replay()
    holding = a.get()
    a.pass_time(5 * INTERVAL_MS)
    assert a.held(holding)


def test_failures_of_heartbeats_from_before_a_truncation_do_not_count(bench: Bench) -> None:
    a = bench.client("a")
    a.get()
    bench.wait(INTERVAL_MS)
    (before,) = a.appends()
    bench.log.partitions[0].truncate(len(bench.log.partitions[0]))
    a.claimant.truncated()
    a.replay()
    a.get()
    for _ in range(MAX_UNREAD_HEARTBEATS):
        bench.wait(INTERVAL_MS)
        assert a.sends()
    a.claimant.append_failed(before.seq, bench.now_ns)
    bench.wait(INTERVAL_MS)
    assert a.sends() == []


def test_a_cold_start_after_a_truncation_probes_again(bench: Bench) -> None:
    bench.client("b").get()
    a = bench.client("a", cold_start_skew_ms=100)
    a.want()
    assert [type(record) for record in a.sends()] == [Heartbeat]
    a.claimant.truncated()
    a.replay()
    assert [type(record) for record in a.sends()] == [Heartbeat]


def test_a_claim_of_another_client_is_not_ours_whatever_its_instance(bench: Bench) -> None:
    a = bench.client("a")
    wanted = a.want()
    (claim,) = a.appends()
    claimed = ev.Claimed(9, "x", "a.1", "g", claim.seq, "t", 0, 9, INTERVAL_MS, None, None, -1)
    a.claimant.applied(0, [claimed], bench.now_ns)
    assert wanted.state is not ClaimState.HELD
    assert wanted.epoch != 9


def test_messages_of_another_epoch_are_not_ours(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    seq = a.claimant.claim_messages(holding, 10, bench.now_ns)
    claimed = ev.MessagesClaimed(9, "a", "a.1", "g", seq, "t", 0, holding.epoch + 1, -1, 10)
    a.claimant.applied(0, [claimed], bench.now_ns)
    assert holding.claimed_offset == -1
    assert "messages_claimed" not in a.notices(holding)


def test_a_release_that_a_truncation_took_with_it_is_over(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    a.release(holding)
    a.claimant.truncated()
    assert holding.state is ClaimState.ENDED
    assert a.notices(holding)[-1] == "lost"
    assert list(a.claimant.holdings()) == []


def test_a_holder_of_long_intervals_can_be_taken_over_from(bench: Bench) -> None:
    long_ms = 3_600_000
    bench.client("b", interval_ms=long_ms).get()
    a = bench.client("a")
    wanted = a.want()
    (waits,) = a.claimant.take_notices()
    assert (waits.kind, waits.detail) == ("waiting", "b holds it")
    for minute in range(125):  # others write all the while, so that times are kept and forgotten
        bench.write(Heartbeat(2, "c", "c.1", "g", minute, INTERVAL_MS, 1))
        a.read()
        bench.wait(60_000)
    a.turn()
    assert a.held(wanted)


@pytest.mark.parametrize("record", ["ClaimingPartition", "ClaimingMessages", "ReleasingPartition"])
def test_what_is_rejected_of_another_instance_concerns_it_alone(bench: Bench, record: Any) -> None:
    a = bench.client("a")
    if record == "ClaimingPartition":
        holding = a.want()
        (sent,) = a.appends()
        seq = sent.seq
    else:
        holding = a.get()
        if record == "ClaimingMessages":
            seq = a.claimant.claim_messages(holding, 9, bench.now_ns)
        else:
            a.release(holding)
            seq = a.appends()[-1].seq
    before = holding.state
    a.notices()
    theirs = ev.Rejected(9, "a", "a.9", "g", seq, record, "not_held", "t", 0, holding.epoch, 1, "a")
    a.claimant.applied(0, [theirs], bench.now_ns)
    assert holding.state is before
    assert a.notices() == []


def test_the_lease_that_ends_first_is_watched_whichever_came_first(bench: Bench) -> None:
    a = bench.client("a")
    slow = a.want("t", 1)
    claim = a.appends()  # under way for long
    bench.wait(INTERVAL_MS)
    a.get("t", 0)
    a.put(claim)
    a.read()
    assert a.held(slow)
    bench.wait(until(slow) // MS - bench.now_ms + 1)
    a.tick()
    assert slow.state is ClaimState.LAPSED


def test_of_many_leases_the_next_that_ends_is_watched(bench: Bench) -> None:
    a = bench.client("a")
    slow = []
    for partition in range(3):  # their claims are read together, and end one after the other
        a.want("t", partition)
        slow += a.appends()
        bench.wait(100)
    a.put(slow)
    a.read()
    holdings = [a.want("t", partition) for partition in range(3)]
    assert all(map(a.held, holdings))
    for holding in holdings:
        bench.wait(until(holding) // MS - bench.now_ms)
        a.tick()
        assert holding.state is ClaimState.LAPSED
        assert a.claimant.next_deadline_ns() is not None


def test_who_holds_nothing_any_more_is_silent(bench: Bench) -> None:
    a = bench.client("a")
    a.release(a.get())
    a.turn()
    for _ in range(3):
        bench.wait(INTERVAL_MS)
        assert a.sends() == []


def test_one_answer_makes_room_for_one_heartbeat(bench: Bench) -> None:
    a = bench.client("a")
    a.get()
    sent = []
    for _ in range(MAX_UNREAD_HEARTBEATS):
        bench.wait(INTERVAL_MS)
        sent += a.appends()
    assert len(sent) == MAX_UNREAD_HEARTBEATS
    a.put(sent[:1])
    a.read()
    for expected in (1, 0, 0):
        bench.wait(INTERVAL_MS)
        assert len(a.appends()) == expected


def test_a_release_of_another_epoch_ends_no_release_of_ours(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    a.release(holding)
    released = ev.Released(90, "x", "x.1", a.group, 1, "t", 0, holding.epoch + 1, 5)
    a.claimant.applied(0, [released], bench.now_ns)
    assert holding.state is ClaimState.RELEASING


def test_whose_claim_an_operator_of_the_same_name_ends_has_no_twin(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    placed = ev.PositionSet(90, "a", "a.9", a.group, 1, "t", 0, 5)
    a.claimant.applied(0, [placed], bench.now_ns)
    assert holding.state is ClaimState.ENDED
    assert a.claimant.duplicate_instance_id is None


def test_what_a_twin_has_not_taken_is_held_on(bench: Bench) -> None:
    old = bench.client("a", "old")
    taken, kept = old.get("t", 0), old.get("t", 1)
    bench.client("a", "new").get("t", 0)
    old.turn()
    assert old.claimant.duplicate_instance_id == "a.new"
    assert (taken.state, until(taken)) == (ClaimState.ENDED, 0)
    assert old.held(kept)


def test_a_release_of_another_epoch_ends_no_claim(bench: Bench) -> None:
    a = bench.client("a")
    holding = a.get()
    for epoch in (holding.epoch - 1, holding.epoch + 1):
        released = ev.Released(90, "a", "a.0", a.group, 1, "t", 0, epoch, 5)
        a.claimant.applied(0, [released], bench.now_ns)
        assert a.held(holding)
