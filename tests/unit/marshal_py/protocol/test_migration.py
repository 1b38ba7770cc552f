"""What version 2 may work on while a bridge moves its group (specs/INTEROP.md §7.2)."""

from __future__ import annotations

import pytest

from marshal_py.protocol.claimant import ClaimState, Holding
from marshal_py.protocol.events import Claimed, Event, Released, Renewed
from marshal_py.protocol.messages import ClaimingPartition, Message, ReleasingPartition, encode
from marshal_py.protocol.migration import Grants, decode_lease, encode_lease, migration_topic
from marshal_py.protocol.rationalizer import PartitionState, apply
from marshal_py.protocol.world import MS, Observer, World
from tests.support.messages import heartbeat
from tests.unit.marshal_py.protocol.test_claimant_spec import Client, Cluster, I

GRANT, ALL = "migrated:t", "migration:"
WALL_S = 1_800_000_000.0
"""What wall clocks show when the monotonic ones show 0."""


class Group:
    """A worker and a bridge; every record is in the log at once, and read when a test says so."""

    def __init__(self, partitions: int = 1) -> None:
        self.cluster = Cluster(partitions)
        self.wall_offset_s = 0.0
        self.bridge = Client(self.cluster, "bridge", "b1")
        self.bridge.claimant.heeds_pauses = False
        self.worker = self.new_worker()
        for client in (self.bridge, self.worker):
            client.catch_up(0)

    def new_worker(self, name: str = "w") -> Client:
        worker: Client = Client(self.cluster, name, f"{name}1", wall_s=lambda: self.wall_s(worker))
        return worker

    def wall_s(self, worker: Client) -> float:
        return WALL_S + worker.now / MS / 1000 + self.wall_offset_s

    def turn(self, at_ms: float, *clients: Client) -> None:
        """Let everybody, or these, send and read until nothing is new."""
        everybody = clients or (self.bridge, self.worker)
        for _ in range(6):
            for client in everybody:
                client.see(at_ms)
                client.land()

    def grant(self, at_ms: float, remaining_ms: float) -> Holding:
        """Have the bridge say what is left of its lease, now."""
        holding = self.bridge.want(GRANT)
        metadata = encode_lease(remaining_ms, WALL_S + at_ms / 1000)
        self.bridge.claimant.set_metadata(holding, metadata)
        self.turn(at_ms, self.bridge)
        return holding

    def migrate(self, at_ms: float, topic: str = ALL) -> Holding:
        holding = self.bridge.want(topic)
        self.turn(at_ms)
        return holding


def test_what_is_not_granted_is_not_claimed_however_long_the_bridge_is_dead() -> None:
    group = Group()
    group.migrate(0)
    wanted = group.worker.want()
    for ms in range(100, 100 * I, 500):
        group.turn(ms, group.worker)
    assert wanted.state is ClaimState.WAITING
    assert group.worker.world.cell("g", "t", 0) is None


def test_what_is_granted_is_held_for_as_long_as_both_leases_last() -> None:
    group = Group()
    group.migrate(0)
    wanted = group.worker.want()
    group.grant(100, 300)
    group.turn(100)
    assert wanted.held(int(399 * MS))
    assert not wanted.held(int(401 * MS))
    group.turn(450, group.worker)
    assert wanted.state is ClaimState.LAPSED

    group.grant(1100, 5_000)
    group.turn(1100)
    sent_ms = wanted.renewed_ns / MS
    assert wanted.held(int(1101 * MS))
    assert not wanted.held(int((sent_ms + 2 * I) * MS))


@pytest.mark.parametrize(
    ("read_at_ms", "clock_behind_ms", "until_ms"),
    [
        (100, 0, 800),
        (700, 0, 800),  # read late: the wall clock knows
        (100, 10_000, 800),  # a wrong clock, but read in time
        (100, -400, 400),  # a clock that is ahead: it stops too early
        (700, 400, 1200),  # both: as wrong as the smaller of the two
    ],
)
def test_a_lease_is_overrun_only_by_who_reads_late_and_has_a_wrong_clock(
    read_at_ms: float, clock_behind_ms: float, until_ms: float
) -> None:
    group = Group()
    group.migrate(0)
    wanted = group.worker.want()
    group.wall_offset_s = -clock_behind_ms / 1000
    group.grant(100, 700)
    group.turn(read_at_ms, group.worker)
    assert wanted.held(int((until_ms - 1) * MS))
    assert not wanted.held(int((until_ms + 15) * MS))  # what was seen is noted to the hundredth


def test_what_was_said_before_the_worker_had_caught_up_counts_for_nothing() -> None:
    group = Group()
    group.migrate(0)
    group.grant(100, 5_000)
    late = group.new_worker("late")
    late.catch_up(200)
    wanted = late.want()
    group.turn(210, late)
    assert wanted.state is ClaimState.LAPSED  # it is its own in the log, but nobody may act
    group.grant(900, 5_000)
    group.turn(1300, late, group.bridge)
    assert wanted.held(late.now)


def test_what_the_bridge_before_said_counts_for_nothing() -> None:
    group = Group()
    group.migrate(0)
    group.grant(100, 700)
    late = group.new_worker("late")
    group.wall_offset_s = -100
    late.catch_up(5_000)
    again = Client(group.cluster, "bridge", "b2")  # it finds the metadata, and has set none yet
    again.catch_up(5_000)
    again.want(ALL)
    again.want(GRANT)
    again.land()
    late.see(5_010)
    wanted = late.want()
    group.turn(5_020, late)
    assert late.world.cell("g", "t", 0).holder == "late"  # type: ignore[union-attr]
    assert not wanted.held(late.now)


def test_a_grant_that_is_taken_back_ends_the_claim_at_once_and_releases_it() -> None:
    group = Group()
    group.migrate(0)
    wanted = group.worker.want()
    grant = group.grant(100, 900)
    group.turn(100)
    group.bridge.do("release", grant)
    group.turn(200)
    assert wanted.state is ClaimState.ENDED
    assert wanted.reason == "its migration took it back to version 1"
    cell = group.bridge.world.cell("g", "t", 0)
    assert cell is not None
    assert not cell.held
    again = group.worker.want()
    group.turn(9_000, group.worker)
    assert again.state is ClaimState.WAITING


def test_a_migration_that_begins_stops_who_works_without_a_grant() -> None:
    group = Group()
    wanted = group.worker.want()
    group.turn(10)
    assert wanted.held(group.worker.now)
    group.migrate(20)
    assert wanted.state is ClaimState.ENDED


def test_a_migration_that_begins_binds_a_lease_that_was_longer() -> None:
    group = Group()
    wanted = group.worker.want()
    group.turn(10)
    group.grant(20, 300)
    group.migrate(30)
    assert wanted.held(int(310 * MS))
    assert not wanted.held(int(345 * MS))


def test_when_it_is_over_the_own_lease_counts_alone() -> None:
    group = Group()
    migration = group.migrate(0)
    wanted = group.worker.want()
    group.grant(100, 300)
    group.turn(100)
    group.bridge.do("release", migration)
    group.turn(200)
    assert wanted.held(int(1_500 * MS))


def test_a_dead_bridge_does_not_make_anybody_give_back_what_is_granted() -> None:
    group = Group()
    group.migrate(0)
    wanted = group.worker.want()
    group.grant(100, 300)
    for ms in range(100, 20 * I, 250):
        group.turn(ms, group.worker)
    assert wanted.state is ClaimState.LAPSED
    group.grant(20 * I, 900)
    group.turn(20 * I + 10)
    assert wanted.held(group.worker.now)


def test_a_grant_of_somebody_else_than_the_migrations_holder_grants_nothing() -> None:
    group = Group()
    group.migrate(0)
    stranger = Client(group.cluster, "stranger", "s1")
    stranger.catch_up(0)
    wanted = group.worker.want()
    holding = stranger.want(GRANT)
    stranger.claimant.set_metadata(holding, encode_lease(900, WALL_S))
    group.turn(50, stranger, group.worker)
    assert wanted.state is ClaimState.WAITING


def test_the_bridge_is_not_bound_by_what_it_says() -> None:
    group = Group()
    group.migrate(0)
    wanted = group.bridge.want()
    group.turn(10)
    assert wanted.held(group.bridge.now)


@pytest.mark.parametrize(
    ("migration", "topic", "is_bound"),
    [
        (ALL, "t", True),
        (ALL, "leader:x", False),
        ("migration:leader:x", "leader:x", True),
        ("migration:t", "t", True),
        ("migration:t", "u", False),
    ],
)
def test_which_topics_a_migration_covers(migration: str, topic: str, is_bound: bool) -> None:
    group = Group()
    group.migrate(0, migration)
    wanted = group.worker.want(topic)
    group.turn(10)
    assert (wanted.state is ClaimState.WAITING) is is_bound
    if is_bound:
        assert migration in (
            migration_topic(topic, every=True),
            migration_topic(topic, every=False),
        )


def test_grants_lie_in_the_groups_own_coordination_partition() -> None:
    group = Group(partitions=5)
    group.migrate(0)
    wanted = group.worker.want()
    group.grant(100, 900)
    group.turn(120)
    assert wanted.held(group.worker.now)


def test_a_lease_survives_its_encoding_and_other_bytes_are_none() -> None:
    assert decode_lease(encode_lease(54_000.7, 1_800_000_000.25)) == (54_000, 1_800_000_000_250)
    assert decode_lease(b"") is None
    assert decode_lease(b"something else") is None
    assert decode_lease(encode_lease(2.0**40, 1)) == (2**32 - 1, 1_000), "it says what it can"


class Said:
    """The grants of a client, in a log that a test writes; all is read as it is written."""

    def __init__(self, partitions: int = 1) -> None:
        self.world = World(partitions)
        self.observers = [Observer() for _ in range(partitions)]
        self.grants = Grants(self.world, self.observers, "g", "w", None)
        self.home = self.world.home("g")
        self.now_ns = 0

    @property
    def state(self) -> PartitionState:
        return self.world.states[self.home]

    def write(self, record: Message) -> int:
        events: list[Event] = []
        offset = self.state.next_offset
        apply(self.state, offset, encode(record), events)
        self.observers[self.home].seen.note(offset, self.now_ns)
        for event in events:
            if isinstance(event, Renewed):
                self.grants.renewed(event)
            elif isinstance(event, Claimed | Released):
                self.grants.heard(event)
        return offset

    def claim(self, topic: str, partition: int = 0, instance: str = "b1") -> int:
        version = self.state.version("g", topic, partition)
        seq = self.state.next_offset
        return self.write(
            ClaimingPartition(2, "bridge", instance, "g", seq, topic, partition, 1_000, version)
        )

    def say(self, epoch: int, remaining_ms: int, instance: str = "b1") -> None:
        metadata = {epoch: encode_lease(remaining_ms, 0)}
        self.write(heartbeat("bridge", epoch + 50, instance_id=instance, metadata=metadata))

    def until_ms(self) -> int:
        return self.grants.until_ns("t", 0, self.now_ns) // MS


def test_another_partition_of_a_migrations_topic_is_none() -> None:
    said = Said()
    said.claim(ALL, 1)
    assert not said.grants.withholds("t", 0)
    said.grants.caught_up(said.home)
    assert not said.grants.withholds("t", 0)
    assert said.grants.bridges == frozenset()


def test_a_migration_of_a_log_that_is_gone_withholds_nothing() -> None:
    said = Said()
    said.claim(ALL)
    assert said.grants.withholds("t", 0)
    said.world.states[said.home] = PartitionState(said.home)
    said.grants.caught_up(said.home)
    assert not said.grants.withholds("t", 0)


def test_another_coordination_partition_that_has_been_read_says_nothing_of_grants() -> None:
    said = Said(3)
    said.claim(ALL)
    said.say(said.claim(GRANT), 500)
    assert said.until_ms() == 500
    said.grants.caught_up((said.home + 1) % 3)
    assert said.until_ms() == 500


def test_a_lease_that_was_passed_on_is_not_shortened_by_a_later_word() -> None:
    said = Said()
    said.claim(ALL)
    grant = said.claim(GRANT)
    said.say(grant, 500)
    assert said.until_ms() == 500
    said.say(grant, 400)
    assert said.until_ms() == 500
    said.now_ns = 450 * MS
    said.say(grant, 400)
    assert said.until_ms() == 850


def test_what_was_said_of_a_grant_before_it_was_claimed_again_counts_for_nothing() -> None:
    said = Said()
    said.claim(ALL)
    said.say(said.claim(GRANT), 500)
    said.claim(GRANT, instance="b2")  # nobody had asked by then
    assert said.until_ms() == 0


def test_a_grant_that_was_taken_back_is_not_there_again_because_it_is_claimed() -> None:
    said = Said()
    said.claim(ALL)
    grant = said.claim(GRANT)
    said.say(grant, 500)
    assert said.until_ms() == 500
    said.write(ReleasingPartition(2, "bridge", "b1", "g", 90, GRANT, 0, grant, -1))
    assert said.until_ms() == 0
    said.claim(GRANT)
    assert said.until_ms() == 0
