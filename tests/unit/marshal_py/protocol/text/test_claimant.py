"""The version 1 claimant, rule by rule: what goes into the log, and when a claim is held."""

from __future__ import annotations

from typing import Any

import pytest

from marshal_py import DuplicateClientId, InvalidArgument, NotInVersion1
from marshal_py.protocol.claimant import MAX_LATE_RENEWALS, ClaimState, Holding, Notice
from marshal_py.protocol.events import Event
from marshal_py.protocol.text.claimant import TextClaimant
from marshal_py.protocol.text.rationalizer import TextCell, TextState, TextWorld, apply
from marshal_py.protocol.world import Observer

S = 1_000_000_000
HB = 60
T0 = 1_800_000_000
"""What the wall clock shows when the monotonic clock shows 0."""


class Log:
    def __init__(self, *values: str) -> None:
        self.values = [value.encode() for value in values]

    def write(self, *values: str) -> None:
        self.values += [value.encode() for value in values]

    def said(self, client: str) -> list[str]:
        """Return type and offset of what the client wrote, such as "Heartbeat 5"."""
        found = []
        for value in self.values:
            fields = value.decode().split("/")
            if fields[4] == client:
                found.append(" ".join([fields[0], *fields[8:]]))
        return found


class Client:
    """One of ours on a `Log`, whose appends arrive when `send` is called, and reads with `read`."""

    def __init__(self, log: Log, name: str = "py", instance: str = "i1", **kwargs: Any) -> None:
        self.log, self.name, self.now = log, name, 0
        self.world = TextWorld(1, HB, lambda: T0 + self.now / S + self.ahead_s)
        self.state: TextState = self.world.states[0]  # type: ignore[assignment]
        self.observer = Observer()
        self.ahead_s = 0.0
        for value in log.values:
            apply(self.state, self.state.next_offset, value)
        self.observer.caught_up_at_offset = self.state.next_offset
        self.observer.seen.note(self.state.next_offset - 1, self.now)
        self.claimant = TextClaimant(
            self.world,
            [self.observer],
            client_id=name,
            instance_id=instance,
            group_id="g",
            interval_ms=HB * 1000,
            margin_ms=HB * 100,
            wall_s=lambda: T0 + self.now / S + self.ahead_s,
            **kwargs,
        )
        self.claimant.caught_up(0, 0)
        self.notices: list[Notice] = []

    def want(self) -> Holding:
        return self.claimant.want("t", 0, self.now)

    def send(self) -> int:
        appends = self.claimant.take_appends()
        self.log.values += [append.value for append in appends]
        return len(appends)

    def read(self) -> None:
        events: list[Event] = []
        for value in self.log.values[self.state.next_offset :]:
            apply(self.state, self.state.next_offset, value, events)
        if events:
            self.observer.seen.note(self.state.next_offset - 1, self.now)
            self.claimant.applied(0, events, self.now)
        self.claimant.tick(self.now)
        self.notices += self.claimant.take_notices()

    def settle(self) -> None:
        """Send and read until nothing more comes."""
        self.read()
        while self.send():
            self.read()

    def run(self, seconds: float) -> None:
        """Let time pass, doing what is due as it comes due."""
        end = self.now + int(seconds * S)
        while (due := self.claimant.next_deadline_ns()) is not None and due <= end:
            self.now = max(self.now, due)
            self.settle()
        self.now = end
        self.settle()

    def skip(self, seconds: float) -> None:
        """Let time pass while the process is suspended."""
        self.now += int(seconds * S)

    def heard(self, kind: str) -> int:
        return sum(notice.kind == kind for notice in self.notices)

    @property
    def cell(self) -> TextCell:
        cell = self.state.cells["g", "t", 0]
        assert isinstance(cell, TextCell)
        return cell


def beat(who: str, after_s: float, offset: int = 0) -> str:
    return f"Heartbeat/1/{int(T0 + after_s)}/{who}-i/{who}/g/t/0/{offset}"


def claim(who: str, after_s: float) -> str:
    return f"ClaimingPartition/1/{int(T0 + after_s)}/{who}-i/{who}/g/t/0"


def release(who: str, after_s: float, offset: int = 0) -> str:
    return f"ReleasingPartition/1/{int(T0 + after_s)}/{who}-i/{who}/g/t/0/{offset}"


def holder(log: Log | None = None, **kwargs: Any) -> tuple[Client, Holding]:
    client = Client(log or Log(), **kwargs)
    holding = client.want()
    client.settle()
    assert holding.held(client.now)
    return client, holding


# Claiming


def test_a_claim_sent_before_its_cell_was_lost_wins_nothing_for_whoever_wants_it_again() -> None:
    """Found by the simulation: a process wakes, asks, learns that it lost, and its user asks again.

    By our clock the other's claim is so old that the fold grants what we had asked.
    """
    client, lost = holder()
    client.ahead_s = 2.5 * HB
    client.skip(1.5 * HB)
    client.claimant.tick(client.now)
    (asked,) = client.claimant.take_appends()
    assert asked.value.startswith(b"ClaimingPartition")
    client.log.write(claim("go", 1.4 * HB), beat("go", 1.4 * HB))
    client.read()
    assert lost.reason is not None
    again = client.want()
    client.log.values.append(asked.value)
    client.settle()
    assert client.cell.holder == "py"  # the fold goes by the times
    assert not again.held(client.now)
    assert client.log.said("py")[-1] == "ClaimingPartition"


def test_a_free_cell_is_claimed_at_once_and_held_when_the_first_heartbeat_is_back() -> None:
    client = Client(Log())
    holding = client.want()
    client.send()
    client.read()
    assert client.log.said("py") == ["ClaimingPartition"]
    assert not holding.held(client.now)
    client.send()
    client.read()
    assert client.log.said("py") == ["ClaimingPartition", "Heartbeat 0"]
    assert holding.held(client.now)
    assert client.heard("acquired") == 1


@pytest.mark.parametrize("between", [beat("go", 0), claim("go", 500)])
def test_a_claim_that_the_fold_grants_is_not_won_if_somebody_came_between(between: str) -> None:
    # Clocks that differ by 2 HB and more: the fold grants both, one after the other.
    client = Client(Log())
    client.ahead_s = 1_000
    holding = client.want()
    client.log.write(between)
    client.settle()
    assert client.cell.holder == "py"
    assert holding.state is ClaimState.WAITING
    assert client.log.said("py") == ["ClaimingPartition"]  # no heartbeat, no release
    client.run(2 * HB - 1)
    assert client.log.said("py") == ["ClaimingPartition"]


def test_a_held_cell_is_claimed_after_two_intervals_of_silence() -> None:
    client = Client(Log(beat("go", 0, 7)))
    holding = client.want()
    client.run(2 * HB)
    assert client.log.said("py") == []
    client.run(6)
    assert holding.held(client.now)
    assert client.log.said("py") == ["ClaimingPartition", "Heartbeat 7"]


@pytest.mark.parametrize("ahead_s", [-10_000, -90, -3, 3, 90, 10_000])
def test_a_holder_that_is_heard_is_left_alone_whatever_its_clock_shows(ahead_s: float) -> None:
    client = Client(Log(beat("go", ahead_s)))
    client.want()
    for minute in range(1, 10):
        client.run(HB)
        client.log.write(beat("go", ahead_s + minute * HB))
        client.settle()
    assert client.log.said("py") == []


def test_a_cell_whose_times_lie_ahead_is_not_claimed_before_the_fold_would_grant_it() -> None:
    client = Client(Log(beat("go", 100)))
    holding = client.want()
    client.run(100 + 2 * HB)
    assert client.log.said("py") == []
    client.run(10)
    assert holding.held(client.now)


def test_a_doubtful_claim_of_a_third_party_starts_the_wait_anew() -> None:
    client = Client(Log(beat("go", 0)))
    client.want()
    client.run(HB)
    client.log.write(claim("other", -30))  # refused; but its clock may say otherwise
    client.settle()
    client.run(2 * HB - 1)
    assert client.log.said("py") == []
    client.run(10)
    assert client.log.said("py")[0] == "ClaimingPartition"


def test_a_free_cell_is_left_alone_while_a_replaced_owner_may_still_believe_in_it() -> None:
    client = Client(Log())
    client.log.write(beat("one", 0), beat("two", 1), release("two", 2))
    client.read()
    holding = client.want()
    client.run(2 * HB - 1)
    assert client.log.said("py") == []
    client.run(2)
    assert holding.held(client.now)


def test_a_claim_that_somebody_else_won_waits() -> None:
    client = Client(Log())
    holding = client.want()
    client.log.write(claim("go", 1), beat("go", 1))
    client.settle()
    assert holding.state is ClaimState.WAITING
    assert client.log.said("py") == ["ClaimingPartition"]
    client.log.write(release("go", 5, 42))
    client.settle()
    assert holding.held(client.now)
    assert holding.next_offset == 42


def test_two_who_wait_for_the_same_cell_do_not_claim_it_in_the_same_moment() -> None:
    moments = set()
    for name in ("a", "b", "c", "d"):
        client = Client(Log(beat("go", 0)), name=name, instance=name)
        client.want()
        client.run(2 * HB)
        due = client.claimant.next_deadline_ns()
        assert due is not None
        assert due <= (2 * HB + 2 + 3) * S + 1
        moments.add(due)
    assert len(moments) == 4


# Holding


def test_heartbeats_go_out_three_times_an_interval_and_renew_the_lease() -> None:
    client, holding = holder()
    start = len(client.log.values)
    client.run(10 * HB)
    assert holding.held(client.now)
    assert 30 <= len(client.log.values) - start <= 31
    assert client.heard("lapsed") == 0


def test_the_lease_is_one_interval_less_the_margin_from_before_the_sending() -> None:
    client, holding = holder()
    client.skip(HB * 0.9 - 0.001)
    assert holding.held(client.now)
    client.skip(0.002)
    assert not holding.held(client.now)


def test_the_times_in_our_records_are_a_little_behind_our_clock() -> None:
    client, _ = holder()
    assert f"Heartbeat/1/{T0 - 2}/" in client.log.values[-1].decode()


def test_only_a_flush_sends_at_once_and_only_for_its_claim() -> None:
    client = Client(Log())
    first, second = client.want(), client.claimant.want("t", 1, 0)
    client.settle()
    client.claimant.commit(first, 5, client.now, flush=False)
    assert client.send() == 0
    client.claimant.commit(second, 6, client.now, flush=True)
    assert client.send() == 1
    client.read()
    assert (first.stored_offset, second.stored_offset) == (-1, 6)
    client.run(HB / 3)
    assert first.stored_offset == 5


def test_a_flush_that_finds_two_heartbeats_on_their_way_follows_them() -> None:
    client, holding = holder()
    for offset in (1, 2, 3, 4):
        client.claimant.commit(holding, offset, client.now, flush=True)
    assert client.send() == 2
    client.settle()
    assert holding.stored_offset == 4


def test_any_heartbeat_of_somebody_else_ends_the_claim_and_is_not_fought() -> None:
    client, holding = holder()
    client.run(5)
    said = client.log.said("py")
    client.log.write(beat("go", 5, 1))
    client.settle()
    assert holding.state is ClaimState.ENDED
    assert client.heard("lost") == 1
    again = client.want()
    client.run(2 * HB - 1)
    assert client.log.said("py") == said
    client.run(10)
    assert again.held(client.now)


def test_a_granted_claim_of_somebody_else_ends_the_claim() -> None:
    client, holding = holder()
    client.log.write(claim("go", 5 * HB))
    client.settle()
    assert holding.state is ClaimState.ENDED


def test_a_doubtful_claim_suspends_until_it_is_clear_that_nobody_follows_it() -> None:
    client, holding = holder()
    client.run(1)
    client.log.write(claim("go", -5))
    client.settle()
    assert not holding.held(client.now)
    assert client.heard("lapsed") == 1
    client.run(9.9)
    assert not holding.held(client.now)
    client.run(1)
    assert holding.held(client.now)
    assert client.heard("regained") == 1


def test_a_doubtful_claim_that_is_followed_by_a_heartbeat_ends_the_claim() -> None:
    client, holding = holder()
    client.run(1)
    client.log.write(claim("go", -5))
    client.run(2)
    said = client.log.said("py")
    client.log.write(beat("go", -2))
    client.run(20)
    assert holding.state is ClaimState.ENDED
    assert client.log.said("py") == said


def test_an_ordinary_rival_claim_is_of_no_concern() -> None:
    client, holding = holder()
    client.log.write(claim("go", 1))
    client.settle()
    assert holding.held(client.now)


# Asking first


def test_after_a_long_silence_a_claim_is_sent_before_a_heartbeat() -> None:
    client, holding = holder()
    start = len(client.log.values)
    client.skip(1.5 * HB)
    client.settle()
    said = [value.split(b"/")[0] for value in client.log.values[start:]]
    assert said == [b"ClaimingPartition", b"Heartbeat"]
    assert holding.held(client.now)
    assert client.heard("regained") == 1


def test_after_more_than_two_intervals_the_claim_counts_as_new_and_goes_on() -> None:
    client, holding = holder()
    client.skip(5 * HB)
    client.settle()
    assert holding.held(client.now)
    client.run(3 * HB)
    assert holding.held(client.now)


def test_what_was_taken_during_the_silence_is_not_overwritten() -> None:
    client, holding = holder()
    client.skip(3 * HB)
    client.log.write(claim("go", 2.5 * HB), beat("go", 2.5 * HB))
    client.claimant.tick(client.now)  # before anything is read
    client.send()
    client.settle()
    assert holding.state is ClaimState.ENDED
    assert client.cell.holder == "go"


def test_a_heartbeat_that_failed_is_sent_again_soon() -> None:
    client, holding = holder()
    client.now += HB // 3 * S
    client.claimant.tick(client.now)
    for append in client.claimant.take_appends():
        client.claimant.append_failed(append.seq, client.now)
    client.run(1)
    assert holding.lease_until_ns >= (HB // 3 + HB * 0.9) * S


def test_a_client_that_reads_too_late_to_hold_anything_gives_it_back() -> None:
    client, holding = holder()
    client.claimant.commit(holding, 9, client.now, flush=True)
    client.settle()
    for _ in range(30):
        client.claimant.tick(client.now)
        client.send()
        client.skip(1.2 * HB)
        client.read()
        if holding.state is ClaimState.ENDED:
            break
    assert holding.state is ClaimState.ENDED
    assert holding.late_renewals == MAX_LATE_RENEWALS
    client.settle()
    assert client.log.said("py")[-1] == "ReleasingPartition 9"


# Releasing


def test_a_release_carries_the_position_and_frees_the_cell() -> None:
    client, holding = holder()
    client.claimant.commit(holding, 12, client.now, flush=False)
    client.claimant.release(holding, client.now)
    assert not holding.held(client.now)
    client.settle()
    assert client.log.said("py")[-1] == "ReleasingPartition 12"
    assert client.heard("released") == 1
    assert client.claimant.settled


def test_a_claim_that_nobody_wants_any_more_is_given_back_with_its_position() -> None:
    client = Client(Log(beat("go", -5, 33), release("go", -4, 33)))
    holding = client.want()
    client.send()
    client.claimant.release(holding, client.now)
    client.settle()
    assert client.log.said("py") == ["ClaimingPartition", "ReleasingPartition 33"]


def test_claims_that_turn_up_when_nobody_wants_them_are_given_back_by_one_release() -> None:
    """Found by chaos: one release for each went on while appends failed, with an old position.

    They have no epoch: they would take what was claimed anew, and set its position back.
    """
    client = Client(Log(beat("go", -5, 12), release("go", -4, 12)))
    late = []
    for _ in range(2):
        holding = client.want()
        late += client.claimant.take_appends()
        client.claimant.append_failed(late[-1].seq, client.now)
        client.claimant.release(holding, client.now)
        client.skip(3 * HB)
    client.log.values += [append.value for append in late]
    client.read()
    (failed,) = client.claimant.take_appends()
    client.claimant.append_failed(failed.seq, client.now)
    client.log.write(claim("go", 9 * HB), beat("go", 9 * HB, 50))
    client.run(HB)
    assert client.claimant.settled
    assert client.log.said("py") == ["ClaimingPartition"] * 2


def test_a_release_behind_a_claim_that_counts_as_a_new_one_is_told_as_well() -> None:
    """A process wakes and asks; before that is read, its user releases."""
    client, holding = holder()
    client.skip(2.5 * HB)
    client.claimant.tick(client.now)
    client.claimant.release(holding, client.now)
    assert client.send() == 2
    assert client.log.said("py")[-2:] == ["ClaimingPartition", "ReleasingPartition 0"]
    client.settle()
    assert client.heard("released") == 1
    assert holding.state is ClaimState.ENDED
    assert client.cell.holder is None


def test_leaving_releases_everything_and_keeping_nothing() -> None:
    client, holding = holder()
    client.claimant.leave(client.now)
    client.settle()
    assert client.log.said("py")[-1] == "ReleasingPartition 0"
    client, holding = holder()
    client.claimant.commit(holding, 3, client.now, flush=False)
    client.claimant.keep(client.now)
    client.settle()
    assert client.log.said("py")[-1] == "Heartbeat 3"
    assert not holding.held(client.now)


# Restart


def test_what_an_earlier_instance_held_is_taken_with_a_heartbeat_alone() -> None:
    client = Client(Log(beat("py", -30, 8)))
    holding = client.want()
    client.settle()
    assert holding.held(client.now)
    assert client.log.said("py") == ["Heartbeat 8", "Heartbeat 8"]


@pytest.mark.parametrize(("age_s", "at_once"), [(1.4 * HB, True), (1.6 * HB, False)])
def test_only_what_was_renewed_within_one_and_a_half_intervals_is_resumed(
    age_s: float, at_once: bool
) -> None:
    client = Client(Log(beat("py", -int(age_s), 8)))
    holding = client.want()
    client.settle()
    assert holding.held(client.now) == at_once


@pytest.mark.parametrize("age_s", [1.6 * HB, 1.9 * HB])
def test_what_is_too_old_to_resume_is_claimed_as_soon_as_the_times_allow(age_s: float) -> None:
    """Nobody else has our name: no silence has to be watched, as a stranger's would be."""
    client = Client(Log(beat("py", -int(age_s), 8)))
    holding = client.want()
    client.run(2 * HB - age_s + 4)
    assert holding.held(client.now)
    assert client.log.said("py")[:2] == ["Heartbeat 8", "ClaimingPartition"]


def test_without_resume_it_is_waited_for() -> None:
    client = Client(Log(beat("py", -30, 8)), resume=False)
    client.want()
    client.run(2 * HB)
    assert len(client.log.said("py")) == 1


def test_what_has_been_stale_for_long_is_claimed_as_a_stranger_would() -> None:
    client = Client(Log(beat("py", -500, 8)))
    holding = client.want()
    client.settle()
    assert holding.held(client.now)
    assert client.log.said("py")[1:] == ["ClaimingPartition", "Heartbeat 8"]


def test_what_somebody_took_while_we_resumed_is_left_to_them() -> None:
    client = Client(Log(beat("py", -30, 8)))
    holding = client.want()
    client.log.write(beat("go", 0, 9))
    client.settle()
    assert not holding.held(client.now)
    said = client.log.said("py")
    client.run(HB)
    assert client.log.said("py") == said


def test_a_live_process_of_our_name_stops_us() -> None:
    client, holding = holder()
    client.log.write(beat("py", 1))
    client.settle()
    assert holding.state is ClaimState.ENDED
    assert client.claimant.duplicate_instance_id == "py-i"
    with pytest.raises(DuplicateClientId):
        client.want()


def test_a_process_of_our_name_that_flushes_between_our_decision_and_our_record_stops_us() -> None:
    client = Client(Log(beat("py", -1, 5)))
    holding = client.want()
    client.log.write(beat("py", 0, 6))  # it lives: this comes before our heartbeat
    client.settle()
    assert client.heard("duplicate_client_id") == 1
    assert holding.state is ClaimState.ENDED
    said = client.log.said("py")
    client.run(5 * HB)
    assert client.log.said("py") == said


def test_a_process_of_our_name_that_comes_to_hold_what_we_wait_for_stops_us() -> None:
    client = Client(Log(beat("go", -1, 5)))
    holding = client.want()
    client.settle()
    client.log.write(release("go", 1, 5), beat("py", 1, 5))
    client.settle()
    assert client.claimant.duplicate_instance_id == "py-i"
    assert holding.state is ClaimState.ENDED


def test_what_an_earlier_process_of_our_name_left_stops_nobody() -> None:
    client = Client(Log(beat("py", -1, 5)))
    holding = client.want()
    client.settle()
    assert holding.held(client.now)
    assert client.claimant.duplicate_instance_id is None


def test_leaving_after_a_twin_was_met_releases_nothing_in_the_log() -> None:
    log = Log()
    client = Client(log)
    first, second = client.want(), client.claimant.want("t", 1, 0)
    client.settle()
    assert first.held(client.now)
    assert second.held(client.now)
    log.write(beat("py", 1))  # of t/0; it takes t/1 for its own as well, since the name is its own
    client.settle()
    assert client.claimant.duplicate_instance_id == "py-i"
    client.claimant.leave(client.now)
    client.settle()
    assert not [said for said in log.said("py") if said.startswith("Releasing")]
    assert client.claimant.settled


def test_a_resumption_that_is_given_up_releases_nothing_that_a_twin_may_hold() -> None:
    log = Log(beat("py", -1, 5))
    client = Client(log)
    holding = client.want()
    client.claimant.release(holding, client.now)  # the heartbeat is on its way
    client.settle()
    assert log.said("py") == ["Heartbeat 5", "Heartbeat 5"]


def test_a_truncated_log_drops_every_lease() -> None:
    client, holding = holder()
    client.claimant.truncated()
    assert not holding.held(client.now)
    assert holding.state is ClaimState.ENDED


# Pauses


def test_a_paused_group_is_waited_for_by_our_own_clock() -> None:
    client = Client(Log(f"ReleaseGroup/0/{T0}/i/adm/g//0/{T0 + 100}"))
    holding = client.want()
    client.run(100)
    assert client.log.said("py") == []
    client.run(3)
    assert holding.held(client.now)


def test_a_pause_ends_what_is_held_when_its_user_has_finished_or_the_lease_is_over() -> None:
    client, holding = holder()
    client.log.write(f"ReleaseGroup/0/{T0}/i/adm/g//0/{T0 + 1000}")
    client.settle()
    assert not holding.held(client.now)
    assert client.heard("paused") == 1
    client.run(HB)
    assert holding.reason == "the group was paused"
    assert client.log.said("py")[-1] == "ReleasingPartition 0"


def test_a_pause_that_is_over_or_of_another_group_changes_nothing() -> None:
    client, holding = holder()
    client.run(10)
    client.log.write(
        f"ReleaseGroup/0/{T0}/i/adm/g//0/{T0 + 5}", f"ReleaseGroup/0/{T0}/i/adm/h//0/{T0 + 999}"
    )
    client.settle()
    assert holding.held(client.now)


# What version 1 cannot give


def test_what_version_1_cannot_give_is_refused() -> None:
    client, holding = holder()
    with pytest.raises(NotInVersion1, match="at-most-once"):
        client.claimant.claim_messages(holding, 5, client.now)
    with pytest.raises(NotInVersion1, match="metadata"):
        client.claimant.set_metadata(holding, b"x")
    with pytest.raises(NotInVersion1, match="no members"):
        client.claimant.set_member_metadata(b"x", client.now)
    with pytest.raises(InvalidArgument, match="slash"):
        client.claimant.want("a/b", 0, client.now)


# A log that was made anew


def made_anew(client: Client, *values: str) -> None:
    """Have the client read another log from its beginning, as the driver does."""
    claimant = client.claimant
    claimant.truncated()
    client.log.values = [value.encode() for value in values]
    client.state = client.world.states[0] = TextState(0, HB)
    client.observer = claimant.observers[0] = Observer()
    for offset, value in enumerate(client.log.values):
        apply(client.state, offset, value)
    client.observer.caught_up_at_offset = client.state.next_offset
    client.observer.seen.note(client.state.next_offset - 1, client.now)
    claimant.caught_up(0, client.now)


def test_offsets_of_another_log_keep_nobody_from_winning() -> None:
    client, lost = holder()
    client.log.write(*(beat("go", n) for n in range(5)))
    client.settle()
    assert lost.state is ClaimState.ENDED
    made_anew(client)
    holding = client.want()
    client.settle()
    assert holding.held(client.now)


def test_a_claim_is_not_taken_for_the_one_that_went_into_another_log() -> None:
    """Of the same second: then somebody came between, though not by the offsets of then."""
    client = Client(Log(*(beat("go", -1_000, 1) for _ in range(9)), release("go", -999)))
    client.ahead_s = 1_000
    holding = client.want()
    assert client.claimant.take_appends()
    made_anew(client)
    client.log.write(beat("go", 0))
    client.settle()
    assert client.cell.holder == "py"
    assert holding.state is ClaimState.WAITING


def test_a_log_of_more_partitions_is_written_to_where_it_decides() -> None:
    client, _ = holder()
    client.claimant.truncated()
    client.world.states[:] = [TextState(p, HB) for p in range(3)]
    client.claimant.observers[:] = [Observer() for _ in range(3)]
    client.claimant.reshape()
    for p, observer in enumerate(client.claimant.observers):
        observer.caught_up_at_offset = 0
        client.claimant.caught_up(p, client.now)
    for n in range(9):
        client.claimant.want(f"t{n}", 0, client.now)
    assert {append.coordinator for append in client.claimant.take_appends()} == {0, 1, 2}


# What comes late, fails or is of somebody else


def test_who_came_between_is_known_though_nothing_was_wanted_meanwhile() -> None:
    """The first that was asked is read when the cell is wanted again."""
    client = Client(Log())
    client.ahead_s = 2.5 * HB
    given_up = client.want()
    (asked,) = client.claimant.take_appends()
    client.claimant.release(given_up, client.now)
    client.log.write(claim("go", 0), beat("go", 0))
    client.read()
    again = client.want()
    client.log.values.append(asked.value)
    client.settle()
    assert client.cell.holder == "py"  # the fold goes by the times
    assert not again.held(client.now)
    assert client.log.said("py") == ["ClaimingPartition"]


def test_a_claim_that_was_refused_when_nobody_wanted_it_is_none_of_the_next() -> None:
    client = Client(Log())
    given_up = client.want()
    (asked,) = client.claimant.take_appends()
    client.claimant.release(given_up, client.now)
    client.log.write(beat("go", 0))
    client.read()
    again = client.want()
    client.log.values.append(asked.value)
    client.settle()
    assert again.state is ClaimState.WAITING
    client.log.write(release("go", 1, 5))
    client.run(15)  # it had been in doubt
    assert again.held(client.now)


def test_a_process_that_came_to_live_under_our_name_is_not_resumed() -> None:
    client = Client(Log())
    client.log.write(beat("py", 1, 5))
    client.read()
    holding = client.want()
    client.settle()
    assert not holding.held(client.now)
    assert client.log.said("py") == ["Heartbeat 5"]


def test_a_heartbeat_of_before_a_doubt_settles_nothing_however_late_it_is_read() -> None:
    client, holding = holder()
    client.now += HB // 3 * S
    client.claimant.tick(client.now)
    (sent,) = client.claimant.take_appends()
    client.log.write(claim("go", -5))
    client.read()
    client.skip(11)
    client.log.values.append(sent.value)
    client.read()
    assert not holding.held(client.now)
    client.settle()
    assert holding.held(client.now)


def test_what_was_to_ask_first_and_failed_is_asked_again() -> None:
    client, holding = holder()
    client.skip(1.5 * HB)
    client.claimant.tick(client.now)
    for append in client.claimant.take_appends():
        assert append.value.startswith(b"ClaimingPartition")
        client.claimant.append_failed(append.seq, client.now)
    client.run(HB / 3)
    assert holding.held(client.now)


def test_heartbeats_that_failed_are_not_waited_for() -> None:
    client, holding = holder()
    for _ in range(4):
        client.now += HB // 10 * S
        client.claimant.commit(holding, client.now // S, client.now, flush=True)
        (append,) = client.claimant.take_appends()
        client.claimant.append_failed(append.seq, client.now)
    client.settle()
    client.run(2 * HB)
    assert holding.held(client.now)
    assert holding.stored_offset == 4 * (HB // 10)


def test_what_was_to_be_flushed_when_the_claim_ended_is_not() -> None:
    client, holding = holder()
    for offset in (1, 2, 3):
        client.claimant.commit(holding, offset, client.now, flush=True)
    sent = client.claimant.take_appends()
    client.log.write(beat("go", 1))
    client.read()
    assert holding.state is ClaimState.ENDED
    for append in sent:
        client.claimant.append_failed(append.seq, client.now)
    assert client.claimant.take_appends() == []


def test_a_flush_without_anything_new_sends_nothing() -> None:
    client, holding = holder()
    client.claimant.commit(holding, 5, client.now, flush=True)
    client.settle()
    client.claimant.commit(holding, 5, client.now, flush=True)
    assert client.send() == 0


def test_the_position_that_was_found_is_stored_already() -> None:
    client = Client(Log(beat("go", -5, 7), release("go", -4, 7)))
    holding = client.want()
    client.settle()
    assert (holding.next_offset, holding.stored_offset) == (7, 7)
    assert client.heard("stored") == 0


def test_records_that_were_read_too_late_now_and_then_cost_nothing() -> None:
    client, holding = holder()
    for _ in range(3 * MAX_LATE_RENEWALS):
        client.skip(1.2 * HB)
        client.claimant.tick(client.now)
        client.send()
        client.skip(1.2 * HB)
        client.read()
        assert holding.late_renewals == 1
        client.settle()
        assert holding.held(client.now)


def test_a_record_where_its_topic_is_not_decided_is_nothing_to_us() -> None:
    client, holding = holder()
    events: list[Event] = []
    apply(TextState(1, HB), 9, beat("go", 1).encode(), events)
    client.claimant.applied(1, events, client.now)
    assert holding.held(client.now)


def test_who_resumes_a_group_is_heard_at_once() -> None:
    client = Client(Log(f"ReleaseGroup/0/{T0}/i/adm/g//0/{T0 + 1000}"))
    holding = client.want()
    client.run(5)
    client.log.write(f"ReleaseGroup/0/{T0 + 5}/i/adm/g//0/{T0 + 5}")
    client.settle()
    client.run(1)
    assert holding.held(client.now)


def test_whoever_sets_positions_works_in_a_paused_group() -> None:
    client = Client(Log(f"ReleaseGroup/0/{T0}/i/adm/g//0/{T0 + 1000}"))
    client.claimant.heeds_pauses = False
    holding = client.want()
    client.settle()
    assert holding.held(client.now)


def test_a_claim_that_a_pause_ends_says_nothing_more() -> None:
    client, holding = holder()
    client.log.write(f"ReleaseGroup/0/{T0}/i/adm/g//0/{T0 + 1000}")
    client.settle()
    client.claimant.commit(holding, 5, client.now, flush=True)
    assert client.send() == 0
    client.run(HB)
    assert client.log.said("py")[-1] == "ReleasingPartition 5"
