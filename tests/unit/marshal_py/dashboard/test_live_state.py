"""What the dashboard makes of the log: liveness, alerts, claims of the past. No I/O."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from marshal_py.dashboard.alerts import Alerts
from marshal_py.dashboard.cell_grid import FREE, FRESH, STALE, UNKNOWN
from marshal_py.dashboard.groups import metadata_text
from marshal_py.dashboard.live_state import MANY_ENDED, LiveState
from marshal_py.dashboard.recent_claims import RecentClaims
from marshal_py.protocol.events import Event
from marshal_py.protocol.messages import (
    ClaimingPartition,
    ClaimingRange,
    ForgetGroup,
    Heartbeat,
    Message,
    MetadataEntry,
    ReleaseGroup,
    ReleasingPartition,
    ResumeGroup,
    encode,
)
from marshal_py.protocol.rationalizer import apply
from marshal_py.protocol.slots import slots_cell
from marshal_py.protocol.subscription import Subscription
from marshal_py.protocol.world import MS, Observer, World

INTERVAL_MS = 1_000
START_MS = 1_700_000_000_000


class Stage:
    """One coordination partition, a live state of it, and a clock that the test moves."""

    def __init__(self, *, caught_up: bool = True) -> None:
        self.world = World(1)
        self.observer = Observer()
        self.live = LiveState(self.world, [self.observer])
        self.now_ms = START_MS
        self.seq = 0
        if caught_up:
            self.caught_up()

    @property
    def now_ns(self) -> int:
        return (self.now_ms - START_MS + 5_000) * MS

    @property
    def offset(self) -> int:
        return self.world.states[0].next_offset

    def caught_up(self) -> None:
        self.observer.caught_up_at_offset = self.offset
        self.live.caught_up(self.now_ns, self.now_ms)

    def put(self, kind: type[Message], client: str, *fields: Any, instance: str = "") -> int:
        self.seq += 1
        value = encode(kind(2, client, instance or f"{client}-1", "g", self.seq, *fields))
        offset, events = self.offset, list[Event]()
        apply(self.world.states[0], offset, value, events)
        if self.live.live_since_ns is not None:
            self.observer.seen.note(offset, self.now_ns)
        self.live.record(0, offset, value, self.now_ms, events)
        return offset

    def claim(
        self, client: str, partition: int = 0, topic: str = "t", *, instance: str = ""
    ) -> int:
        version = self.world.version("g", topic, partition)
        fields = (topic, partition, INTERVAL_MS, version)
        return self.put(ClaimingPartition, client, *fields, instance=instance)

    def beat(self, client: str, epoch: int, partition: int = 0, next_offset: int = -1) -> None:
        positions = [] if next_offset < 0 else [epoch, next_offset]
        self.put(Heartbeat, client, INTERVAL_MS, 0, positions)

    def wait(self, ms: int) -> None:
        """Let time pass, a quarter of a second at a time, as the follower does."""
        end = self.now_ms + ms
        while self.now_ms < end:
            self.now_ms = min(end, self.now_ms + 250)
            self.live.tick(self.now_ns)

    def liveness(self, partition: int = 0) -> int:
        row = self.live.grid.rows["g", "t"]
        return row.live[row.slots[partition]]

    def alerts(self, kind: str) -> list[tuple[str, bool]]:
        """Text, and whether it is open, as a page is told."""
        self.live.take_changes(self.now_ms)
        return [(a.text, a.until_ms is None) for a in self.live.alerts.all() if a.kind == kind]


def test_silence_makes_a_holder_unknown_then_stale_and_a_heartbeat_fresh_again() -> None:
    stage = Stage()
    epoch = stage.claim("a")
    assert stage.liveness() == FRESH
    stage.wait(1_000)
    assert stage.liveness() == FRESH, "a heartbeat may be on its way"
    stage.wait(750)
    assert stage.liveness() == UNKNOWN
    assert stage.alerts("stale") == []
    stage.wait(1_000)
    assert stage.liveness() == STALE
    assert stage.alerts("stale")[0][1]
    assert "a holds 1 partition of t" in stage.alerts("stale")[0][0]
    stage.beat("a", epoch)
    assert stage.liveness() == FRESH
    stage.wait(500)
    assert not stage.alerts("stale")[0][1]
    stage.put(ReleasingPartition, "a", "t", 0, epoch, 3)
    assert stage.liveness() == FREE


def test_while_the_brokers_do_not_answer_nobody_is_judged_and_then_silence_counts_anew() -> None:
    stage = Stage()
    epoch = stage.claim("a")
    stage.claim("b", 1)
    stage.wait(2_500)
    assert [stage.liveness(0), stage.liveness(1)] == [STALE, STALE]
    assert stage.alerts("stale")[0][1]
    stage.beat("a", epoch)
    stage.live.in_contact(stage.now_ns, again=False)
    stage.wait(60_000)
    assert [stage.liveness(0), stage.liveness(1)] == [FRESH, STALE], "nothing is judged"

    stage.live.in_contact(stage.now_ns, again=True)
    assert [stage.liveness(0), stage.liveness(1)] == [UNKNOWN, UNKNOWN]
    assert not stage.alerts("stale")[0][1]
    for _ in range(3):
        stage.beat("a", epoch)
        stage.now_ms += 750
        stage.live.in_contact(stage.now_ns, again=False)
        stage.live.tick(stage.now_ns)
    assert [stage.liveness(0), stage.liveness(1)] == [FRESH, STALE]


def test_a_heartbeat_makes_fresh_all_that_its_session_holds_and_no_more() -> None:
    stage = Stage()
    for partition in range(3):
        stage.claim("a", partition)
    stage.claim("b", 3)
    stage.claim("a", 4, instance="a-2")
    stage.wait(1_750)
    assert [stage.liveness(p) for p in range(5)] == [UNKNOWN] * 5
    stage.put(Heartbeat, "a", INTERVAL_MS)
    assert [stage.liveness(p) for p in range(5)] == [FRESH] * 3 + [UNKNOWN] * 2
    stage.wait(1_750)
    assert [stage.liveness(p) for p in range(5)] == [UNKNOWN] * 3 + [STALE] * 2
    stage.put(Heartbeat, "a", INTERVAL_MS)
    assert [stage.liveness(p) for p in range(5)] == [FRESH] * 3 + [STALE] * 2


def test_cells_that_their_users_end_do_not_stay_for_ever() -> None:
    stage = Stage()
    for n in range(MANY_ENDED + 1):
        epoch = stage.claim("a", n)
        assert not stage.live.needs_rebuild
        stage.put(ReleasingPartition, "a", "t", n, epoch, -1, 1)
    assert stage.live.needs_rebuild
    stage.live.rebuild(stage.now_ns)
    assert not stage.live.grid.rows
    assert not stage.live.needs_rebuild


def test_heartbeats_keep_a_holder_fresh_and_cost_no_change() -> None:
    stage = Stage()
    epoch = stage.claim("a")
    stage.live.take_changes(stage.now_ms)
    for n in range(20):
        stage.wait(INTERVAL_MS)
        stage.beat("a", epoch, next_offset=n)
        assert "cells" not in stage.live.take_changes(stage.now_ms)
    assert sum(map(len, stage.live._due.values())) <= 2, "looked at once an interval, not more"


def test_names_of_clients_that_are_gone_do_not_pile_up() -> None:
    stage = Stage()
    for n in range(5_010):
        epoch = stage.claim(f"pod-{n}")
        if n % 100:
            stage.put(ReleasingPartition, f"pod-{n}", "t", 0, epoch, n, instance=f"pod-{n}-1")
        stage.live.take_changes(stage.now_ms)
    assert stage.live.needs_rebuild
    before = stage.liveness()
    stage.live.rebuild(stage.now_ns)
    assert not stage.live.needs_rebuild
    assert len(stage.live.grid.clients) <= 2
    assert stage.liveness() == before


def test_what_is_known_of_the_past_is_the_latest_by_time_and_in_its_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log is read one coordination partition after the other."""
    monkeypatch.setattr("marshal_py.dashboard.live_state.ACTIVITY", 3)
    stage = Stage(caught_up=False)
    for at_ms in (4_000, 5_000, 6_000, 1_000, 2_000, 5_500, 3_000):
        stage.now_ms = START_MS + at_ms
        stage.claim("a", at_ms)
    stage.caught_up()
    lines = stage.live.activity
    assert [line.event.partition for line in lines] == [5_000, 5_500, 6_000]  # type: ignore[union-attr]
    assert [line.number for line in lines] == [1, 2, 3]


def test_a_takeover_is_fresh_under_the_new_name() -> None:
    stage = Stage()
    stage.claim("a")
    stage.claim("a", 1)
    stage.wait(2_500)
    stage.claim("b")
    row = stage.live.grid.rows["g", "t"]
    assert [stage.live.grid.clients[holder] for holder in row.holders] == ["b", "a"]
    assert [stage.liveness(0), stage.liveness(1)] == [FRESH, STALE]
    stage.wait(250)
    assert "a holds 1 partition" in stage.alerts("stale")[0][0]
    assert [line.kind for line in stage.live.activity] == ["Claimed", "Claimed", "TakenOver"]
    ended = list(stage.live.claims.claims(("g", "t", 0)))
    assert [(c.client_id, c.how, c.by) for c in ended] == [("a", "taken_over", "b")]


def test_the_past_is_judged_by_timestamps_and_what_comes_by_watching() -> None:
    stage = Stage(caught_up=False)
    stage.claim("dead", 0)
    stage.now_ms += 60_000
    stage.claim("alive", 1)
    stage.now_ms += 100
    stage.caught_up()
    assert [stage.liveness(0), stage.liveness(1)] == [STALE, FRESH]
    stage.wait(2_500)
    assert [stage.liveness(0), stage.liveness(1)] == [STALE, STALE]


def test_what_was_held_before_all_that_was_read_is_unknown_until_it_was_watched() -> None:
    world = World(1)
    value = encode(ClaimingPartition(2, "a", "a-1", "g", 0, "t", 0, INTERVAL_MS, -1))
    apply(world.states[0], 0, value)  # as from a snapshot
    stage = Stage(caught_up=False)
    stage.world = world
    stage.live = LiveState(world, [stage.observer])
    stage.caught_up()
    assert stage.liveness() == UNKNOWN
    stage.wait(2_000)
    assert stage.liveness() == UNKNOWN
    stage.wait(1_500)
    assert stage.liveness() == STALE


def test_a_clock_that_is_behind_the_brokers_makes_nobody_fresh_for_ever() -> None:
    stage = Stage(caught_up=False)
    stage.claim("a")
    stage.observer.caught_up_at_offset = stage.offset
    stage.live.caught_up(stage.now_ns, stage.now_ms - 3_600_000)
    assert stage.liveness() == FRESH
    stage.wait(2_500)
    assert stage.liveness() == STALE


def test_a_partition_that_stands_still_before_a_backlog_is_named_with_its_offset() -> None:
    stage = Stage()
    epoch = stage.claim("a")
    for n in range(100):
        stage.wait(INTERVAL_MS)
        stage.beat("a", epoch, next_offset=min(n, 41))
        for row in stage.live.set_ends({"t": {0: 500 + n}}):
            stage.live.update_lag(row, stage.now_ms)
        if n == 90:
            assert stage.alerts("stuck") == []
    stage.wait(INTERVAL_MS)
    stage.beat("a", epoch, next_offset=41)
    for _ in range(10):
        stage.wait(INTERVAL_MS)
        stage.beat("a", epoch, next_offset=41)
        for row in stage.live.set_ends({"t": {0: 600}}):
            stage.live.update_lag(row, stage.now_ms)
    ((text, is_open),) = stage.alerts("stuck")
    assert "t/0 stands still at offset 41" in text
    assert is_open
    stage.beat("a", epoch, next_offset=42)
    for row in stage.live.set_ends({"t": {0: 600}}):
        stage.live.update_lag(row, stage.now_ms)
    assert not stage.alerts("stuck")[0][1]


def stuck_at(stage: Stage, position: int, ends: dict[str, dict[int, int]], seconds: int) -> int:
    """Have client a hold t/0 and get nowhere for so long; return its epoch."""
    epoch = stage.claim("a")
    for _ in range(seconds):
        stage.wait(INTERVAL_MS)
        stage.beat("a", epoch, next_offset=position)
        tell(stage, ends)
    return epoch


def tell(stage: Stage, ends: dict[str, dict[int, int]]) -> None:
    """Say where topics end, as the follower does."""
    for row in stage.live.set_ends(ends, stage.now_ms):
        stage.live.update_lag(row, stage.now_ms)


def test_a_partition_that_goes_on_is_not_stuck_though_the_grid_was_made_anew() -> None:
    """As it is when the brokers answer again."""
    stage = Stage()
    epoch = stuck_at(stage, 41, {"t": {0: 600}}, 70)
    assert [is_open for _, is_open in stage.alerts("stuck")] == [True]
    stage.live.in_contact(stage.now_ns, again=True)
    tell(stage, {"t": {0: 600}})
    assert [is_open for _, is_open in stage.alerts("stuck")] == [True], "it is no less"
    stage.beat("a", epoch, next_offset=42)
    tell(stage, {"t": {0: 600}})
    assert [is_open for _, is_open in stage.alerts("stuck")] == [False]


def test_what_was_seen_of_one_row_is_not_anothers_when_the_grid_is_made_anew() -> None:
    """Rows and slots are in the order of their names then."""
    stage = Stage()
    ends = {"t": {0: 600, 1: 600}, "a": {0: 600}}
    stage.beat("b", stage.claim("b", 1), 1, next_offset=41)
    epoch = stuck_at(stage, 41, ends, 50)
    stage.beat("c", stage.claim("c", topic="a"), next_offset=41)
    stage.live.in_contact(stage.now_ns, again=True)
    for _ in range(8):
        stage.wait(INTERVAL_MS)
        stage.beat("a", epoch, next_offset=41)
        stage.put(Heartbeat, "b", INTERVAL_MS)
        stage.put(Heartbeat, "c", INTERVAL_MS)
        tell(stage, ends)
    assert stage.alerts("stuck") == []
    for _ in range(4):
        stage.wait(INTERVAL_MS)
        stage.beat("a", epoch, next_offset=41)
        tell(stage, ends)
    assert [text.split(" stands")[0] for text, _ in stage.alerts("stuck")] == ["t/0"]


def test_alerts_about_the_lag_of_a_group_end_when_it_is_forgotten() -> None:
    stage = Stage()
    epoch = stuck_at(stage, 41, {"t": {0: 600}}, 70)
    assert stage.alerts("stuck")[0][1]
    stage.put(ReleasingPartition, "a", "t", 0, epoch, 41)
    pause = stage.put(ReleaseGroup, "ops", stage.now_ms + 60_000)
    stage.put(ForgetGroup, "ops", pause)
    assert not stage.live.grid.rows
    tell(stage, {})
    assert not stage.alerts("stuck")[0][1]


@pytest.mark.parametrize("ends", [{}, {"t": {1: 600}}])
def test_lag_is_not_known_any_more_where_the_topic_is_not_told_of(
    ends: dict[str, dict[int, int]],
) -> None:
    """It was deleted, or has no leader."""
    stage = Stage()
    stuck_at(stage, 41, {"t": {0: 600}}, 70)
    row = stage.live.grid.rows["g", "t"]

    def shown() -> tuple[int | None, int | None, bool]:
        return row.lag_total, row.lag_max, row.lag[0] > 0

    assert shown() == (559, 559, True)
    stage.live.take_changes(stage.now_ms)
    tell(stage, ends)
    assert shown() == (None, None, False)
    (told,) = stage.live.take_changes(stage.now_ms)["cells"]
    assert told["lag_total"] is None
    assert not stage.alerts("stuck")[0][1], "so many messages wait: nobody knows that"


def test_of_how_many_partitions_the_lag_is_not_known_is_told_beside_that_of_the_others() -> None:
    """A sum that leaves out what is not known must not look like all that there is."""
    stage = Stage()
    stage.beat("a", stage.claim("a"), next_offset=10)
    stage.beat("a", stage.claim("a", 7), 7, next_offset=10)
    ends = {"t": {0: 15, 1: 40}}

    def shown() -> tuple[int | None, int]:
        tell(stage, ends)
        row = stage.live.grid.rows["g", "t"]
        assert row.document()["lag_unknown"] == row.lag_unknown
        return row.lag_total, row.lag_unknown

    assert shown() == (5, 1), "1 was never claimed, and 7 does not exist any more"
    stage.live.take_changes(stage.now_ms)
    stage.live.lags.offline = {("t", 2)}
    stage.beat("a", stage.claim("a", 2), 2, next_offset=3)
    assert shown() == (5, 2)
    (told,) = stage.live.take_changes(stage.now_ms)["cells"]
    assert told["lag_unknown"] == 2
    ends, stage.live.lags.offline = {"t": {}}, {("t", 0), ("t", 1), ("t", 2)}
    assert shown() == (None, 3)
    ends = {}
    assert shown() == (None, 0), "the topic is gone"


def test_claims_without_positions_are_mere_locks_and_leave_nothing_unknown() -> None:
    stage = Stage()
    stage.claim("a")
    tell(stage, {"t": {0: 15}})
    assert stage.live.grid.rows["g", "t"].lag_unknown == 0


def test_who_stands_still_for_want_of_a_leader_is_not_sent_to_the_message() -> None:
    stage = Stage()
    stage.live.lags.offline = {("t", 0)}
    stuck_at(stage, 41, {"t": {0: 600}}, 70)
    ((text, is_open),) = stage.alerts("stuck")
    assert text.endswith("559 messages wait: Kafka has no leader for it")
    assert is_open


@pytest.mark.parametrize(("step", "raised"), [(200, True), (-5, False), (0, False)])
def test_lag_that_grows_without_a_break_is_an_alert(step: int, raised: bool) -> None:
    stage = Stage()
    epoch = stage.claim("a")
    stage.beat("a", epoch, next_offset=10)
    for n in range(40):
        stage.wait(5_000)
        for row in stage.live.set_ends({"t": {0: 1_000 + n * step}}):
            stage.live.update_lag(row, stage.now_ms)
    assert bool(stage.alerts("growing_lag")) == raised


@pytest.mark.parametrize("then", [0, -1])
def test_lag_that_has_stopped_growing_is_no_alert_any_more(then: int) -> None:
    stage = Stage()
    stage.beat("a", stage.claim("a"), next_offset=10)
    end = 1_000
    for step in [200] * 40 + [then] * 40:
        end += step
        stage.wait(5_000)
        for row in stage.live.set_ends({"t": {0: end}}):
            stage.live.update_lag(row, stage.now_ms)
    ((_, is_open),) = stage.alerts("growing_lag")
    assert not is_open


def test_ranges_are_one_cell_of_their_partition() -> None:
    stage = Stage()

    def claim(client: str, count: int) -> int:
        return stage.put(ClaimingRange, client, "t", 0, INTERVAL_MS, 0, count)

    def shown() -> tuple[str, int]:
        assert list(stage.live.grid.rows) == [("g", "t")]
        row = stage.live.grid.rows["g", "t"]
        assert row.partitions == [0]
        return stage.live.grid.clients[row.holders[0]], row.live[0]

    first = claim("a", 10)
    second = claim("b", 10)
    assert shown() == ("a", FRESH)
    stage.put(ReleasingPartition, "a", "t/0@0", 0, first, 10)
    assert shown() == ("b", FRESH)
    stage.wait(2_250)
    assert shown() == ("b", STALE)
    assert "b holds 1 partition of t" in stage.alerts("stale")[0][0]
    claim("a", 30)
    assert shown() == ("b", STALE), "the lowest that is held"
    stage.live.rebuild(stage.now_ns)
    assert shown() == ("b", STALE)
    stage.beat("b", second, next_offset=12)
    assert shown() == ("b", FRESH)
    for row in stage.live.set_ends({"t": {0: 45}}):
        stage.live.update_lag(row, stage.now_ms)
    assert stage.live.lags.of("g", "t", 0) == 8 + 25
    assert stage.live.grid.rows["g", "t"].lag_total == 8 + 25
    stage.put(ReleasingPartition, "b", "t/0@10", 0, second, 15)
    assert shown() == ("a", FRESH), "what is free is nobody's"


def test_partitions_that_nobody_ever_claimed_are_shown() -> None:
    stage = Stage()
    stage.claim("a", 2)
    for row in stage.live.set_ends({"t": dict.fromkeys(range(5), 0), "other": {0: 1}}):
        stage.live.update_lag(row, stage.now_ms)
    row = stage.live.grid.rows["g", "t"]
    assert sorted(row.partitions) == [0, 1, 2, 3, 4]
    assert [row.live[row.slots[p]] for p in range(5)] == [FREE, FREE, FRESH, FREE, FREE]


def test_a_forgotten_group_goes_and_a_paused_one_says_so() -> None:
    stage = Stage()
    epoch = stage.claim("a")
    paused = stage.put(ReleaseGroup, "op", stage.now_ms + 1_000)
    document = stage.live.document(stage.now_ms)
    assert document["groups"] == [
        {"group": "g", "paused_until_ms": stage.now_ms + 1_000, "level": 1}
    ]
    stage.now_ms += 2_000
    stage.live.document(stage.now_ms)
    assert stage.alerts("pause_expired")[0][1]
    stage.put(ReleasingPartition, "a", "t", 0, epoch, 3)
    stage.put(ForgetGroup, "op", paused)
    stage.put(ResumeGroup, "op", paused)
    document = stage.live.document(stage.now_ms)
    assert (document["rows"], document["groups"]) == ([], [])
    assert not stage.alerts("pause_expired")[0][1]


def test_elections_and_shards_are_leaderships_with_what_their_holders_say() -> None:
    stage = Stage()
    stage.claim("a", topic="leader:night")
    epoch = stage.claim("b", 3, topic="harvest:outbox")
    says = [MetadataEntry(epoch, b'{"backlog": 7}')]
    stage.put(Heartbeat, "b", INTERVAL_MS, 0, [], says)
    stage.claim("c", 1, topic="orders")
    leaders = stage.live.document(stage.now_ms)["leaders"]
    assert [(x["kind"], x["name"], x["client"], x["says"]) for x in leaders] == [
        ("harvest", "outbox 3", "b", "backlog 7"),
        ("leader", "night", "a", ""),
    ]


def test_two_processes_under_one_name_are_an_alert() -> None:
    stage = Stage()
    first = stage.claim("a", instance="a-1")
    stage.claim("a", 1, instance="a-2")
    for _ in range(4):
        stage.put(Heartbeat, "a", INTERVAL_MS, 0, [first, 3], instance="a-1")
        stage.put(Heartbeat, "a", INTERVAL_MS, instance="a-2")
    assert any("two processes share it" in text for text, _ in stage.alerts("duplicate_client_id"))


def test_what_groups_consume_and_has_no_known_end_is_looked_for() -> None:
    """Locks, elections and what says how a topic is shared stand for no topic of Kafka's."""
    stage, cell = Stage(), slots_cell("slots", 2, 4)
    stage.put(Heartbeat, "a", INTERVAL_MS, 1, [], [], Subscription(frozenset({"wanted"})).encode())
    for topic in ("read", "known", cell):
        stage.beat("a", stage.claim("a", 0, topic), next_offset=7)
    for topic in ("lock", "leader:x"):
        stage.claim("a", 0, topic)
    assert stage.live.consumed_beyond({"known": {}}) == {"wanted", "read", "slots"}
    assert stage.live.consumed_beyond({"known": {}, "slots": {}, cell: {}}) == {"wanted", "read"}


def test_a_mismatch_of_snapshots_is_an_alert() -> None:
    stage = Stage()
    stage.live.mismatch("x's snapshot differs", stage.now_ms)
    assert stage.alerts("snapshot_mismatch") == [("x's snapshot differs", True)]


def test_alerts_count_end_come_again_and_are_forgotten() -> None:
    alerts = Alerts()
    alerts.raise_(("k",), "stale", "high", "one", 10)
    alerts.raise_(("k",), "stale", "high", "one", 20)
    assert [(a.count, a.last_ms) for a in alerts.take_changes()[0]] == [(1, 10)], "it goes on"
    alerts.raise_(("k",), "stale", "high", "two", 30, again=True)
    assert [(a.count, a.text) for a in alerts.take_changes()[0]] == [(2, "two")]
    alerts.end(("k",), 40)
    assert [a.until_ms for a in alerts.take_changes()[0]] == [40]
    alerts.raise_(("k",), "stale", "high", "three", 50)
    (again,), gone = alerts.take_changes()
    assert (again.since_ms, gone) == (50, [0]), "another one, and the old one goes"
    alerts.end(("k",), 60)
    alerts.expire(60 + 3_600_000)
    assert alerts.all() != []
    alerts.expire(61 + 3_600_000)
    assert alerts.all() == []
    for n in range(600):
        alerts.raise_((n,), "stale", "low", "many", n)
    assert len(alerts.all()) == 500


def test_the_claim_log_is_bounded() -> None:
    log = RecentClaims(max_claims=5, max_rejections=2)
    for n in range(9):
        claim = (
            0,
            "g",
            "t",
            n % 3,
            "a",
            "a-1",
            n,
            1,
            n,
            n + 1,
            "released",
            "a",
            0,
            0,
            0,
            0,
            n,
            0,
            0,
            0,
        )
        log.add(
            {
                "claims": [claim],
                "rejections": [(0, n, n, "g", "a", "a-1", "R", "why", "t", 0, None)],
            }
        )
    kept = [c.epoch for p in range(3) for c in log.claims(("g", "t", p))]
    assert sorted(kept) == [4, 5, 6, 7, 8]
    assert [r.offset for r in log.rejections(("g", "t", 0))] == [7, 8]
    assert log.dropped


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        (b"", ""),
        (b"plain", "plain"),
        (b'{"backlog": 12, "shard": "0-3"}', "backlog 12 · shard 0-3"),
        (b"\x81\xa1a\x01", "a 1"),
        (b'{"a": "\\ud800", "\\udfff": 1}', "a \\ud800 · \\udfff 1"),
        (b'{"a": "\\u001b[31m"}', "a \\x1b[31m"),
        (b"\xff\xfe\x00", "fffe00"),
        (b"\x1b[31m", "1b5b33316d"),
        (b"[" * 5_000, "[" * 5_000),
    ],
)
def test_metadata_is_made_readable_whatever_it_is(metadata: bytes, text: str) -> None:
    assert metadata_text(metadata) == text
    assert msgspec.json.encode(metadata_text(metadata)), "what one client says keeps no page down"


def test_metadata_that_can_be_read_and_is_too_deep_to_be_written_down_is_hex() -> None:
    """How deep that is depends on the stack: one of these can just be read."""
    for depth in range(800, 1_050):
        metadata = b"\x81\xa1a" + b"\x91" * depth + b"\x01"
        assert metadata_text(metadata)[:2] in ("a ", "81")


def test_a_range_that_gets_nowhere_is_told_with_who_holds_it_and_the_message() -> None:
    """Not with where the next range will begin, which nobody holds."""
    stage = Stage()
    fields = ("t", 0, INTERVAL_MS, 0, 10)
    epochs = {client: stage.put(ClaimingRange, client, *fields) for client in ("a", "b")}
    for _ in range(70):
        stage.wait(INTERVAL_MS)
        for client, epoch in epochs.items():
            stage.beat(client, epoch, next_offset=4)
        for row in stage.live.set_ends({"t": {0: 45}}):
            stage.live.update_lag(row, stage.now_ms)
    ((text, is_open),) = stage.alerts("stuck")
    assert is_open
    assert text.startswith("t/0 stands still at offset 4 while a holds it and ")
    (alert,) = (a for a in stage.live.alerts.all() if a.kind == "stuck")
    assert alert.client_id == "a"
