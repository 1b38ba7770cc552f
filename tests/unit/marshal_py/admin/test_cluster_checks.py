"""What `marshal doctor` says of clusters that have one thing wrong with them."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from marshal_py.admin.cluster_checks import (
    Check,
    ClockSample,
    ClusterFacts,
    PartitionFacts,
    TopicFacts,
    check_cluster,
    measure_clock_rate,
)
from marshal_py.client.topics import plan_topics

BROKERS = (1, 2, 3)
PLAN, SNAPSHOTS = plan_topics(3)
RIGHTS = frozenset({"READ", "WRITE", "DESCRIBE"})


def topic(name: str, config: dict[str, str], partitions: int = 8) -> TopicFacts:
    parts = tuple(PartitionFacts(p, 1, BROKERS, BROKERS) for p in range(partitions))
    return TopicFacts(name, parts, dict(config), RIGHTS)


SOUND = ClusterFacts(
    servers="broker:9092",
    brokers=BROKERS,
    topic=topic("__marshal", PLAN.config),
    snapshots=topic("__marshal.snapshots", SNAPSHOTS.config),
    broker_config={"log.cleaner.enable": "true", "transaction.state.log.replication.factor": "3"},
    features=frozenset({"MsgVer2", "IdempotentProducer"}),
    samples=tuple(ClockSample(1, 1_000 + t, 50.0 + t) for t in range(0, 3_000, 100)),
    wall_ahead_ms=3.0,
)


def wrong(facts: ClusterFacts) -> list[Check]:
    return [c for c in check_cluster(facts) if c.level in ("warning", "error")]


def only(facts: ClusterFacts) -> Check:
    found = wrong(facts)
    assert len(found) == 1, found
    return found[0]


def with_topic(**changes: Any) -> ClusterFacts:
    return replace(SOUND, topic=replace(SOUND.topic, **changes))


def with_config(name: str, value: str) -> ClusterFacts:
    return with_topic(config={**PLAN.config, name: value})


def test_nothing_is_wrong_with_a_sound_cluster() -> None:
    checks = check_cluster(SOUND)
    assert {c.level for c in checks} == {"ok"}, checks
    assert len(checks) > 15


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("unclean.leader.election.enable", "true", "error"),
        ("min.insync.replicas", "1", "error"),
        ("cleanup.policy", "compact", "error"),
        ("cleanup.policy", "compact,delete", "error"),
        ("retention.ms", "604800000", "error"),
        ("retention.bytes", "1000", "error"),
        ("message.timestamp.type", "CreateTime", "warning"),
    ],
)
def test_a_setting_that_endangers_a_guarantee(name: str, value: str, level: str) -> None:
    check = only(with_config(name, value))
    assert (check.name, check.level) == (name, level)
    assert check.why
    fix = shlex.split(check.fix or "")
    assert fix[0] == "kafka-configs.sh"
    assert fix[-1] == f"{name}={PLAN.config[name]}"
    assert fix[fix.index("--entity-name") + 1] == "__marshal"


def test_min_insync_replicas_of_all_replicas_stops_the_world() -> None:
    check = only(with_config("min.insync.replicas", "3"))
    assert (check.level, check.fix) == ("warning", "set it to 2")


def test_more_replicas_than_needed_are_no_finding() -> None:
    four = (*BROKERS, 4)
    parts = tuple(PartitionFacts(p, 1, four, four) for p in range(8))
    assert wrong(replace(with_topic(partitions=parts), brokers=four)) == []


def test_too_few_replicas_and_the_reassignment_that_mends_it() -> None:
    parts = tuple(PartitionFacts(p, 1 + p % 3, (1 + p % 3,), (1 + p % 3,)) for p in range(8))
    config = {**PLAN.config, "min.insync.replicas": "1"}
    check = only(with_topic(partitions=parts, config=config))
    assert (check.name, check.level) == ("replication factor", "error")
    document = json.loads(shlex.split(check.fix or "")[1])
    for p, move in enumerate(document["partitions"]):
        assert move["partition"] == p
        assert sorted(move["replicas"]) == [1, 2, 3]
        assert move["replicas"][0] == 1 + p % 3, "the leader stays where it is"


def test_new_replicas_are_spread_over_all_brokers() -> None:
    brokers = tuple(range(1, 7))
    parts = tuple(PartitionFacts(p, b, (b,), (b,)) for p, b in enumerate(brokers))
    config = {**PLAN.config, "min.insync.replicas": "1"}
    found = wrong(replace(with_topic(partitions=parts, config=config), brokers=brokers))
    (check,) = [check for check in found if check.name == "replication factor"]
    document = json.loads(shlex.split(check.fix or "")[1])
    replicas = Counter(b for move in document["partitions"] for b in move["replicas"])
    assert replicas == dict.fromkeys(brokers, 3)


@pytest.mark.parametrize(
    ("part", "level", "says"),
    [
        (PartitionFacts(3, -1, BROKERS, ()), "error", "no leader"),
        (PartitionFacts(3, 1, BROKERS, (1,)), "error", "fewer than 2"),
        (PartitionFacts(3, 1, BROKERS, (1, 2)), "warning", "out of sync"),
    ],
)
def test_partitions_that_are_not_well(part: PartitionFacts, level: str, says: str) -> None:
    parts = tuple(part if p.partition == 3 else p for p in SOUND.topic.partitions)
    check = only(with_topic(partitions=parts))
    assert (check.name, check.level) == ("replicas", level)
    assert says in check.why
    assert "3" in check.text


@pytest.mark.parametrize(
    ("number", "fix"), [(4, "kafka-topics.sh"), (9, "delete __marshal.snapshots")]
)
def test_the_snapshot_topic_has_another_number_of_partitions(number: int, fix: str) -> None:
    check = only(replace(SOUND, snapshots=topic("__marshal.snapshots", SNAPSHOTS.config, number)))
    assert (check.name, check.level) == ("partitions", "error")
    assert (check.fix or "").startswith(fix)


def test_a_log_that_was_grown_is_one_error() -> None:
    """What mends it grows the topic of snapshots, too."""
    grown = topic("__marshal", PLAN.config, 16)
    check = only(replace(SOUND, topic=grown, partitions_changed="it had 8, and now has 16"))
    assert (check.name, check.subject, check.text) == (
        *("partitions", "__marshal"),
        "it had 8, and now has 16",
    )
    assert check.fix == "marshal -b broker:9092 topic recover --topic __marshal"


def test_rights() -> None:
    check = only(replace(with_topic(operations=frozenset({"READ"})), principal="User:app"))
    assert check.name == "acl"
    assert shlex.split(check.fix or "") == [
        *("kafka-acls.sh", "--bootstrap-server", "broker:9092", "--add"),
        *("--allow-principal", "User:app", "--operation", "Write", "--topic", "__marshal"),
    ]
    denied = TopicFacts("__marshal", denied=True)
    assert only(replace(SOUND, topic=denied)).text == "this client lacks Read and Write"


def test_a_missing_topic_says_how_to_make_it() -> None:
    check = only(replace(SOUND, topic=TopicFacts("__marshal", missing=True)))
    assert check.fix == "marshal -b broker:9092 topic create --topic __marshal"


def test_brokers_that_are_too_old() -> None:
    check = only(replace(SOUND, features=frozenset({"MsgVer2"})))
    assert (check.name, check.level) == ("version", "error")
    assert "idempotent producer" in check.text


def test_brokers_settings() -> None:
    config = {"log.cleaner.enable": "false", "transaction.state.log.replication.factor": "1"}
    found = wrong(replace(SOUND, broker_config=config))
    assert [c.name for c in found] == ["log.cleaner.enable", "transaction log"]
    assert wrong(replace(SOUND, broker_config={})) == [], "what is not shown is as it is at first"


def test_what_the_brokers_do_not_tell_is_skipped_not_called_well() -> None:
    facts = replace(
        with_topic(config=None, operations=None), broker_config=None, features=None, samples=()
    )
    skipped = {c.name for c in check_cluster(facts) if c.level == "skipped"}
    assert skipped == {"version", "acl", "settings", "brokers' settings", "clock rate"}
    assert wrong(facts) == []


def test_one_broker_is_a_note() -> None:
    (plan, snapshots) = plan_topics(1)
    one = tuple(PartitionFacts(p, 1, (1,), (1,)) for p in range(8))
    facts = replace(
        SOUND,
        brokers=(1,),
        topic=TopicFacts("__marshal", one, plan.config, RIGHTS),
        snapshots=TopicFacts("__marshal.snapshots", one, snapshots.config, RIGHTS),
        broker_config={},
    )
    assert wrong(facts) == []
    assert [c.name for c in check_cluster(facts) if c.level == "note"] == ["brokers"]


@pytest.mark.parametrize(("rate", "level"), [(0.001, "ok"), (0.03, "error"), (-0.03, "error")])
def test_clock_rates(rate: float, level: str) -> None:
    samples = tuple(
        ClockSample(1, round(1_000 + t * (1 + rate)), t + (40 if t % 300 else 2))
        for t in range(0, 3_000, 100)
    )
    measured = measure_clock_rate(samples)
    assert measured is not None
    assert abs(measured - rate) < 0.002, "slow answers do not count"
    check = next(
        c for c in check_cluster(replace(SOUND, samples=samples)) if c.name == "clock rate"
    )
    assert check.level == level


def test_a_rate_needs_time_and_one_broker() -> None:
    assert measure_clock_rate([]) is None
    assert measure_clock_rate([ClockSample(1, t, t) for t in range(0, 900, 10)]) is None
    assert measure_clock_rate([ClockSample(1, t, t) for t in range(0, 9_000, 700)]) is None
    assert measure_clock_rate([ClockSample(1, t, t) for t in range(0, 9_000, 500)]) == 0
    assert measure_clock_rate([ClockSample(t, t, t) for t in range(0, 9_000, 100)]) is None


def test_clocks_of_brokers_that_differ_and_the_wall_clock() -> None:
    samples = tuple(ClockSample(b, t + 1_500 * b, t) for b in (1, 2) for t in range(0, 3_000, 100))
    assert only(replace(SOUND, samples=samples)).name == "brokers' clocks"
    note = next(
        c for c in check_cluster(replace(SOUND, wall_ahead_ms=-60_000)) if c.level == "note"
    )
    assert note.name == "wall clock"


@pytest.mark.parametrize(("longest", "other"), [(1, 2), (2, 1)])
def test_the_rate_is_that_of_the_broker_that_was_seen_for_longest(longest: int, other: int) -> None:
    """The shorter the time, the more of what is measured is how long answers took."""
    samples = [ClockSample(longest, t, t) for t in range(0, 9_000, 100)]
    samples += [ClockSample(other, round(t * 1.1), t) for t in range(0, 3_000, 100)]
    assert measure_clock_rate(samples) == 0


def test_an_answer_that_came_late_says_nothing_of_the_brokers_clock() -> None:
    samples = [ClockSample(b, t, t) for b in (1, 2) for t in range(0, 3_000, 100)]
    samples.append(ClockSample(1, 3_000, 5_000))
    assert wrong(replace(SOUND, samples=tuple(samples))) == []


@pytest.mark.parametrize("name", PLAN.config)
def test_a_setting_that_the_brokers_do_not_know_is_no_finding(name: str) -> None:
    config = {other: value for other, value in PLAN.config.items() if other != name}
    assert wrong(with_topic(config=config)) == []


def test_the_log_and_the_machine() -> None:
    check = only(replace(SOUND, unreadable="offset 7 is no record"))
    assert (check.name, check.level) == ("log", "error")
    assert "offset 7 is no record" in check.text
    found = wrong(replace(SOUND, mismatches=("w's snapshot differs",), other_wire=True))
    assert [(c.name, c.fix) for c in found] == [
        ("snapshots", "marshal verify"),
        ("records", "marshal group migrate --help"),
    ]
    assert only(replace(SOUND, counts_sleep=False)).name == "clock"


def test_more_partitions_than_are_of_use_are_a_note() -> None:
    config = dict(PLAN.config)
    for number, notes in ((64, 0), (65, 2)):
        facts = replace(
            SOUND,
            topic=topic("__marshal", config, number),
            snapshots=topic("__marshal.snapshots", SNAPSHOTS.config, number),
        )
        assert [c.level for c in check_cluster(facts)].count("note") == notes


def test_of_many_partitions_some_are_named_and_all_are_counted() -> None:
    parts = tuple(PartitionFacts(p, -1, BROKERS, ()) for p in range(9))
    snapshots = topic("__marshal.snapshots", SNAPSHOTS.config, 9)
    check = only(replace(with_topic(partitions=parts), snapshots=snapshots))
    assert check.text == "partitions 0, 1, 2, 3, 4, 5, 6, 7, … (9)"


@pytest.mark.parametrize(("ahead_ms", "notes"), [(-2_000, 0), (2_000, 0), (-2_001, 1), (2_001, 1)])
def test_a_wall_clock_may_be_off_by_two_seconds_either_way(ahead_ms: float, notes: int) -> None:
    checks = check_cluster(replace(SOUND, wall_ahead_ms=ahead_ms))
    assert [c.name for c in checks if c.level == "note"] == ["wall clock"] * notes


def test_without_a_topic_of_snapshots_starts_are_slow_and_claims_are_possible() -> None:
    facts = replace(SOUND, snapshots=TopicFacts("__marshal.snapshots", missing=True))
    assert only(facts).why == "every start replays the whole log"


def test_transactions_have_as_many_replicas_as_there_are_brokers_up_to_three() -> None:
    two = replace(SOUND, broker_config={"transaction.state.log.replication.factor": "2"})
    assert only(two).name == "transaction log"
    assert "transaction log" not in [c.name for c in wrong(replace(two, brokers=(1, 2)))]
