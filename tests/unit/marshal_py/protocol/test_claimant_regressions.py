"""One test for each bug of the claimant that the simulator found: it fails without the fix."""

from __future__ import annotations

import pytest

from marshal_py.protocol import unread_appends
from marshal_py.protocol.claimant import ClaimState
from marshal_py.protocol.messages import (
    ReleaseGroup,
    ReleasingPartition,
    ResumeGroup,
    SetPosition,
    decode,
)
from tests.support.claimant_harness import INTERVAL_MS, LEASE_MS, Bench, Client
from tests.support.spec import spec

PATIENCE_MS = 10_000


def pause(bench: Bench) -> None:
    bench.paused_at = bench.write(ReleaseGroup(2, "op", "op.1", "g", 1, 0))


def resume(bench: Bench) -> None:
    bench.write(ResumeGroup(2, "op", "op.1", "g", 2, bench.paused_at))


def test_late_answer_to_a_release_leaves_the_next_claim_of_the_same_cell_alone() -> None:
    # seed 919: the old holding, when it ended, took the new one off the list of those to renew
    bench = Bench()
    a = bench.client("a")
    first = a.get()
    a.release(first)
    late = a.appends()
    pause(bench)
    a.read()
    version = a.world.version("g", "t", 0)
    bench.write(SetPosition(2, "op", "op.1", "g", 3, "t", 0, 7, version))
    resume(bench)
    second = a.want()
    a.turn()
    assert a.held(second)
    a.put(late)
    a.turn()
    assert first.state is ClaimState.ENDED
    a.pass_time(3 * INTERVAL_MS)
    assert a.held(second)


def test_claim_given_up_after_a_failed_append_does_not_keep_the_client_from_leaving() -> None:
    # seed 51: `settled` waited for ever for the claim that was never written
    bench = Bench()
    a = bench.client("a")
    holding = a.want()
    a.fail(a.appends())
    a.release(holding)
    a.claimant.leave(bench.now_ns)
    a.turn()
    assert a.claimant.settled


def test_failed_claim_that_turns_up_late_is_recognised() -> None:
    bench = Bench()
    a = bench.client("a")
    holding = a.want()
    claim = a.appends()
    a.fail(claim)
    a.put(claim)
    a.read()
    assert a.held(holding)
    assert holding.lease_until_ns == (bench.now_ms + LEASE_MS) * 1_000_000


def test_pause_of_a_claim_that_nobody_was_told_of_is_no_news() -> None:
    # seed 252: "paused" came before "acquired", and then nothing: the user waited for ever
    bench = Bench()
    a = bench.client("a")
    holding = a.want()
    a.send()
    bench.wait(LEASE_MS)
    pause(bench)
    a.turn()
    assert set(a.notices(holding)) == {"waiting"}
    cell = a.cell()
    assert cell is not None
    assert not cell.held
    resume(bench)
    a.turn()
    assert a.notices(holding) == ["acquired"]


def test_claim_lost_before_it_was_held_is_not_stuck_in_a_pause_that_is_over() -> None:
    bench = Bench()
    a, b = bench.client("a"), bench.client("b")
    holding = a.want()
    a.send()
    bench.wait(LEASE_MS)
    pause(bench)
    a.read()
    resume(bench)
    b.read()
    bench.wait(3 * INTERVAL_MS)
    other = b.get()
    a.read()
    b.release(other)
    b.turn()
    a.turn()
    assert a.held(holding)


def test_fenced_instance_claims_nothing_even_if_it_had_not_been_told_of_a_claim() -> None:
    # seed 356: an accepted claim whose lease was over already went back to waiting, and claimed
    bench = Bench()
    old = bench.client("a", "old")
    told, untold = old.get("t", 0), old.want("t", 1)
    old.send()
    bench.wait(3 * INTERVAL_MS)
    old.read()
    assert untold.state is ClaimState.LAPSED
    twin = bench.client("a", "new")
    twin.want("t", 0)
    twin.want("t", 1)
    twin.turn()
    old.turn()
    assert old.claimant.duplicate_instance_id == "a.new"
    assert [told.state, untold.state] == [ClaimState.ENDED] * 2
    assert old.notices().count("duplicate_client_id") == 1
    for partition in (0, 1):
        twin.release(twin.want("t", partition))
    twin.turn()
    old.pass_time(4 * INTERVAL_MS)
    assert old.claimant.holdings() == []


def test_instance_that_loses_to_its_twin_what_it_had_not_been_told_of_is_fenced_too() -> None:
    bench = Bench()
    old = bench.client("a", "old")
    holding = old.want()
    old.send()
    bench.wait(3 * INTERVAL_MS)
    old.read()
    twin = bench.client("a", "new")
    twin.get()
    old.turn()
    assert old.claimant.duplicate_instance_id == "a.new"
    assert "duplicate_client_id" in old.notices()
    assert holding.state is ClaimState.ENDED


def test_fenced_instance_claims_nothing_after_a_pause_either() -> None:
    # seed 1718164: what it had not been told of, and its twin had not taken, waited for the end
    # of the pause, and was claimed
    bench = Bench()
    old = bench.client("a", "old")
    told, untold = old.get("t", 0), old.want("t", 1)
    old.send()
    bench.wait(3 * INTERVAL_MS)
    twin = bench.client("a", "new")
    twin.get("t", 0)
    pause(bench)
    old.read()
    assert old.claimant.duplicate_instance_id == "a.new"
    assert [told.state, untold.state] == [ClaimState.ENDED] * 2
    resume(bench)
    old.pass_time(4 * INTERVAL_MS)
    assert old.claimant.holdings() == []
    cell = old.world.states[0].cells["g", "t", 1]
    assert not cell.held


def test_every_holding_that_was_asked_for_ends_with_exactly_one_notice() -> None:
    bench = Bench()
    a = bench.client("a")
    holding = a.want()
    a.send()
    bench.wait(LEASE_MS)
    a.read()
    a.release(holding)
    a.turn()
    assert a.notices(holding) == ["released"]


def test_claim_that_turned_up_is_not_claimed_again_before_it_is_heard_of() -> None:
    # One poll brings two records. While the first one's events were told, the timers ran, and found
    # a cell held by this very instance, which had not heard of it yet.
    bench = Bench()
    a = bench.client("a", member=True)
    a.turn()
    holding = a.want("t", 0)
    claim = a.appends()
    a.fail(claim)
    bench.wait(INTERVAL_MS)
    a.put(claim)
    bench.write(ResumeGroup(2, "op", "op.1", "g", 1, 0))
    a.turn()
    assert a.notices(holding) == ["acquired"]
    assert a.held(holding)


def test_a_refusal_is_acted_on_when_all_that_was_read_with_it_is_heard_of() -> None:
    # Seed 6016867. A release that was sent twice is refused the second time. The claim that follows
    # it was given up as unknown, and turned up in the same poll: it was claimed from oneself again.
    bench = Bench()
    a = bench.client("a")
    holding = a.get()
    a.release(holding)
    first = a.appends()
    a.put(first)
    a.fail(first)
    bench.wait(INTERVAL_MS)
    second = [
        append for append in a.appends() if isinstance(decode(append.value), ReleasingPartition)
    ]
    again = a.want()
    a.read()
    claim = a.appends()
    a.fail(claim)
    a.put([*second, *claim])
    a.turn()
    assert a.notices(again) == ["acquired"]
    assert a.held(again)


def test_heartbeat_forgotten_in_a_flood_does_not_block_the_next_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unread_appends, "MAX_UNREAD", 4)
    bench = Bench()
    a = bench.client("a")
    holding = a.get()
    for _ in range(2):
        bench.wait(INTERVAL_MS)
        a.appends()  # two heartbeats that nobody ever answers
    for n in range(6):
        a.claimant.claim_messages(holding, n + 1, bench.now_ns)
    bench.wait(INTERVAL_MS)
    a.turn()
    assert a.held(holding)


# A log that is truncated before this client has read that far: nothing tells it, and what it was
# waiting for never comes (seed 41459: two heartbeats were in flight for ever, no third was sent).


@spec("C-33")
def test_heartbeats_that_are_never_read_do_not_end_the_heartbeats() -> None:
    bench = Bench()
    a = bench.client("a", member=True)
    holding = a.get()
    for _ in range(2):
        bench.wait(INTERVAL_MS)
        a.appends()
    a.pass_time(int(PATIENCE_MS + INTERVAL_MS), step_ms=100)
    assert a.held(holding)
    assert a.notices(holding)[-1] == "regained"


@spec("C-33")
def test_claim_that_is_never_read_is_made_again() -> None:
    bench = Bench()
    a = bench.client("a")
    holding = a.want()
    a.appends()
    a.pass_time(PATIENCE_MS - 200, step_ms=100)
    assert holding.state is ClaimState.CLAIMING
    a.pass_time(400, step_ms=100)
    assert a.held(holding)


@spec("C-33")
def test_release_that_is_never_read_is_made_again() -> None:
    bench = Bench()
    a = bench.client("a")
    holding = a.get()
    a.claimant.leave(bench.now_ns)
    a.appends()
    a.pass_time(PATIENCE_MS + 200, step_ms=100)
    assert holding.state is ClaimState.ENDED
    assert a.claimant.settled


@spec("C-33")
def test_messages_whose_claim_is_never_read_are_not_claimed() -> None:
    bench = Bench()
    a = bench.client("a")
    holding = a.get()
    seq = a.claimant.claim_messages(holding, 5, bench.now_ns)
    late = a.appends()
    a.notices()
    a.pass_time(PATIENCE_MS + 200, step_ms=100)
    assert a.notices(holding) == ["messages_rejected"]
    assert (a.heard[0].number, a.heard[0].detail) == (seq, "unknown outcome")
    a.put(late)
    a.turn()
    assert a.notices(holding) == []
    # whole clients, seed 49: the consumer asked in vain, ever after, whether they were its own
    assert holding.claimed_offset == 5


def test_patience_leaves_nothing_behind() -> None:
    bench = Bench()
    a = bench.client("a")
    holding = a.want()
    for _ in range(5):
        a.fail(a.appends())
        bench.wait(100)
    a.turn()
    a.pass_time(2 * PATIENCE_MS, step_ms=500)
    assert a.held(holding)
    assert len(a.claimant._sent) == 0


def test_nothing_is_held_any_more_by_a_client_that_keeps_its_claims_for_the_next_instance() -> None:
    # A heartbeat, or a claim, that was on the way when the client stopped gave the lease back.
    bench = Bench()
    a = bench.client("a")
    held, claiming = a.get("t", 0), a.want("t", 1)
    bench.wait(INTERVAL_MS)
    on_the_way = a.appends()
    a.claimant.keep(bench.now_ns)
    a.put(on_the_way)
    a.turn()
    assert not a.held(held)
    assert not a.held(claiming)


# A client that reads the log later than its leases last. It held nothing, and its heartbeats kept
# everybody else from taking over, for as long as it was slow.


class Slow:
    """Runs a client that writes at once and reads `lag_ms` late."""

    def __init__(self, bench: Bench, client: Client, lag_ms: int) -> None:
        self.bench, self.client, self.lag_ms = bench, client, lag_ms

    def turn(self) -> None:
        client, log = self.client, self.bench.log.partitions[0]
        old = [ms for ms in log.stamps_ms if ms <= self.bench.now_ms - self.lag_ms]
        behind = len(old) - client.world.states[0].next_offset
        if behind > 0:
            client.read(behind)
        client.send()


@spec("C-34")
@pytest.mark.parametrize("lag_ms", [1_900, 2_000, 2_500, 3_000])
def test_client_that_reads_too_late_to_hold_anything_gives_back_what_it_has(lag_ms: int) -> None:
    bench = Bench()
    a, b = bench.client("a"), bench.client("b")
    slow = Slow(bench, a, lag_ms)
    holding = a.get()
    waiting = b.want()
    done = 0
    for _ in range(10 * INTERVAL_MS // 10):
        bench.wait(10)
        if holding.state is not ClaimState.ENDED:  # it goes on working as long as nobody tells it
            done += 1
            a.claimant.commit(holding, done, bench.now_ns, flush=False)
        slow.turn()
        b.turn()
        if b.held(waiting):
            break
    assert b.held(waiting)
    assert waiting.next_offset == done
    for _ in range(4 * INTERVAL_MS // 10):
        bench.wait(10)
        slow.turn()
        b.turn()
    assert a.notices(holding)[-1] == "lost"
    assert "late" in str(holding.reason)
    assert b.held(waiting)


@spec("C-34")
def test_one_long_pause_is_not_taken_for_slow_reading() -> None:
    bench = Bench()
    a = bench.client("a")
    holding = a.get()
    for _ in range(5):
        for _ in range(2):  # two heartbeats on the way are read after a pause
            bench.wait(INTERVAL_MS)
            a.send()
        bench.wait(3 * INTERVAL_MS)
        a.turn()
        assert a.held(holding)


@spec("C-34")
def test_slow_reader_goes_on_wanting_what_it_was_not_told_of() -> None:
    bench = Bench()
    a = bench.client("a")
    slow = Slow(bench, a, 2_500)
    holding = a.want()
    for _ in range(30 * INTERVAL_MS // 10):
        bench.wait(10)
        slow.turn()
    assert not holding.acquired
    assert holding.reason is None
    records = [decode(record.value) for record in bench.log.read(0) if record.value]
    released: set[int] = set()
    for record in records:
        if isinstance(record, ReleasingPartition):
            released.add(record.epoch)
    assert len(released) > 1
    cell = a.cell()
    a.pass_time(3 * INTERVAL_MS)
    assert a.held(holding)
    assert cell is not None
    assert holding.epoch > 0


def test_who_has_stopped_claiming_does_not_begin_again_after_a_pause() -> None:
    """It held what it was never told of: accepted too late, ended by the pause, wanted still."""
    bench = Bench()
    a = bench.client("a")
    holding = a.want()
    a.send()
    bench.wait(LEASE_MS)
    a.read()
    assert (holding.state, holding.acquired) == (ClaimState.LAPSED, False)
    a.claimant.stop_claiming("the log has another number of partitions")
    pause(bench)
    a.turn()
    bench.wait(2 * LEASE_MS)
    a.turn()
    resume(bench)
    a.turn()
    cell = a.cell()
    assert cell is not None
    assert not cell.held
