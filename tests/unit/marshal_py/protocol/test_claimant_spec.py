"""The claimant's sentences of specs/PROTOCOL.md (§5, §7, §8), one by one, on a log without I/O.

`Cluster` is a log in memory. A record that a client appends is *sent* when the client asks for it,
*in the log* when the test says so, and *seen* by each client when the test says so: the three
moments that the lease argument turns on.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marshal_py.client.leader_election import leader_topic
from marshal_py.errors import Closed, DuplicateClientId, InvalidArgument, MarshalError
from marshal_py.protocol import events as ev
from marshal_py.protocol import messages as m
from marshal_py.protocol.claimant import Append, Claimant, ClaimState, Holding
from marshal_py.protocol.heartbeat_schedule import MAX_UNREAD_HEARTBEATS
from marshal_py.protocol.rationalizer import PartitionState, apply
from marshal_py.protocol.world import MS, Observer, Timeline, World
from tests.support.spec import spec

I = 1000  # noqa: E741
"""The interval in milliseconds; the margin is a tenth of it."""


class Cluster:
    """The log of every coordination partition, with append times where the test gives them."""

    def __init__(self, partitions: int = 1) -> None:
        self.records: list[list[tuple[bytes, int | None]]] = [[] for _ in range(partitions)]
        self.clients: list[Client] = []

    def append(self, record: m.Message | bytes, p: int = 0, stamp_ms: int | None = None) -> int:
        """Put a record into the log, and return its offset."""
        value = record if isinstance(record, bytes) else m.encode(record)
        self.records[p].append((value, stamp_ms))
        return len(self.records[p]) - 1

    def truth(self, p: int = 0) -> PartitionState:
        """The state after the whole log."""
        state = PartitionState(p)
        for offset, (value, _) in enumerate(self.records[p]):
            apply(state, offset, value)
        return state

    def client(self, client_id: str = "a", *, at_ms: int = 0, **options: Any) -> Client:
        """Start a client that has caught up at `at_ms`."""
        client = Client(self, client_id, f"{client_id}{len(self.clients)}", **options)
        self.clients.append(client)
        client.catch_up(at_ms)
        return client


class Client:
    """A claimant with its world, and a clock that the test moves."""

    def __init__(self, cluster: Cluster, client_id: str, instance_id: str, **options: Any) -> None:
        count = len(cluster.records)
        self.cluster = cluster
        self.world = World(count)
        self.observers = [Observer() for _ in range(count)]
        self.now = 0
        self.read = [0] * count
        self.sent: list[Append] = []
        settings: dict[str, Any] = {
            "client_id": client_id,
            "instance_id": instance_id,
            "group_id": "g",
            "interval_ms": I,
            "margin_ms": I // 10,
            "member": False,
            "cold_start_skew_ms": None,
            **options,
        }
        self.claimant = Claimant(self.world, self.observers, **settings)

    def at(self, ms: float) -> Client:
        """Let the time be `ms`, and do what is due."""
        self.now = int(ms * MS)
        self.claimant.tick(self.now)
        self._take()
        return self

    def want(self, topic: str = "t", partition: int = 0) -> Holding:
        holding = self.claimant.want(topic, partition, self.now)
        self._take()
        return holding

    def do(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call the claimant with the present time at the end."""
        result = getattr(self.claimant, method)(*arguments, self.now, **options)
        self._take()
        return result

    def catch_up(self, at_ms: float) -> None:
        self.now = int(at_ms * MS)
        for p, records in enumerate(self.cluster.records):
            self._fold(p, None)
            self.observers[p].caught_up_at_offset = len(records)
            self.observers[p].seen.note(len(records) - 1, self.now)
            self.claimant.caught_up(p, self.now)
        self._take()

    def made_anew(self, partitions: int, at_ms: float) -> None:
        """Find the log empty, with so many partitions; `truncated` was said before."""
        self.cluster.records = [[] for _ in range(partitions)]
        self.forget()
        self.claimant.reshape()
        self.catch_up(at_ms)

    def forget(self) -> None:
        """Have read nothing of the log; `truncated` was said before."""
        partitions = len(self.cluster.records)
        self.world.states[:] = [PartitionState(p) for p in range(partitions)]
        self.observers[:] = [Observer() for _ in range(partitions)]
        self.read = [0] * partitions

    def _fold(self, p: int, events: list[ev.Event] | None) -> None:
        records = self.cluster.records[p]
        for offset in range(self.read[p], len(records)):
            value, stamp_ms = records[offset]
            apply(self.world.states[p], offset, value, events)
            if stamp_ms is not None:
                self.observers[p].stamped.note(offset, stamp_ms)
        self.read[p] = len(records)

    def see(self, at_ms: float | None = None) -> Client:
        """Read everything that is in the log."""
        if at_ms is not None:
            self.now = int(at_ms * MS)
        for p, records in enumerate(self.cluster.records):
            events: list[ev.Event] = []
            if self.read[p] < len(records):
                self._fold(p, events)
                self.observers[p].seen.note(len(records) - 1, self.now)
                self.claimant.applied(p, events, self.now)
        self.claimant.tick(self.now)
        self._take()
        return self

    def _take(self) -> None:
        self.sent += self.claimant.take_appends()

    def outbox(self) -> list[m.Message]:
        """What was sent and is not in the log yet."""
        return [m.decode(append.value) for append in self.sent]

    def land(self, stamp_ms: int | None = None) -> list[m.Message]:
        """Let everything that was sent reach the log."""
        landed = self.outbox()
        for append in self.sent:
            self.cluster.append(append.value, append.coordinator, stamp_ms)
        self.sent = []
        return landed

    def lose(self) -> list[Append]:
        """Take away what was sent: it is not in the log."""
        lost, self.sent = self.sent, []
        return lost

    def held(self, holding: Holding, at_ms: float | None = None) -> bool:
        return holding.held(self.now if at_ms is None else int(at_ms * MS))

    def notices(self) -> list[str]:
        return [notice.kind for notice in self.claimant.take_notices()]

    def hold(self, at_ms: float = 0) -> Holding:
        """Claim t/0 and go as far as having read that it was accepted."""
        self.at(at_ms)
        holding = self.want()
        self.land()
        self.see(at_ms)
        assert self.held(holding)
        return holding


def kinds(records: list[m.Message]) -> list[str]:
    return [type(record).__name__ for record in records]


# ------------------------------------------------------------------ §5.1 observing


@spec("C-1")
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 30)), min_size=1, max_size=60),
    st.integers(1, 20),
    st.integers(10, 200),
)
def test_a_time_is_never_noted_too_early(
    steps: list[tuple[int, int]], resolution: int, horizon: int
) -> None:
    timeline = Timeline(resolution, horizon)
    true: dict[int, int] = {}
    offset, time = -1, 0
    for more, later in steps:
        time += later
        for _ in range(more):
            offset += 1
            true[offset] = time
        timeline.note(offset, time)
        for known, seen in true.items():
            noted = timeline.at(known)
            assert noted is not None
            assert noted >= seen
    assert timeline.at(offset + 1) is None


@spec("C-2")
def test_fresh_unknown_stale() -> None:
    cluster = Cluster()
    cluster.client("a").hold()
    client = Client(cluster, "b", "b1")
    client._fold(0, None)
    observer = client.observers[0]
    version = client.world.version("g", "t", 0)
    assert observer.liveness(version, I, 10**18) == "unknown"
    client.catch_up(500)
    looks = [
        (500, "fresh"),
        (1499, "fresh"),
        (1500, "unknown"),
        (2500, "unknown"),
        (2501, "stale"),
    ]
    for at_ms, expected in looks:
        assert observer.liveness(version, I, at_ms * MS) == expected


@spec("C-2")
def test_liveness_goes_by_the_interval_of_the_holder() -> None:
    cluster = Cluster()
    cluster.client("a", interval_ms=10 * I, margin_ms=I).hold()
    client = cluster.client("b")
    version = client.world.version("g", "t", 0)
    interval_ms = client.world.states[0].cells["g", "t", 0].interval_ms
    assert client.observers[0].liveness(version, interval_ms, 9 * I * MS) == "fresh"
    assert client.observers[0].liveness(version, interval_ms, 19 * I * MS) == "unknown"
    assert client.observers[0].liveness(version, interval_ms, 21 * I * MS) == "stale"


# ------------------------------------------------------------------ §5.2 claiming


@spec("C-3")
def test_no_claim_before_catching_up() -> None:
    client = Client(Cluster(), "a", "a1")
    client.want()
    client.at(100 * I)
    assert client.outbox() == []
    client.catch_up(100 * I)
    assert kinds(client.outbox()) == ["ClaimingPartition"]


@spec("C-4", "C-6")
def test_a_free_cell_is_claimed_at_once_with_its_version() -> None:
    cluster = Cluster()
    first = cluster.client("a")
    first.want()
    (record,) = first.outbox()
    assert isinstance(record, m.ClaimingPartition)
    assert (record.topic, record.partition, record.interval_ms) == ("t", 0, I)
    assert record.expected_version == -1
    first.land()
    first.see()
    first.do("release", first.want())
    first.land()
    second = cluster.client("b")
    second.want()
    (record,) = second.outbox()
    assert isinstance(record, m.ClaimingPartition)
    assert record.expected_version == cluster.truth().cells["g", "t", 0].version


@spec("C-5")
def test_a_held_cell_is_not_claimed_before_its_holder_is_stale() -> None:
    cluster = Cluster()
    holder = cluster.client("a", interval_ms=3 * I)
    holder.hold()
    challenger = cluster.client("b", at_ms=700)
    challenger.want()
    challenger.at(700 + 6 * I)
    assert challenger.outbox() == []
    challenger.at(700 + 6 * I + 1)
    assert kinds(challenger.outbox()) == ["ClaimingPartition"]


@spec("C-5")
def test_every_renewal_starts_the_wait_again() -> None:
    cluster = Cluster()
    holder = cluster.client("a")
    holder.hold()
    challenger = cluster.client("b")
    challenger.want()
    for at_ms in (I, 2 * I, 3 * I):
        holder.at(at_ms)
        holder.land()
        holder.see(at_ms)
        challenger.see(at_ms + 300)
    challenger.at(3 * I + 300 + 2 * I)
    assert challenger.outbox() == []
    challenger.at(3 * I + 300 + 2 * I + 20)  # an observer may note a moment late, by its resolution
    (record,) = challenger.outbox()
    assert isinstance(record, m.ClaimingPartition)
    assert record.expected_version == cluster.truth().version("g", "t", 0)
    assert record.expected_version > cluster.truth().cells["g", "t", 0].version


@spec("C-7")
def test_no_claim_in_a_paused_group() -> None:
    cluster = Cluster()
    cluster.append(m.ReleaseGroup(2, "o", "o", "g", 0, 0))
    client = cluster.client()
    client.want()
    client.at(100 * I)
    assert client.outbox() == []
    cluster.append(m.ResumeGroup(2, "o", "o", "g", 1, 0))
    client.see()
    assert kinds(client.outbox()) == ["ClaimingPartition"]


@spec("C-8")
def test_the_log_decides_a_race() -> None:
    cluster = Cluster()
    a, b = cluster.client("a"), cluster.client("b")
    of_a, of_b = a.want(), b.want()
    b.land()
    a.land()
    assert not a.held(of_a)
    assert not b.held(of_b)
    a.see()
    b.see()
    assert b.held(of_b)
    assert of_b.epoch == 0
    assert not a.held(of_a)
    assert of_a.state is ClaimState.WAITING


@spec("C-9")
def test_an_accepted_claim_is_followed_by_a_heartbeat_at_once() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.hold()
    (beat,) = client.outbox()
    assert isinstance(beat, m.Heartbeat)
    assert (beat.positions, beat.metadata) == ([], [])
    client.land()
    client.see(5)
    assert client.world.version("g", "t", 0) == 1


# ------------------------------------------------------------------ §5.3 cold start


@spec("C-10")
@pytest.mark.parametrize(("later_ms", "takes"), [(2 * I + 1_050, True), (2 * I + 1_000, False)])
def test_a_cold_start_goes_by_append_times(later_ms: int, takes: bool) -> None:
    cluster = Cluster()
    holder = cluster.client("a")
    holder.want()
    holder.land(stamp_ms=1_000_000)
    client = cluster.client("b", cold_start_skew_ms=1000)
    client.want()
    client.at(1)
    assert kinds(client.outbox()) == ["Heartbeat"]
    client.land(stamp_ms=1_000_000 + later_ms)
    client.see(2)
    assert kinds(client.outbox()) == (["ClaimingPartition"] if takes else [])


@spec("C-10")
def test_a_cold_start_does_not_overlook_a_renewal_behind_its_heartbeat() -> None:
    cluster = Cluster()
    holder = cluster.client("a")
    holder.want()
    holder.land(stamp_ms=0)
    holder.see()
    client = cluster.client("b", cold_start_skew_ms=0)
    client.want()
    client.at(1)
    client.land(stamp_ms=100 * I)
    holder.land(stamp_ms=100 * I + 1)
    client.see(2)
    assert client.outbox() == []


@spec("C-11")
def test_a_cold_start_by_append_times_can_be_switched_off() -> None:
    cluster = Cluster()
    holder = cluster.client("a")
    holder.want()
    holder.land(stamp_ms=0)
    client = cluster.client("b", cold_start_skew_ms=None)
    client.want()
    cluster.append(b"", stamp_ms=10**9)
    client.see(1)
    assert client.outbox() == []


@spec("C-11")
def test_without_append_times_a_cold_start_waits() -> None:
    cluster = Cluster()
    holder = cluster.client("a")
    holder.want()
    holder.land()
    client = cluster.client("b", cold_start_skew_ms=0)
    client.want()
    client.at(1)
    client.land()
    client.see(2)
    assert client.outbox() == []


# ------------------------------------------------------------------ §5.4 the lease

LEASE = 2 * I - I // 10


@spec("C-12")
def test_the_lease_is_measured_from_before_the_sending() -> None:
    client = Cluster().client()
    holding = client.want()  # sent at 0
    client.at(300)
    client.land()  # in the log at 300
    client.see(700)  # seen at 700
    assert client.held(holding)
    assert client.held(holding, LEASE - 0.001)
    assert not client.held(holding, LEASE)


@spec("C-13")
def test_a_heartbeat_renews_when_it_is_read_and_from_when_it_was_sent() -> None:
    client = Cluster().client()
    holding = client.hold()
    client.land()
    client.see(1)
    client.at(I)
    assert kinds(client.outbox()) == ["Heartbeat"]
    assert not client.held(holding, LEASE), "sent is not renewed"
    client.land()
    assert not client.held(holding, LEASE), "in the log is not renewed"
    client.see(I + 500)
    assert client.held(holding, I + LEASE - 0.001)
    assert not client.held(holding, I + LEASE)


@spec("C-13")
def test_a_rejected_heartbeat_renews_nothing() -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = client.hold()
    client.land()
    client.see(1)
    client.at(I)
    cluster.append(m.ClaimingPartition(2, "b", "b1", "g", 0, "t", 0, I, 1))
    client.land()
    client.see(I + 1)
    assert not client.held(holding, I + 2)


@spec("C-14")
def test_a_claim_of_messages_renews_nothing() -> None:
    client = Cluster().client()
    holding = client.hold()
    client.lose()
    client.at(900)
    client.do("claim_messages", holding, 5)
    client.land()
    client.see(901)
    assert holding.claimed_offset == 5
    assert client.held(holding, LEASE - 1)
    assert not client.held(holding, LEASE)


@spec("C-15")
@pytest.mark.parametrize("sender", [("a", "an-earlier-instance"), ("b", "b1")])
def test_records_of_another_instance_renew_nothing(sender: tuple[str, str]) -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = client.hold()
    (beat,) = client.outbox()
    client.lose()
    # The same seq and claim, so that nothing but the sender tells them apart.
    cluster.append(m.Heartbeat(2, *sender, "g", beat.seq, I, 1, [holding.epoch, 7]))
    client.see(1000)
    assert cluster.truth().version("g", "t", 0) == 0
    assert cluster.truth().cells["g", "t", 0].next_offset == -1
    assert client.held(holding, LEASE - 1)
    assert not client.held(holding, LEASE)


@spec("C-16")
@pytest.mark.parametrize("margin_ms", [-1, 0, I, I + 1])
def test_the_margin_lies_between_zero_and_the_interval(margin_ms: int) -> None:
    with pytest.raises(InvalidArgument, match="margin_ms"):
        Client(Cluster(), "a", "a1", margin_ms=margin_ms)


@given(
    st.integers(0, 500),
    st.integers(0, 500),
    st.integers(0, 400),
    st.integers(0, 400),
)
@spec("C-5", "C-12", "C-13", "C-41")
def test_the_lease_ends_before_a_takeover_whatever_the_delays(
    land_ms: int, see_ms: int, challenger_ms: int, beat_ms: int
) -> None:
    """The argument of §5.4 with two clocks of equal rate, and delays at every step."""
    cluster = Cluster()
    holder = cluster.client("a")
    challenger = cluster.client("b")
    holding = holder.want()
    holder.at(land_ms)
    holder.land()
    holder.see(land_ms + see_ms)
    beat_sent_ms = land_ms + see_ms
    holder.at(beat_sent_ms)
    holder.land()
    holder.see(beat_sent_ms + beat_ms)
    challenger.see(beat_sent_ms + challenger_ms)
    challenger.want()
    holder.lose()
    deadline_ns = challenger.claimant.next_deadline_ns()
    assert deadline_ns is not None
    challenger.at(deadline_ns / MS)
    while not challenger.outbox():
        deadline_ns = challenger.claimant.next_deadline_ns()
        assert deadline_ns is not None
        challenger.at(deadline_ns / MS + 0.001)
    # What is left over is for clocks of which one runs faster (A2).
    assert holding.lease_until_ns + I // 10 * MS <= challenger.now


# ------------------------------------------------------------------ §5.5 renewing


@spec("C-17")
def test_one_heartbeat_per_interval_renews_everything() -> None:
    cluster = Cluster(2)
    client = cluster.client()
    holdings = [client.want("t", partition) for partition in range(20)]
    client.land()
    client.see(1)
    client.lose()
    client.at(I + 1)
    assert kinds(client.outbox()) == ["Heartbeat"]
    client.land()
    client.see(I + 2)
    assert all(client.held(holding, I + 1 + LEASE - 1) for holding in holdings)
    assert not any(client.held(holding, I + 1 + LEASE) for holding in holdings)


@spec("C-42")
def test_a_heartbeat_says_what_the_log_does_not_have() -> None:
    cluster = Cluster()
    client = cluster.client()
    holding, other = client.hold(), client.want("t", 1)
    client.land()
    client.see(5)
    client.land()
    client.see(6)
    client.do("commit", holding, 7, flush=False)
    client.claimant.set_metadata(other, b"x")
    client.at(I + 10)
    (said,) = client.outbox()
    assert isinstance(said, m.Heartbeat)
    assert said.positions == [holding.epoch, 7]
    assert said.metadata == [m.MetadataEntry(other.epoch, b"x")]
    client.lose()  # never read: it is said again
    client.at(2 * I + 10)
    (again,) = client.outbox()
    assert isinstance(again, m.Heartbeat)
    assert (again.positions, again.metadata) == (said.positions, said.metadata)
    client.land()
    client.see(2 * I + 15)
    client.at(3 * I + 20)
    (silent,) = client.outbox()
    assert isinstance(silent, m.Heartbeat)
    assert (silent.positions, silent.metadata) == ([], [])


@spec("C-43")
def test_what_the_log_gives_and_nobody_wants_is_released() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.hold()
    client.land()
    client.see(1)
    # The log gives it a cell that it has never heard of: no event is left to hear of it.
    cluster.append(m.ClaimingPartition(2, "a", "a0", "g", 9, "t", 5, I, -1))
    client._fold(0, None)
    client.at(I + 10)
    assert kinds(client.outbox()) == ["ReleasingPartition", "Heartbeat"]
    client.land()
    client.see(I + 20)
    assert not cluster.truth().cells["g", "t", 5].held
    assert cluster.truth().cells["g", "t", 0].held
    client.at(2 * I + 20)
    assert kinds(client.outbox()) == ["Heartbeat"]


@spec("C-17")
def test_heartbeats_that_do_not_fit_are_split() -> None:
    cluster = Cluster()
    client = cluster.client()
    count = 3000
    for partition in range(count):
        holding = client.want("t" * 249, partition)
        client.claimant.set_metadata(holding, b"x" * 256)
    client.land()
    client.see(1)
    beats = [r for r in client.outbox() if isinstance(r, m.Heartbeat)]
    assert len(beats) > 1
    assert sum(len(beat.metadata) for beat in beats) == count
    assert all(len(append.value) < 1_000_000 for append in client.sent)


@spec("C-18")
def test_heartbeats_do_not_pile_up() -> None:
    client = Cluster().client()
    client.hold()
    for at_ms in range(0, 9 * I, 100):
        client.at(at_ms)
    assert kinds(client.outbox()) == ["Heartbeat", "Heartbeat"]
    client.land()
    client.see(9 * I)
    assert kinds(client.outbox()) == ["Heartbeat"]


# ------------------------------------------------------------------ §5.6 lapse


@spec("C-19", "C-20")
def test_a_lapsed_claim_comes_back_under_the_same_epoch() -> None:
    client = Cluster().client()
    holding = client.hold()
    epoch = holding.epoch
    client.land()
    client.see()
    client.at(I)
    client.lose()
    client.at(LEASE)
    assert not client.held(holding)
    assert client.outbox() == []
    client.at(2 * I)
    (beat,) = client.outbox()
    assert isinstance(beat, m.Heartbeat)
    client.land()
    client.see(2 * I + 5)
    assert client.held(holding)
    assert holding.epoch == epoch
    assert client.notices() == ["acquired", "lapsed", "regained"]


@spec("C-21")
def test_a_lapsed_claim_that_was_taken_is_lost() -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = client.hold()
    client.lose()
    client.at(LEASE)
    cluster.append(m.ClaimingPartition(2, "b", "b1", "g", 0, "t", 0, I, 0))
    client.at(2 * I)
    client.land()
    client.see(2 * I + 5)
    assert not client.held(holding)
    assert holding.state is ClaimState.ENDED
    assert "lost" in client.notices()


@spec("C-21")
def test_a_claim_whose_position_was_set_is_lost() -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = client.hold()
    client.lose()
    cluster.append(m.ReleaseGroup(2, "o", "o", "g", 0, 0))
    cluster.append(m.SetPosition(2, "o", "o", "g", 1, "t", 0, 5, 0))
    client.see(10)
    assert holding.state is ClaimState.ENDED


# ------------------------------------------------------------------ §5.7 releasing


@spec("C-22")
def test_nothing_renews_after_the_decision_to_release() -> None:
    client = Cluster().client()
    holding = client.hold()
    assert kinds(client.outbox()) == ["Heartbeat"]  # in flight
    client.do("release", holding)
    assert not client.held(holding)
    client.sent, release = client.sent[:1], client.sent[1:]
    client.land()
    client.see(10)
    assert not client.held(holding)
    client.sent = release
    client.land()
    client.see(20)
    assert holding.state is ClaimState.ENDED


@spec("C-23")
def test_a_release_says_the_epoch_and_the_position() -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = client.hold()
    client.lose()
    client.do("commit", holding, 42, flush=False)
    client.do("release", holding)
    (record,) = client.outbox()
    assert isinstance(record, m.ReleasingPartition)
    assert (record.epoch, record.next_offset) == (holding.epoch, 42)
    (append,) = client.lose()
    client.do("append_failed", append.seq)
    client.at(I)
    assert kinds(client.outbox()) == ["ReleasingPartition"]
    client.land()
    client.see(I)
    assert not cluster.truth().cells["g", "t", 0].held
    assert cluster.truth().cells["g", "t", 0].next_offset == 42


def settled() -> tuple[Cluster, Client, Holding]:
    """A holder that has read its first heartbeat."""
    cluster = Cluster()
    client = cluster.client()
    holding = client.hold()
    client.land()
    client.see(10)
    return cluster, client, holding


@spec("C-62")
def test_a_release_after_a_pause_goes_behind_what_is_about_its_position() -> None:
    cluster, client, holding = paused()
    client.claimant.set_metadata(holding, b"of 42")
    client.claimant.advance(holding, 42)
    at_ms = holding.lease_until_ns / MS
    client.at(at_ms)
    assert kinds(client.outbox()) == ["Heartbeat"]
    client.land()
    client.see(at_ms + 10)
    assert kinds(client.outbox()) == ["ReleasingPartition"]
    client.land()
    cell = cluster.truth().cells["g", "t", 0]
    assert (cell.held, cell.next_offset, cell.metadata) == (False, 42, b"of 42")


@spec("C-62")
def test_who_leaves_sends_one_heartbeat_for_all_that_none_has_carried() -> None:
    client = Cluster().client()
    client.catch_up(0)
    holdings = [client.want("t", p) for p in range(3)]
    client.land()
    client.see(10)
    client.land()
    client.see(20)
    for holding in holdings:
        client.claimant.set_metadata(holding, b"new")
    client.do("leave")
    assert kinds(client.outbox()) == ["Heartbeat"]
    client.land()
    client.see(30)
    assert kinds(client.outbox()) == ["ReleasingPartition"] * 3


@spec("C-62")
def test_who_leaves_sends_again_what_a_heartbeat_that_failed_carried() -> None:
    for fails in (False, True):
        client = Cluster().client()
        holding = client.hold()
        client.land()
        client.see(10)
        client.claimant.set_metadata(holding, b"new")
        client.do("renew", holding)
        if fails:
            (append,) = client.lose()
            client.do("append_failed", append.seq)
        client.do("leave")
        assert kinds(client.outbox()) == ["Heartbeat"]
        client.land()
        client.see(20)
        assert kinds(client.outbox()) == ["ReleasingPartition"]


@spec("C-62")
def test_a_release_goes_behind_what_is_about_its_position_while_heartbeats_are_held_back() -> None:
    """The network hangs: as many as may be are on their way, and the one that was asked for waits.

    With the leader epoch of an earlier position, the next holder would take messages for lost.
    """
    cluster, client, holding = settled()
    for _ in range(MAX_UNREAD_HEARTBEATS):
        client.do("renew", holding)
    client.claimant.set_metadata(holding, b"of 42")
    client.claimant.advance(holding, 42)
    client.do("renew", holding)
    client.do("release", holding)
    beats = ["Heartbeat"] * MAX_UNREAD_HEARTBEATS
    assert kinds(client.outbox()) == [*beats, "Heartbeat"]
    client.land()
    client.see(20)
    assert kinds(client.outbox()) == ["ReleasingPartition"]
    client.land()
    cell = cluster.truth().cells["g", "t", 0]
    assert (cell.held, cell.next_offset, cell.metadata) == (False, 42, b"of 42")


@spec("C-62")
@pytest.mark.parametrize("how", ["release", "leave", "against its will"])
def test_a_release_waits_until_the_log_has_what_goes_with_its_position(how: str) -> None:
    """A heartbeat that fails may have a release behind it that comes through."""
    cluster, client, holding = settled()
    client.claimant.set_metadata(holding, b"of 42")
    client.claimant.advance(holding, 42)
    client.do("renew", holding)
    if how == "leave":
        client.do("leave")
    elif how == "release":
        client.do("release", holding)
    else:
        client.do("_give_up", holding, "as a test wants it")
    assert kinds(client.outbox()) == ["Heartbeat"]
    (append,) = client.lose()
    client.at(10 + 100)
    assert client.outbox() == [], "nobody knows yet what became of it"
    client.do("append_failed", append.seq)
    client.at(10 + 200)
    assert kinds(client.outbox()) == ["Heartbeat"]
    client.land()
    client.see(10 + 210)
    assert kinds(client.outbox()) == ["ReleasingPartition"]
    client.at(10 + 400)
    assert kinds(client.outbox()) == ["ReleasingPartition"], "once"
    client.land()
    cell = cluster.truth().cells["g", "t", 0]
    assert (cell.held, cell.next_offset, cell.metadata) == (False, 42, b"of 42")


@spec("C-62")
@pytest.mark.parametrize("releases", [False, True])
def test_metadata_that_a_late_heartbeat_brought_back_are_sent_anew(releases: bool) -> None:
    """It counted as failed, and came after the next one all the same."""
    cluster, client, holding = settled()
    client.claimant.set_metadata(holding, b"of 41")
    client.do("renew", holding)
    (late,) = client.lose()
    client.do("append_failed", late.seq)
    client.claimant.set_metadata(holding, b"of 42")
    client.do("renew", holding)
    client.land()
    if not releases:
        client.see(20)
    cluster.append(m.decode(late.value))
    if releases:
        client.do("release", holding)
    client.see(30)
    client.at(I + 100)
    client.land()
    client.see(I + 110)
    client.land()
    cell = cluster.truth().cells["g", "t", 0]
    assert (cell.held, cell.metadata) == (not releases, b"of 42")


@spec("C-62")
def test_a_release_of_what_is_not_held_any_more_waits_for_no_metadata() -> None:
    cluster, client, holding = settled()
    client.claimant.set_metadata(holding, b"of 42")
    client.do("release", holding)
    (append,) = client.lose()
    version = cluster.truth().version("g", "t", 0)
    ours = client.claimant.client_id, client.claimant.instance_id
    cluster.append(m.SetPosition(2, *ours, "g", 99, "t", 0, 5, version))
    client.do("append_failed", append.seq)
    client.see(10 + 200)
    assert kinds(client.outbox()) == ["ReleasingPartition"]
    client.land()
    client.see(10 + 210)
    assert holding.state is ClaimState.ENDED


# ------------------------------------------------------------------ §5.8 restart


def restarted(**options: Any) -> tuple[Cluster, Client, Client, Holding]:
    """A holder, and a second instance under the same client_id that wants the same cell."""
    cluster = Cluster()
    old = cluster.client("a")
    holding = old.hold()
    old.lose()
    new = cluster.client("a", at_ms=10, **options)
    return cluster, old, new, holding


@spec("C-24")
def test_a_new_instance_resumes_what_an_earlier_one_held() -> None:
    _, _, new, _ = restarted()
    new.want()
    (record,) = new.outbox()
    assert isinstance(record, m.ClaimingPartition)
    assert record.expected_version == 0


@spec("C-24")
def test_a_twins_claim_that_came_after_catching_up_is_not_resumed() -> None:
    cluster = Cluster()
    new = cluster.client("a")
    cluster.append(m.ClaimingPartition(2, "a", "twin", "g", 0, "t", 0, I, -1))
    new.see(1)
    new.want()
    assert new.outbox() == []


@spec("C-25")
def test_without_resume_a_new_instance_waits() -> None:
    _, _, new, _ = restarted(resume=False)
    new.want()
    new.at(10 + 2 * I)
    assert new.outbox() == []
    new.at(10 + 2 * I + 1)
    assert kinds(new.outbox()) == ["ClaimingPartition"]


@spec("C-26")
def test_a_fenced_instance_stops_claiming_and_never_takes_back() -> None:
    cluster, old, new, holding = restarted()
    waiting = old.want("t", 1)
    old.lose()
    new.want()
    new.land()
    old.see(20)
    assert holding.state is ClaimState.ENDED
    assert waiting.state is ClaimState.ENDED
    assert "duplicate_client_id" in old.notices()
    for at_ms in range(20, 20 * I, 500):
        old.at(at_ms)
    assert "ClaimingPartition" not in kinds(old.outbox())
    with pytest.raises(DuplicateClientId):
        old.want("t", 2)
    assert cluster.truth().cells["g", "t", 0].instance_id == new.claimant.instance_id


# ------------------------------------------------------------------ §5.9 pause


def paused() -> tuple[Cluster, Client, Holding]:
    cluster = Cluster()
    client = cluster.client()
    holding = client.hold()
    client.land()
    cluster.append(m.ReleaseGroup(2, "o", "o", "g", 0, 0))
    client.see(100)
    return cluster, client, holding


@spec("C-27")
def test_a_pause_ends_the_acting_and_the_renewing() -> None:
    _, client, holding = paused()
    assert not client.held(holding)
    client.at(I + 100)
    assert client.outbox() == []


@spec("C-28")
def test_after_a_pause_the_release_waits_for_the_work() -> None:
    _, client, holding = paused()
    client.at(500)
    client.do("release", holding)
    assert kinds(client.outbox()) == ["ReleasingPartition"]


@spec("C-28")
def test_after_a_pause_the_release_comes_when_the_lease_would_have_ended() -> None:
    _, client, holding = paused()
    until_ms = holding.lease_until_ns / MS
    client.at(until_ms - 1)
    assert client.outbox() == []
    client.at(until_ms)
    assert kinds(client.outbox()) == ["ReleasingPartition"]


# ------------------------------------------------------------------ §5.10 to §5.12


@spec("C-29")
def test_what_is_stored_only_goes_up() -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = client.hold()
    client.land()
    client.see(1)
    client.do("commit", holding, 10, flush=True)
    client.do("commit", holding, 7, flush=True)
    assert holding.next_offset == 10
    client.land()
    client.see(2)
    assert cluster.truth().cells["g", "t", 0].next_offset == 10
    client.at(I + 5)
    client.land()
    client.see(I + 5)
    # Nor does the log go back, whoever sends what: the same heartbeat, held up on its way.
    cluster.append(m.Heartbeat(2, "a", "a0", "g", 99, I, 0, [holding.epoch, 7]))
    client.see(I + 6)
    assert cluster.truth().cells["g", "t", 0].next_offset == 10
    assert holding.stored_offset == 10


@spec("C-37")
def test_a_holder_sets_its_position_back_and_its_claim_ends_with_that() -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = client.hold()
    client.do("commit", holding, 10, flush=True)
    client.land()
    client.see(1)
    client.do("set_position", holding, 4)
    client.do("set_position", holding, 4)
    assert not holding.held(2)
    assert kinds(client.outbox()) == ["SetPosition"]
    client.land()
    client.see(3)
    assert holding.reason is not None
    assert cluster.truth().cells["g", "t", 0].position == 4
    again = client.hold()
    assert again.epoch > holding.epoch
    assert again.next_offset == 4


@spec("C-37")
@pytest.mark.parametrize("then", ["waits", "releases", "leaves", "is paused"])
def test_no_claim_is_given_back_with_another_position_than_is_being_set(then: str) -> None:
    """A consumer that begins at the old one would pass over what was written meanwhile."""
    cluster = Cluster()
    client = cluster.client()
    holding = client.hold()
    for offset in (12, 30):  # the brokers do not answer: what is queued names versions
        client.do("commit", holding, offset, flush=True)
    client.at(5 * I)
    client.do("set_position", holding, 4)
    if then == "releases":
        client.do("release", holding)
    elif then == "leaves":
        client.do("leave")
    elif then == "is paused":
        cluster.append(m.ReleaseGroup(2, "op", "op.1", "g", 0, 0))
    client.land()
    client.see(5 * I)
    assert holding.reason is None
    assert not client.claimant.settled
    assert kinds(client.outbox()) == ["SetPosition"], "the version that was named is stale"
    client.land()
    client.see(5 * I)
    cell = cluster.truth().cells["g", "t", 0]
    assert (cell.holder, cell.position) == (None, 4)
    assert holding.reason is not None
    assert client.claimant.settled


@spec("C-37")
@pytest.mark.parametrize("is_told", [True, False])
def test_a_position_whose_record_got_lost_is_set_again(is_told: bool) -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = client.hold()
    client.do("commit", holding, 30, flush=True)
    client.land()
    client.see(1)
    client.do("set_position", holding, 4)
    (append,) = client.lose()
    if is_told:
        client.do("append_failed", append.seq)
    for ms in range(100, 20 * I, 100):
        client.at(ms)
        if client.sent:
            break
    assert kinds(client.outbox()) == ["SetPosition"]
    client.land()
    client.see()
    assert cluster.truth().cells["g", "t", 0].position == 4


@spec("C-21")
def test_what_the_last_holder_published_is_published_on() -> None:
    cluster = Cluster()
    client = cluster.client()
    client.claimant.set_metadata(client.hold(), b"left behind")
    client.at(I)
    client.land()
    client.see(I)
    client.do("release", next(iter(client.claimant.holdings())))
    client.land()
    client.see(I + 1)
    heir = cluster.client("b")
    heir.see(I + 2)
    holding = heir.hold()
    assert holding.metadata == b"left behind"
    heir.land()
    assert cluster.truth().cells["g", "t", 0].metadata == b"left behind"


@spec("C-30")
def test_messages_are_claimed_when_the_log_says_so() -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = client.hold()
    client.land()
    client.see(1)
    client.notices()
    client.do("claim_messages", holding, 10)
    client.do("claim_messages", holding, 10)
    client.land()
    assert "messages_claimed" not in client.notices()
    client.see(2)
    assert [k for k in client.notices() if k.startswith("messages")] == [
        "messages_claimed",
        "messages_rejected",
    ]


@spec("C-30")
def test_messages_of_an_unknown_outcome_count_as_not_claimed() -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = client.hold()
    client.land()
    client.see(1)
    client.notices()
    seq = client.do("claim_messages", holding, 10)
    client.do("append_failed", seq)
    assert client.notices() == ["messages_rejected"]
    client.land()
    client.see(2)
    assert "messages_claimed" not in client.notices()


@spec("C-31")
def test_a_claim_that_turns_up_after_it_was_given_up_is_released() -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = client.want()
    client.do("release", holding)
    client.land()
    client.see(5)
    assert not client.held(holding)
    assert kinds(client.outbox()) == ["ReleasingPartition"]
    client.land()
    assert not cluster.truth().cells["g", "t", 0].held


@spec("C-32")
@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0,), (1,)])
def test_of_two_attempts_whichever_is_accepted_counts(order: tuple[int, ...]) -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = client.want()
    (first,) = client.lose()
    client.do("append_failed", first.seq)
    client.at(500)
    (second,) = client.lose()
    for number in order:
        cluster.append((first, second)[number].value)
    client.see(600)
    assert client.held(holding)
    assert holding.epoch == 0
    # The lease runs from the sending of the attempt that was accepted.
    sent_ms = 0 if order[0] == 0 else 500
    assert holding.lease_until_ns <= (sent_ms + LEASE) * MS


# ------------------------------------------------------------------ §2.2, §7, §8


@spec("T-3")
def test_records_go_where_they_are_decided() -> None:
    cluster = Cluster(8)
    client = cluster.client(member=True)
    holdings = [client.want("t", partition) for partition in range(30)]
    client.at(1)
    seen: list[Append] = []
    for at_ms in (1, I, 2 * I):
        client.at(at_ms)
        seen += client.sent
        client.land()
        client.see(at_ms)
    client.do("claim_messages", holdings[0], 5)
    for holding in holdings:
        client.do("release", holding)
    client.do("leave")
    seen += client.sent
    world = client.world
    types = set()
    for append in seen:
        record: Any = m.decode(append.value)
        types.add(type(record).__name__)
        assert append.coordinator == world.home("g")
    assert types == {"ClaimingPartition", "Heartbeat", "ReleasingPartition", "ClaimingMessages"}


@spec("F-38")
def test_coordination_partitions_do_not_depend_on_each_other() -> None:
    cluster = Cluster(2)
    client = cluster.client()
    here = client.world.home("g")
    cluster.append(m.ReleaseGroup(2, "o", "o", "g", 0, 0), p=1 - here)
    client.see(1)
    holding = client.want()
    client.land()
    client.see(2)
    assert client.held(holding)
    cluster.append(m.ClaimingPartition(2, "b", "b", "g", 0, "t", 7, I, -1), p=1 - here)
    client.see(3)
    assert ("g", "t", 7) not in client.world.states[1 - here].cells


@spec("L-1")
def test_a_truncated_log_ends_every_lease() -> None:
    client = Cluster().client()
    holding = client.hold()
    client.claimant.truncated()
    assert not client.held(holding)
    assert "lost" in client.notices()


@spec("C-43")
def test_what_a_truncated_log_gives_and_nobody_wants_is_released() -> None:
    """Also by who has no heartbeat to send: the record that released it is gone."""
    cluster = Cluster()
    client = cluster.client()
    holding = client.hold()
    client.land()
    client.see(1)
    client.do("release", holding)
    assert [type(record) for record in client.land()] == [m.ReleasingPartition]
    client.see(2)
    cluster.records[0].pop()
    client.claimant.truncated()
    client.forget()
    client.catch_up(10)
    assert [type(record) for record in client.land()] == [m.ReleasingPartition]
    assert not cluster.truth().cells["g", "t", 0].held


@spec("L-4")
@pytest.mark.parametrize("partitions", [1, 3, 5])
def test_a_claim_made_before_a_topic_made_anew_was_read_waits_for_that(partitions: int) -> None:
    client = Cluster(3).client(member=True)
    client.hold()
    client.lose()
    client.claimant.truncated()
    wanted = client.want()
    assert client.outbox() == []
    client.made_anew(partitions, at_ms=100)
    assert {append.coordinator for append in client.sent} == {client.world.home("g")}
    client.land()
    client.see(200)
    assert client.held(wanted)


@spec("L-4")
@pytest.mark.parametrize("partitions", [1, 3, 5])
def test_what_was_due_in_a_log_that_is_no_more_is_not_done_in_a_new_one(partitions: int) -> None:
    client = Cluster(3).client(member=True)
    client.hold()
    client.want(partition=1)
    client.lose()
    client.claimant.truncated()
    assert client.claimant.next_deadline_ns() is None
    client.made_anew(partitions, at_ms=100)
    holding = client.want()
    for at_ms in range(200, 20 * I, 100):
        client.land()
        client.see(at_ms)
    assert client.held(holding)


def test_a_claim_that_got_lost_in_a_new_log_is_made_again() -> None:
    client = Cluster().client()
    client.want()
    client.lose()
    client.claimant.truncated()
    client.made_anew(1, at_ms=100)
    assert kinds(client.outbox()) == ["ClaimingPartition"]
    client.lose()
    for at_ms in range(200, 20 * I, 100):
        client.at(at_ms)
    assert kinds(client.outbox()) == ["ClaimingPartition"]


@spec("L-2")
def test_another_number_of_partitions_ends_claiming_and_renewing() -> None:
    client = Cluster().client()
    holding = client.hold()
    client.lose()
    client.claimant.stop_claiming("the number of partitions changed")
    for at_ms in range(0, 10 * I, 100):
        client.at(at_ms)
    assert client.outbox() == []
    assert not client.held(holding, LEASE)


@spec("E-1")
def test_a_leader_holds_a_virtual_topic() -> None:
    assert leader_topic("mail") == "leader:mail"
    assert len(leader_topic("x" * 242)) == 249
    for name in ("", "x" * 243, None):
        with pytest.raises(MarshalError):
            leader_topic(name)  # type: ignore[arg-type]


@spec("C-47")
@pytest.mark.parametrize("previous", ["", "one"])
def test_a_genesis_ends_what_is_held_and_it_may_be_claimed_again(previous: str) -> None:
    cluster = Cluster()
    if previous:
        cluster.append(m.Genesis(2, "o", "o", "-", 0, previous, "", 10, 1, 0))
    client = cluster.client()
    holding = client.hold()
    client.do("commit", holding, 7, flush=False)
    cluster.append(m.Genesis(2, "o", "o", "-", 0, "two", previous, 1_000, 1, 0))
    client.land()
    client.see(10)
    assert not client.held(holding)
    assert client.notices() == ["acquired", "lost"]
    again = client.want()
    client.land()
    client.see(20)
    client.land()
    client.see(30)
    assert client.held(again)
    assert again.epoch > 1_000
    assert again.next_offset == 7


@spec("C-45")
def test_who_cannot_follow_the_groups_level_takes_no_part() -> None:
    cluster = Cluster()
    cluster.append(m.SetLevel(2, "o", "o", "g", 0, 2, 1))
    old, new = cluster.client("a", member=True), cluster.client("b", member=True, levels=(1, 2))
    assert old.outbox() == []
    assert old.claimant.refusal is not None
    assert "level 2" in old.claimant.refusal
    with pytest.raises(Closed, match="level 2"):
        old.want()
    assert new.held(new.hold(10))
    cluster.append(m.SetLevel(2, "o", "o", "g", 0, 3, 2))
    new.see(20)
    assert new.held(new.want())
    assert new.claimant.refusal is None


@spec("C-45")
@pytest.mark.parametrize("ending", ["leave", "keep"])
def test_who_took_no_part_says_no_goodbye(ending: str) -> None:
    """A goodbye is a heartbeat, and of a session that nobody knows."""
    cluster = Cluster()
    cluster.append(m.SetLevel(2, "o", "o", "g", 0, 2, 1))
    client = cluster.client("a", member=True)
    client.do(ending)
    assert client.outbox() == []


@spec("C-45")
@pytest.mark.parametrize("ending", ["leave", "keep"])
def test_who_must_take_no_part_any_more_releases_and_says_no_goodbye(ending: str) -> None:
    cluster = Cluster()
    client = cluster.client(member=True)
    cluster.append(m.SetLevel(2, "o", "o", "g", 0, 2, 1))
    client.want()
    client.land()
    client.see(10)
    assert client.claimant.refusal is not None
    client.outbox()
    client.do(ending)
    assert "Heartbeat" not in kinds(client.outbox())


@spec("C-45")
def test_a_member_that_the_log_forgot_hears_of_a_level_that_it_cannot_follow() -> None:
    cluster = Cluster()
    client = cluster.client(member=True)
    cluster.append(m.SetLevel(2, "o", "o", "g", 0, 2, 1))
    waiting = client.want()
    client.land()
    client.see(10)
    assert client.claimant.refusal is not None
    for at_ms in range(10, 10 * I, 100):
        client.at(at_ms)
    assert kinds(client.outbox()) == ["ReleasingPartition"]
    assert not client.held(waiting)


@spec("C-45")
@pytest.mark.parametrize("levels", [(2, 2), (1, 2)])
def test_a_forgotten_group_works_by_level_1_again(levels: tuple[int, int]) -> None:
    """Who cannot follow that claims nothing there, also before a heartbeat of it is refused."""
    cluster = Cluster()
    cluster.append(m.SetLevel(2, "o", "o", "g", 0, 2, 1))
    client = cluster.client("a", member=True, levels=levels)
    client.land()
    client.see(5)
    paused = cluster.append(m.ReleaseGroup(2, "o", "o", "g", 1, 0))
    client.see(10)
    waiting = client.want()
    cluster.append(m.ForgetGroup(2, "o", "o", "g", 2, paused))
    cluster.append(m.ResumeGroup(2, "o", "o", "g", 3, paused))
    client.see(20)
    follows = levels[0] == 1
    assert (client.claimant.refusal is None) == follows
    assert ("ClaimingPartition" in kinds(client.outbox())) == follows
    assert (waiting.state is ClaimState.ENDED) != follows


def test_an_ephemeral_claim_leaves_nothing() -> None:
    cluster = Cluster()
    client = cluster.client()
    holding = client.do("want", "job", 7, ephemeral=True)
    client.land()
    client.see(5)
    assert client.held(holding)
    client.do("release", holding)
    client.land()
    client.see(10)
    assert cluster.truth().groups == {}


@spec("C-40")
@pytest.mark.parametrize("between", ["a heartbeat", "of the cell itself", "nothing"])
def test_whatever_renews_a_holder_makes_an_earlier_look_stale(between: str) -> None:
    """A claim names the version that was seen: a heartbeat of the holder's session is enough."""
    cluster = Cluster()
    holder, challenger = cluster.client("a"), cluster.client("b")
    holding = holder.hold()
    holder.land()
    holder.see(1)
    challenger.see(1)
    wanted = challenger.want()
    challenger.at(2 * I + 20)
    (claim,) = challenger.outbox()
    assert isinstance(claim, m.ClaimingPartition)
    if between == "a heartbeat":
        holder.at(2 * I + 20)
        assert kinds(holder.outbox()) == ["Heartbeat"]
        holder.land()
    elif between == "of the cell itself":
        holder.do("claim_messages", holding, 5)
        holder.lose()
        cluster.append(m.ClaimingMessages(2, "a", "a0", "g", 9, "t", 0, holding.epoch, 5))
    challenger.land()
    challenger.see(2 * I + 30)
    assert challenger.held(wanted) is (between == "nothing")


def test_a_claim_that_waits_for_its_own_release_is_made_when_that_is_refused() -> None:
    """Two epochs of one cell were given back: the second release is of no epoch any more."""
    cluster = Cluster()
    client = cluster.client()
    client.claimant._give_back(("t", 0), 0, 7, client.now)
    client._take()
    cluster.append(m.ClaimingPartition(2, "a", "a0", "g", 90, "t", 0, I, -1))
    client._fold(0, None)
    wanted = client.want()
    assert kinds(client.outbox()) == ["ReleasingPartition"]
    client.land()
    client.see(10)
    client.land()
    client.see(20)
    assert client.held(wanted)


def beats(client: Client) -> list[m.Heartbeat]:
    """Let what was sent land, and return the heartbeats among it."""
    return [record for record in client.land() if isinstance(record, m.Heartbeat)]


def test_a_heartbeat_says_what_the_log_does_not_have_and_says_it_once() -> None:
    cluster = Cluster()
    cluster.append(m.Genesis(2, "o", "o", "-", 0, "one", "", 1_000, 1, 0))
    client = cluster.client(member=True)
    holding = client.hold()
    client.want(partition=1)
    client.land()
    client.see(10)
    assert holding.epoch > 1_000
    beats(client)
    client.see(20)
    client.claimant.set_metadata(holding, b"x")
    client.do("commit", holding, 7, flush=True)
    (said,) = beats(client)
    claimed_at = holding.epoch - 1_000
    assert said.positions == [claimed_at, 7]
    assert said.metadata == [m.MetadataEntry(claimed_at, b"x")]
    client.claimant.advance(holding, 8)
    client.see(30)  # 7 is in the log, 8 is not
    assert holding.stored_offset == 7
    (said,) = [beat for at in range(40, 3 * I, 100) for beat in beats(client.at(at))][:1]
    assert said.positions == [claimed_at, 8]
    assert said.metadata == []
    client.see(3 * I)
    for at in range(3 * I, 6 * I, 100):
        for said in beats(client.at(at)):
            assert (said.positions, said.metadata) == ([], [])
        client.see()
    assert client.claimant._changed == {}


def test_more_positions_than_a_record_may_carry_go_with_several_heartbeats() -> None:
    cluster = Cluster()
    client = cluster.client(member=True)
    for n in range(m.MAX_ENTRIES + 1):
        client.want(partition=n)
    client.land()
    client.see(10)
    beats(client)
    client.see(20)
    holdings = list(client.claimant.holdings())
    for holding in holdings:
        client.claimant.advance(holding, 5)
    client.do("renew", holdings[0])
    first, second = beats(client)
    assert [len(first.positions), len(second.positions)] == [2 * m.MAX_ENTRIES, 2]
    assert (first.membership, second.membership) == (1, 0)
    client.see(30)
    assert {holding.stored_offset for holding in holdings} == {5}


@pytest.mark.parametrize("genesis_at", [0, 1])
def test_what_an_earlier_instance_claimed_is_resumed_whatever_the_base(genesis_at: int) -> None:
    cluster = Cluster()
    records: list[m.Message] = [m.ClaimingPartition(2, "a", "before", "g", 0, "t", 0, I, -1)]
    records.insert(genesis_at, m.Genesis(2, "o", "o", "-", 0, "one", "", 1_000, 1, 0))
    for record in records:
        cluster.append(record)
    client = cluster.client()
    client.want()
    assert kinds(client.outbox()) == ["ClaimingPartition"]


def test_a_genesis_that_came_after_catching_up_does_not_hide_the_past() -> None:
    cluster = Cluster()
    cluster.append(m.ClaimingPartition(2, "a", "before", "g", 0, "t", 0, I, -1))
    client = cluster.client()
    cluster.append(m.Genesis(2, "o", "o", "-", 0, "one", "", 1_000, 1, 0))
    client.see(10)
    client.want()
    assert kinds(client.outbox()) == ["ClaimingPartition"]


def test_what_a_twin_claimed_is_not_resumed_after_a_genesis() -> None:
    cluster = Cluster()
    client = cluster.client()
    cluster.append(m.ClaimingPartition(2, "a", "twin", "g", 0, "t", 0, I, -1))
    cluster.append(m.Genesis(2, "o", "o", "-", 0, "one", "", 1_000, 1, 0))
    client.see(10)
    client.want()
    assert client.outbox() == []


def test_who_is_no_member_hears_of_a_level_that_it_cannot_follow() -> None:
    cluster = Cluster()
    client = cluster.client()
    cluster.append(m.SetLevel(2, "o", "o", "g", 0, 2, 1))
    client.see(10)
    assert client.claimant.refusal is not None


def test_a_refused_heartbeat_says_that_a_level_cannot_be_followed() -> None:
    cluster = Cluster()
    client = cluster.client(member=True)
    assert kinds(client.outbox()) == ["Heartbeat"]
    cluster.append(m.SetLevel(2, "o", "o", "g", 0, 2, 1))
    client._fold(0, None)  # as in a snapshot: nobody says that it was set
    client.land()
    client.see(10)
    assert client.claimant.refusal is not None
    assert client.claimant._heartbeats.unread == [0]


def test_a_level_may_be_too_low_to_follow() -> None:
    assert Cluster().client(levels=(2, 3)).claimant.refusal is not None


def test_a_heartbeat_says_which_levels_its_sender_can_follow() -> None:
    (said,) = beats(Cluster().client(member=True, levels=(1, 2)))
    assert (said.lowest, said.highest) == (1, 2)


def test_who_leaves_ends_no_pause() -> None:
    cluster = Cluster()
    cluster.append(m.ReleaseGroup(2, "o", "o", "g", 0, 5))
    client = cluster.client()
    client.do("leave")
    client.claimant.end_expired_pause(10)
    assert client.claimant.take_appends() == []
