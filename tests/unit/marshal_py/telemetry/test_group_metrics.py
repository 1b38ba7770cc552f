"""What the exporter says of partitions, as the brokers' answers come."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

from prometheus_client.core import GaugeMetricFamily

from marshal_py.admin.connection import Connection
from marshal_py.admin.lag import PartitionLag
from marshal_py.admin.world_summary import Group, Member, WorldSummary
from marshal_py.client.log_reader import boottime_ns
from marshal_py.protocol import events as ev
from marshal_py.protocol.messages import ClaimingPartition, ReleasingPartition
from marshal_py.protocol.subscription import Subscription
from marshal_py.telemetry import group_metrics
from marshal_py.telemetry.group_metrics import GroupMetrics
from tests.support.log_by_hand import LogByHand
from tests.support.messages import heartbeat

ROWS = [PartitionLag("g", "t", p, 5, 0, 9, 4, "c", "live", claimed=True) for p in range(2)]


@pytest.fixture(autouse=True)
def log_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody answers for each partition of the log, and hides no topic."""
    monkeypatch.setattr(group_metrics, "_ask_log", lambda _: None)
    monkeypatch.setattr(group_metrics, "hidden_topics", lambda *_, **__: [])


def lags(metrics: GroupMetrics) -> dict[str, float]:
    """The lag in messages by partition."""
    (family,) = [m for m in metrics._lag() if m.name == "marshal_group_lag_messages"]
    return {sample.labels["partition"]: sample.value for sample in family.samples}


def test_a_partition_that_is_gone_is_shown_no_more_and_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that comes back under its name has not waited since then."""
    nothing: Any = None
    metrics = GroupMetrics(nothing, nothing, threading.Lock())
    monkeypatch.setattr(group_metrics, "measure_lag", lambda *_, **__: ROWS)
    metrics.ask()
    assert lags(metrics) == {"0": 4, "1": 4}
    monkeypatch.setattr(group_metrics, "measure_lag", lambda *_, **__: ROWS[:1])
    metrics.ask()
    assert lags(metrics) == {"0": 4}
    assert metrics._clocks.keys() == {("g", "t", 0)}


def values(metrics: GroupMetrics, name: str) -> dict[str, float]:
    """A gauge by partition."""
    (family,) = [m for m in metrics._lag() if m.name == f"marshal_group_{name}"]
    return {sample.labels["partition"]: sample.value for sample in family.samples}


def test_a_partition_without_a_leader_is_told_and_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing: Any = None
    metrics = GroupMetrics(nothing, nothing, threading.Lock())
    ends: list[Any] = []

    def measure(offline: PartitionLag) -> None:
        def rows(*_: object, last: object, **__: object) -> list[PartitionLag]:
            ends.append(last)
            return [ROWS[0], offline]

        monkeypatch.setattr(group_metrics, "measure_lag", rows)
        metrics.ask()

    gone = replace(ROWS[1], first_offset=None, next_offset=None, lag=None, offline=True)
    measure(gone)
    assert metrics.reachable()
    assert (lags(metrics), values(metrics, "partition_offline")) == ({"0": 4}, {"0": 0, "1": 1})
    assert values(metrics, "stalled_seconds") == {"0": 0}, "what is not known is not 0"
    measure(ROWS[1])
    assert values(metrics, "partition_offline") == {"0": 0, "1": 0}
    measure(replace(ROWS[1], offline=True))
    assert (lags(metrics), values(metrics, "partition_offline")["1"]) == ({"0": 4, "1": 4}, 1)
    known = {("t", 0): (0, 9), ("t", 1): (0, 9)}
    assert ends == [{}, {("t", 0): (0, 9)}, known]


def test_brokers_that_do_not_answer_change_nothing_but_whether_they_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nothing: Any = None
    metrics = GroupMetrics(nothing, nothing, threading.Lock())
    monkeypatch.setattr(group_metrics, "measure_lag", lambda *_, **__: ROWS)
    metrics.ask()
    assert metrics.reachable()

    def fail(*_: object, **__: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    for times in (1, 2):
        monkeypatch.setattr(group_metrics, "measure_lag", fail)
        for _ in range(3):
            metrics.ask()
        assert not metrics.reachable()
        assert lags(metrics) == {"0": 4, "1": 4}
        assert len(caplog.records) == times, "each outage is told once"
        monkeypatch.setattr(group_metrics, "measure_lag", lambda *_, **__: ROWS)
        metrics.ask()


def test_a_fault_of_the_program_does_not_end_the_asking(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nothing: Any = None
    metrics = GroupMetrics(nothing, nothing, threading.Lock())
    found: list[Any] = [ZeroDivisionError(), ZeroDivisionError(), ROWS]

    def measure(*_: object, **__: object) -> Any:
        one = found.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    seen: list[bool] = []
    stopped: Any = SimpleNamespace(
        is_set=lambda: not found, wait=lambda _: seen.append(metrics.reachable())
    )
    monkeypatch.setattr(group_metrics, "measure_lag", measure)
    metrics.ask_until(stopped)
    assert seen == [False, False, True]
    assert [record.exc_info is None for record in caplog.records] == [False], "told once"


def test_a_scrape_needs_nothing_that_the_next_answer_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may come in the midst of that."""
    nothing: Any = None
    metrics = GroupMetrics(nothing, nothing, threading.Lock())
    monkeypatch.setattr(group_metrics, "measure_lag", lambda *_, **__: ROWS)
    metrics.ask()
    metrics._clocks.clear()
    assert lags(metrics) == {"0": 4, "1": 4}


def test_what_nobody_held_has_not_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes to work in the morning, or after a pause, is not reported for the night."""
    nothing: Any = None
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    metrics = GroupMetrics(nothing, nothing, threading.Lock())

    def stalled(after_s: float, row: PartitionLag) -> float:
        now_s[0] += after_s
        monkeypatch.setattr(group_metrics, "measure_lag", lambda *_, **__: [row])
        metrics.ask()
        (family,) = [m for m in metrics._lag() if m.name == "marshal_group_stalled_seconds"]
        return float(family.samples[0].value)

    held, dead, free = (
        ROWS[0],
        replace(ROWS[0], liveness="stale"),
        replace(ROWS[0], holder=None, liveness=None),
    )
    assert [stalled(0, held), stalled(10, held)] == [0, 10]
    assert [stalled(10, dead), stalled(28_800, free)] == [0, 0]
    assert [stalled(10, held), stalled(10, held)] == [10, 20], "since nobody held it last"


def test_who_never_gets_its_first_message_done_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing was stored yet, so its lag is not known; a claim that is a lock never stores any."""
    nothing: Any = None
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    begun = replace(ROWS[0], position=None, lag=None, wanted=True)
    lock, empty = replace(begun, partition=1, wanted=False), replace(begun, partition=2)
    empty.first_offset = empty.next_offset
    by_keys = replace(begun, partition=3, slots=16)
    metrics = GroupMetrics(nothing, nothing, threading.Lock())
    rows = [begun, lock, empty, by_keys]
    monkeypatch.setattr(group_metrics, "measure_lag", lambda *_, **__: rows)
    metrics.ask()
    now_s[0] += 130
    metrics.ask()
    assert values(metrics, "stalled_seconds") == {"0": 130, "1": 0, "2": 0, "3": 0}
    begun.position, begun.lag = 6, 3
    metrics.ask()
    assert values(metrics, "stalled_seconds")["0"] == 0


def test_a_log_that_nobody_answers_for_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other brokers, which have the topics of messages, may answer."""
    nothing: Any = None
    metrics = GroupMetrics(nothing, nothing, threading.Lock())
    monkeypatch.setattr(group_metrics, "measure_lag", lambda *_, **__: ROWS)
    metrics.ask()
    assert metrics.reachable()

    def fail(_: object) -> None:
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))

    monkeypatch.setattr(group_metrics, "_ask_log", fail)
    metrics.ask()
    assert not metrics.reachable()


VIEW: Any = SimpleNamespace(
    world=SimpleNamespace(states=[], cells=lambda _: ()),
    reader=SimpleNamespace(mismatches=[]),
    newest_ms=None,
    behind_ms=0,
)


def test_of_a_log_that_is_read_no_more_nothing_is_said_of_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its topic was deleted: in what was read last, everybody lives for ever."""
    now_ns = [10**12]
    monkeypatch.setattr(group_metrics, "boottime_ns", lambda: now_ns[0])
    monkeypatch.setattr(
        group_metrics, "summarize", lambda _: WorldSummary([Group("g", 1, 1, 0, 0, False)])
    )
    VIEW.observed_until_ns = now_ns[0]
    nothing: Any = None
    metrics = GroupMetrics(nothing, VIEW, threading.Lock())

    def told() -> tuple[float, bool]:
        found = {metric.name: metric for metric in metrics.collect()}
        reachable = found["marshal_exporter_kafka_reachable"].samples[0].value
        return reachable, "marshal_group_members" in found

    now_ns[0] += 10 * 10**9
    assert told() == (1, True)
    now_ns[0] += 10 * 10**9
    assert told() == (0, False)


def test_while_the_brokers_do_not_answer_nothing_is_said_of_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An outage is no death of everybody."""
    view = VIEW
    view.observed_until_ns = boottime_ns()
    nothing: Any = None
    metrics = GroupMetrics(nothing, view, threading.Lock())
    live = GaugeMetricFamily("marshal_group_members_live", "Live.", value=0)
    monkeypatch.setattr(group_metrics, "summarize", lambda _: None)
    monkeypatch.setattr(group_metrics, "_groups", lambda *_: iter([live]))
    monkeypatch.setattr(metrics, "reachable", lambda: True)
    assert live in list(metrics.collect())
    monkeypatch.setattr(metrics, "reachable", lambda: False)
    found = {metric.name: metric for metric in metrics.collect()}
    assert live.name not in found
    assert "marshal_group_lag_messages" not in found
    assert found["marshal_exporter_kafka_reachable"].samples[0].value == 0


def test_a_topic_that_the_brokers_hide_is_told_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without its series it would look as though it were well."""
    VIEW.observed_until_ns = boottime_ns()
    metrics = GroupMetrics(Connection.of_servers("nowhere:1"), VIEW, threading.Lock())
    monkeypatch.setattr(group_metrics, "summarize", lambda _: None)
    monkeypatch.setattr(group_metrics, "_groups", lambda *_: iter(()))
    monkeypatch.setattr(group_metrics, "measure_lag", lambda *_, **__: ROWS)
    hidden = ["secret"]
    monkeypatch.setattr(group_metrics, "hidden_topics", lambda *_, **__: list(hidden))

    def gauge() -> dict[str, float]:
        metrics.ask()
        (found,) = [m for m in metrics.collect() if m.name == "marshal_exporter_topic_hidden"]
        return {sample.labels["topic"]: sample.value for sample in found.samples}

    assert gauge() == gauge() == {"secret": 1}
    (record,) = caplog.records
    assert "Describe on topic 'secret'" in record.getMessage()
    hidden.clear()
    assert gauge() == {}


def told(rows: list[PartitionLag], monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """Name → values, after the brokers were asked once for these rows."""
    nothing: Any = None
    metrics = GroupMetrics(nothing, nothing, threading.Lock())
    monkeypatch.setattr(group_metrics, "measure_lag", lambda *_, **__: rows)
    metrics.ask()
    return {
        m.name.removeprefix("marshal_group_"): [sample.value for sample in m.samples]
        for m in metrics._lag()
    }


def test_a_partition_that_nobody_alive_holds_is_stopped_while_messages_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One without a position waits with all that there is."""
    held = replace(ROWS[0], wanted=True)
    found = told(
        [
            held,
            replace(held, partition=1, liveness="stale"),
            replace(held, partition=2, holder=None, liveness=None),
            replace(held, partition=3, holder=None, liveness=None, lag=0),
            replace(held, partition=4, holder=None, liveness=None, lag=None, position=None),
        ],
        monkeypatch,
    )
    assert found["partition_stopped"] == [0, 1, 1, 0, 1]
    assert found["partition_held"] == [1, 1, 0, 0, 0]
    assert found["lag_messages"] == [4, 4, 4, 0]


def test_what_nobody_wants_is_no_partition_that_nobody_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic that a group consumes no more, or a lock between its uses, needs no holder."""
    nothing: Any = None
    metrics = GroupMetrics(nothing, nothing, threading.Lock())
    free = replace(ROWS[0], holder=None, liveness=None)
    lock = replace(free, position=None, lag=None)

    def told(*rows: PartitionLag) -> dict[str, float]:
        monkeypatch.setattr(group_metrics, "measure_lag", lambda *_, **__: rows)
        metrics.ask()
        return values(metrics, "partition_held")

    wanted, dropped = replace(free, wanted=True), replace(free, topic="refunds", partition=1)
    assert told(wanted, dropped, replace(lock, partition=2)) == {"0": 0}
    assert told(replace(ROWS[0], wanted=True), replace(ROWS[1], topic="refunds")) == {
        "0": 1,
        "1": 1,
    }
    # Its members are gone, or claim partitions by hand.
    assert told(free, replace(lock, partition=1)) == {"0": 0}
    other = replace(wanted, group="h", partition=2)
    assert told(free, replace(lock, partition=1), other) == {"0": 0, "2": 0}


def test_of_partitions_that_are_shared_by_ranges_none_open_is_told_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing: Any = None
    metrics = GroupMetrics(nothing, nothing, threading.Lock())
    rows = [replace(ROWS[0], open_ranges=2, most_granted=3), ROWS[1]]

    def ranges() -> list[float]:
        monkeypatch.setattr(group_metrics, "measure_lag", lambda *_, **__: rows)
        metrics.ask()
        return [
            sample.value
            for m in metrics._lag()
            if m.name.startswith("marshal_group_open_range")
            for sample in m.samples
        ]

    assert ranges() == [2, 3]
    rows[0] = ROWS[0]
    assert ranges() == [0, 0], "an alert about them must end"


def test_answers_that_are_long_ago_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that asks may hang."""
    nothing: Any = None
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    monkeypatch.setattr(group_metrics, "measure_lag", lambda *_, **__: ROWS)
    metrics = GroupMetrics(nothing, nothing, threading.Lock())
    metrics.ask()
    now_s[0] += group_metrics.ASK_EVERY_S
    assert metrics.reachable()
    now_s[0] += group_metrics.ASK_EVERY_S
    assert not metrics.reachable()


def test_a_range_that_is_granted_again_is_delivered_again() -> None:
    nothing: Any = None
    metrics = GroupMetrics(nothing, nothing, threading.Lock())
    for granted in (1, 2, 3):
        metrics.count(ev.RangeGranted(0, "a", "a-1", "g", 1, "t", 0, 5, 9, granted))
    assert metrics._redeliveries == {"g": 2}


def test_members_and_claims_of_a_group_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the dead, those that fell silent of late are lost; a silent leader is told apart."""
    members = [
        Member("g", "a", "a-1", 1_000, 1, "fresh", 5, False),
        Member("g", "b", "b-1", 1_000, 1, "unknown", 1_500, False),
        Member("g", "c", "c-1", 1_000, 1, "stale", 5_000, False),
        Member("g", "d", "d-1", 1_000, 1, "stale", group_metrics.LOST_FOR_MS, False),
    ]
    summary = WorldSummary([Group("g", 4, 7, 3, 2, paused=True)], members)
    leaderships = [("g", "nightly", 0, False, True), ("g", "hourly", 0, True, False)]
    found = {
        m.name.removeprefix("marshal_group_"): [sample.value for sample in m.samples]
        for m in group_metrics._groups(summary, leaderships)
    }
    assert found == {
        "members": [4], "members_live": [2], "members_lost": [1], "claims_held": [7],
        "claims_stale": [2], "claims_free": [2], "paused": [1], "leader_held": [0, 1],
    }  # fmt: skip


@pytest.mark.parametrize(("left_s", "paused"), [(60, 1), (-1, 0)])
def test_a_pause_whose_time_is_up_is_none_though_nobody_is_left_to_end_it(
    left_s: int, paused: int
) -> None:
    """Alerts are silent during a pause."""
    until_ms = int((time.time() + left_s) * 1000)
    group = Group("g", 0, 0, 0, 2, paused=True, paused_until_ms=until_ms)
    found = {m.name: m.samples for m in group_metrics._groups(WorldSummary([group], []), [])}
    assert [sample.value for sample in found["marshal_group_paused"]] == [paused]


class Outbox(LogByHand):
    """What harvesters wrote who led it, or its shards."""

    def __init__(self) -> None:
        super().__init__()
        self._seqs: Counter[str] = Counter()
        self._versions: dict[tuple[str, int], int] = {}

    def _seq(self, client: str) -> int:
        self._seqs[client] += 1
        return self._seqs[client]

    def claims(self, client: str, topic: str, shard: int, *, released: bool = False) -> None:
        seen = self._versions.get((topic, shard), -1)
        epoch = self.write(
            ClaimingPartition(2, client, "i", "g", self._seq(client), topic, shard, 60_000, seen),
            99_500,
        )
        if released:
            self._versions[topic, shard] = self.write(
                ReleasingPartition(2, client, "i", "g", self._seq(client), topic, shard, epoch, -1)
            )

    def joins(self, client: str, at_ms: int = 99_500, **labels: str) -> None:
        said = Subscription(frozenset({"harvest:o"}), labels=labels).encode()
        self.write(heartbeat(client, self._seq(client), membership=1, member_metadata=said), at_ms)

    def told(self) -> list[tuple[str, int, bool]]:
        found = list(group_metrics._leaderships(self.view(at_ms=100_000)))
        return sorted((name, shard, leads) for _, name, shard, leads, _ in found)


def test_a_shard_that_is_no_more_needs_no_leader() -> None:
    """`harvest shards` made two of three, and of one before."""
    log = Outbox()
    log.claims("old", "leader:harvest:o", 0, released=True)
    for shard in range(3):
        log.claims("old", "harvest:o", shard, released=True)
    gone = [("harvest:o", shard, False) for shard in range(3)]
    assert log.told() == gone
    log.claims("new", "harvest:o", 0)
    assert log.told() == [("harvest:o", 0, True), *gone[1:]], "nobody says how many there are"
    log.joins("dead", 1_000, shards="3")
    log.joins("new", shards="2")
    assert log.told() == [("harvest:o", 0, True), gone[1]]
    log.joins("older", zone="a")
    assert log.told() == [("harvest:o", 0, True), *gone[1:]], "not everybody says it"


def test_an_outbox_that_is_one_again_has_one_leader() -> None:
    log = Outbox()
    log.claims("old", "leader:harvest:o", 0, released=True)
    log.claims("old", "harvest:o", 0, released=True)
    log.claims("old", "harvest:o", 1, released=True)
    log.claims("old", "leader:nightly", 0)
    log.claims("new", "leader:harvest:o", 0)
    assert log.told() == [("harvest:o", 0, True), ("nightly", 0, True)]


def test_where_one_harvester_does_not_say_how_many_shards_there_are_none_is_left_out() -> None:
    log = Outbox()
    for shard in range(3):
        log.claims("old", "harvest:o", shard, released=True)
    free = [("harvest:o", shard, False) for shard in range(3)]
    log.joins("new", shards="2")
    assert log.told() == free[:2]
    log.joins("older", zone="a")
    assert log.told() == free
