"""Ranges as a claimant has them: asked for, taken over, split, given back (PROTOCOL §5.18)."""

from __future__ import annotations

from random import Random

import pytest

from marshal_py.errors import Closed, InvalidArgument, NotHeld
from marshal_py.protocol import messages as m
from marshal_py.protocol.claimant import ClaimState, RangeHolding
from tests.support.spec import spec
from tests.unit.marshal_py.protocol.test_claimant_spec import Client, Cluster, I, kinds


def ask(client: Client, count: int = 10, floor: int = 0) -> RangeHolding:
    holding: RangeHolding = client.do("want_range", "t", 0, floor, count)
    return holding


def granted(client: Client, count: int = 10) -> RangeHolding:
    """Ask for a range, and have it."""
    holding = ask(client, count)
    client.land()
    client.see()
    assert client.held(holding)
    return holding


def ranges(cluster: Cluster) -> list[tuple[int, int, str | None]]:
    """(start, end, holder) of each open range, by the whole log."""
    group = cluster.truth().groups["g"]
    found = group.open_ranges.of(("t", 0))
    return [(one.start, one.end, group.cells[one.cell].holder) for one in found]


# ------------------------------------------------------------------ asking


@spec("C-54")
def test_the_log_says_which_range_is_granted() -> None:
    cluster = Cluster()
    a, b = cluster.client("a"), cluster.client("b")
    first, second = ask(a, 10), ask(b, 5)
    a.land()
    b.land()
    a.see(10)
    b.see(10)
    assert (first.key, first.source, first.end, first.granted) == (("t/0@0", 0), ("t", 0), 10, 1)
    assert (second.key, second.source, second.end) == (("t/0@10", 0), ("t", 0), 15)
    assert a.held(first)
    assert b.held(second)
    assert first.next_offset == 0
    assert a.notices() == ["acquired"]


def test_the_lease_is_counted_from_before_the_asking() -> None:
    client = Cluster().client()
    client.at(0)
    holding = ask(client)
    client.land()
    client.see(0.5 * I)
    assert holding.lease_until_ns == client.claimant.lease_ns
    client.at(2 * I)  # no heartbeat got through
    assert holding.state is ClaimState.LAPSED


def test_heartbeats_renew_a_range_and_store_its_position() -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = granted(client)
    client.at(1)
    client.claimant.commit(holding, 4, client.now, flush=False)
    client.land()
    client.at(I + 1)
    client.land()
    client.see(I + 2)
    assert holding.stored_offset == 4
    assert client.held(holding, 2 * I)


@spec("C-54")
def test_what_was_asked_for_is_cut_to_what_was_asked_for() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.do("release", granted(client, 10))
    client.land()
    client.see()
    holding = granted(client, 4)
    assert (holding.key, holding.end) == (("t/0@0", 0), 4)
    assert ranges(cluster) == [(0, 4, "a"), (4, 10, None)]


@spec("C-55")
def test_who_was_refused_is_told_and_asks_no_more() -> None:
    cluster = Cluster()
    a, b = cluster.client("a"), cluster.client("b")
    a.hold()
    holding = ask(b)
    b.land()
    b.see(10)
    assert holding.state is ClaimState.ENDED
    assert holding.reason == "refused: still_held"
    assert b.notices() == ["lost"]
    b.at(5 * I)
    assert b.outbox() == []
    assert b.claimant.settled


@spec("C-55")
def test_an_unknown_outcome_that_turns_up_is_given_back_as_not_begun() -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = ask(client)
    (append,) = client.lose()
    client.do("append_failed", append.seq)
    assert holding.state is ClaimState.ENDED
    cluster.append(append.value)
    client.see(10)
    (release,) = client.outbox()
    assert isinstance(release, m.ReleasingPartition)
    assert (release.topic, release.next_offset) == ("t/0@0", -1)
    client.land()
    client.see(20)
    assert client.claimant.settled
    assert ranges(cluster) == [(0, 10, None)]


@spec("C-55")
def test_what_was_asked_for_and_is_not_wanted_any_more_is_given_back() -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = ask(client)
    client.do("release", holding)
    assert not client.claimant.settled
    client.land()
    client.see(10)
    client.land()
    client.see(20)
    assert client.claimant.settled
    assert ranges(cluster) == [(0, 10, None)]


def test_what_was_asked_for_before_the_log_was_lost_is_not_waited_for() -> None:
    client = Cluster().client()
    holding = ask(client)
    client.lose()
    client.claimant.truncated()
    client.made_anew(1, 10)
    assert holding.state is ClaimState.ENDED
    assert client.outbox() == []


def test_nothing_is_asked_of_a_log_that_is_being_read() -> None:
    client = Client(Cluster(), "a", "a1")
    holding = ask(client)
    assert holding.state is ClaimState.ENDED
    assert client.outbox() == []


def test_nothing_is_asked_for_by_who_leaves() -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = ask(client)
    client.do("leave")
    assert holding.state is ClaimState.ENDED
    with pytest.raises(Closed):
        ask(client)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("topic", ""),
        ("topic", "t" * (m.MAX_RANGE_TOPIC_LENGTH + 1)),
        ("partition", -1),
        ("floor", -1),
        ("floor", True),
        ("count", 0),
        ("count", 2**31),
    ],
)
def test_the_refusal_names_the_argument(argument: str, value: object) -> None:
    client = Cluster().client()
    good: dict[str, object] = {"topic": "t", "partition": 0, "floor": 0, "count": 1}
    with pytest.raises(InvalidArgument, match=f"^{argument} = "):
        client.do("want_range", *{**good, argument: value}.values())


# ------------------------------------------------------------------ whole partitions beside them


def test_a_partition_whose_ranges_are_open_is_waited_for() -> None:
    cluster = Cluster()
    a, b = cluster.client("a"), cluster.client("b")
    holding = granted(a)
    b.see(10)
    whole = b.want()
    assert b.outbox() == []
    assert b.notices() == ["waiting"]
    a.claimant.advance(holding, 10)
    holding.begun = True
    a.do("release", holding)
    a.land()
    b.see(20)
    b.at(I + 20)
    assert kinds(b.outbox()) == ["ClaimingPartition"]
    b.land()
    b.see(I + 30)
    assert b.held(whole)


# ------------------------------------------------------------------ taking over


@spec("C-54")
def test_a_range_is_taken_over_as_any_cell() -> None:
    cluster = Cluster()
    a, b = cluster.client("a"), cluster.client("b")
    granted(a)
    b.see(0)
    assert not b.claimant.is_stale("t/0@0", 0, 2 * I * 10**6)
    assert b.claimant.is_stale("t/0@0", 0, 2 * I * 10**6 + 1)
    b.at(2 * I + 1)
    holding = b.want("t/0@0", 0)
    b.land()
    b.see(2 * I + 2)
    assert isinstance(holding, RangeHolding)
    assert (holding.source, holding.end, holding.granted) == (("t", 0), 10, 2)
    assert b.held(holding)
    a.see(2 * I + 2)
    assert a.claimant.take_notices()[-1].detail == "taken over by b"


def test_a_name_like_that_of_a_range_may_be_any_cells() -> None:
    client = Cluster().client()
    holding = client.want("rooms/7@12", 0)
    client.land()
    client.see()
    assert client.held(holding)
    assert not isinstance(holding, RangeHolding)


@spec("C-60")
def test_a_range_that_was_done_meanwhile_is_not_claimed() -> None:
    cluster = Cluster()
    a, b = cluster.client("a"), cluster.client("b")
    holding = granted(a)
    b.see(0)
    b.at(2 * I + 1)
    taken = b.want("t/0@0", 0)
    holding.begun = True
    a.claimant.advance(holding, 10)
    a.do("release", holding)
    a.land()
    b.land()  # it was only slow: the takeover comes too late
    b.see(2 * I + 2)
    assert b.outbox() == []
    assert (taken.state, taken.reason) == (ClaimState.ENDED, "the range is done")
    assert ("t/0@0", 0) not in cluster.truth().groups["g"].cells


def test_what_this_client_holds_or_wants_is_not_stale() -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = granted(client)
    assert not client.claimant.is_stale("t/0@0", 0, 9 * I * 10**6)
    client.do("release", holding)
    assert not client.claimant.is_stale("t/0@0", 0, 9 * I * 10**6)
    assert not client.claimant.is_stale("t/0@77", 0, 9 * I * 10**6)
    client.land()
    client.see()
    client.claimant.take_notices()
    assert ranges(cluster) == [(0, 10, None)]
    assert not client.claimant.is_stale("t/0@0", 0, 9 * I * 10**6)


def test_a_grant_serves_who_waits_to_take_the_range_over() -> None:
    cluster = Cluster()
    a, b = cluster.client("a"), cluster.client("b")
    held = granted(a)
    b.see(0)
    waits = b.want("t/0@0", 0)
    a.do("release", held)
    a.land()
    asked = ask(b)
    b.land()
    b.see(10)
    assert waits.state is ClaimState.ENDED
    assert b.held(asked)
    assert asked.key == ("t/0@0", 0)


# ------------------------------------------------------------------ splitting, giving back


@spec("C-56")
def test_what_is_split_off_is_not_ours_from_then_on() -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = granted(client)
    client.do("split", holding, 4)
    assert holding.end == 4
    client.claimant.take_notices()
    client.land()
    client.see(10)
    assert client.notices() == ["split"]
    assert ranges(cluster) == [(0, 4, "a"), (4, 10, None)]
    with pytest.raises(InvalidArgument, match=r"^proposed_offset = 5 "):
        client.do("claim_messages", holding, 5)


@spec("C-56")
@pytest.mark.parametrize("at", [0, 10, 11, True])
def test_a_range_is_split_within_it_alone(at: int) -> None:
    client = Cluster().client()
    holding = granted(client)
    with pytest.raises(InvalidArgument, match=f"^at = {at} "):
        client.do("split", holding, at)


@spec("C-56")
def test_a_split_that_got_lost_is_made_good_by_the_release() -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = granted(client)
    client.do("split", holding, 4)
    (append,) = client.lose()
    client.claimant.take_notices()
    client.do("append_failed", append.seq)
    (notice,) = client.claimant.take_notices()
    assert (notice.kind, notice.detail) == ("split", "unknown outcome")
    holding.begun = True
    client.claimant.advance(holding, 4)
    client.do("release", holding)
    client.land()
    assert ranges(cluster) == [(0, 10, None)]
    other = granted(cluster.client("b"), 10)
    assert (other.next_offset, other.end, other.granted) == (4, 10, 1)


@spec("C-56")
def test_a_split_that_is_refused_is_told() -> None:
    cluster = Cluster()
    a, b = cluster.client("a"), cluster.client("b")
    holding = granted(a)
    a.at(3 * I)
    a.lose()  # heartbeats
    b.see(0)
    b.at(2 * I + 1)
    b.want("t/0@0", 0)
    b.land()
    holding.lease_until_ns = 4 * I * 10**6
    a.do("split", holding, 4)
    a.claimant.take_notices()
    a.land()
    a.see(3 * I)
    assert ("split", "wrong_epoch") in [(n.kind, n.detail) for n in a.claimant.take_notices()]


def test_a_range_that_is_over_cannot_be_split() -> None:
    client = Cluster().client()
    holding = granted(client)
    client.do("release", holding)
    with pytest.raises(NotHeld):
        client.do("split", holding, 4)


@spec("C-57")
@pytest.mark.parametrize(("begun", "says", "counts"), [(False, -1, 0), (True, 0, 1)])
def test_the_release_says_whether_anything_was_begun(begun: bool, says: int, counts: int) -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = granted(client)
    holding.begun = begun
    client.do("release", holding)
    (record,) = client.land()
    assert isinstance(record, m.ReleasingPartition)
    assert record.next_offset == says
    (found,) = cluster.truth().groups["g"].open_ranges.of(("t", 0))
    assert found.granted == counts


@spec("C-58")
def test_ranges_cost_no_heartbeats_of_their_own() -> None:
    cluster = Cluster()
    client = cluster.client()
    granted(client)
    for at_ms in range(0, 4 * I, 50):
        client.at(at_ms)
        holding = granted(client)
        holding.begun = True
        client.claimant.advance(holding, holding.end)
        client.do("release", holding)
        client.land()
        client.see()
    records = [m.decode(value) for value, _ in cluster.records[0]]
    assert kinds(records).count("Heartbeat") == 3


# ------------------------------------------------------------------ whatever members do


@pytest.mark.parametrize("seed", range(15))
def test_no_message_has_two_holders_whatever_members_do(seed: int) -> None:
    """Members ask, split, work, give back, are cut off, fall silent, and take over.

    Appends reach the log late, or never; members read it late. Who may act on a message, by its own
    clock, is the only one; and in the end each message was somebody's.
    """
    random, cluster, now = Random(seed), Cluster(), 0
    clients = [cluster.client(name) for name in "abc"]
    held: dict[Client, list[RangeHolding]] = {client: [] for client in clients}
    begun: dict[int, int] = {}
    """Message → the epoch under which it was begun last."""

    def check() -> None:
        owner: dict[int, Client] = {}
        for client in clients:
            for holding in held[client]:
                if client.held(holding, now):
                    for offset in range(max(holding.next_offset, 0), holding.end):
                        assert owner.setdefault(offset, client) is client, (seed, now, offset)

    def act(client: Client) -> None:
        mine = [holding for holding in held[client] if client.held(holding)]
        deed = random.random()
        if deed < 0.25 and len(held[client]) < 4:
            held[client].append(ask(client, random.randint(1, 6)))
        elif deed < 0.65 and mine:
            holding = random.choice(mine)
            holding.begun = True
            at = holding.next_offset
            if at < holding.end:
                assert begun.get(at, -1) <= holding.epoch
                begun[at] = holding.epoch
                client.claimant.advance(holding, at + 1)
            if holding.next_offset >= holding.end:
                client.do("release", holding)
        elif deed < 0.75 and mine:
            holding = random.choice(mine)
            if holding.next_offset + 1 < holding.end:
                client.do("split", holding, holding.next_offset + 1)
        elif deed < 0.8 and mine:
            client.do("release", random.choice(mine))
        elif deed < 0.9:
            group = client.world.group("g")
            for each in group.open_ranges.of(("t", 0)) if group is not None else ():
                if client.claimant.is_stale(*each.cell, client.now):
                    taken = client.want(*each.cell)
                    assert isinstance(taken, RangeHolding)
                    held[client].append(taken)
                    break
        held[client] = [h for h in held[client] if h.state is not ClaimState.ENDED]

    for _ in range(600):
        now += random.randint(0, I // 4)
        client = random.choice(clients)
        client.at(now)
        act(client)
        check()
        if random.random() < 0.7:
            client.land()
        elif random.random() < 0.2:
            client.lose()
        if random.random() < 0.6:
            client.see(now)
        check()
    assert len(begun) > 20


@spec("C-37")
def test_a_position_that_is_refused_for_what_it_is_is_tried_for_a_lease() -> None:
    """Its range ends before it. What is tried without end would never be given back."""
    cluster = Cluster()
    client = cluster.client()
    holding = granted(client, 10)
    client.do("set_position", holding, 11)
    tried = 0
    for ms in range(0, 3 * I, 50):
        client.at(ms)
        tried += kinds(client.land()).count("SetPosition")
        client.see()
    assert tried > 2
    assert ranges(cluster) == [(0, 10, None)]
    assert holding.state is ClaimState.ENDED
