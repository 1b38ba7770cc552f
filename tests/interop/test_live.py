"""Our clients beside Go clients on a real broker: who gets what, and when."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from marshal_py import ClaimTimeout, DuplicateClientId, InvalidArgument, Marshal, NotInVersion1
from marshal_py.admin.version1 import pause_group, resume_group, set_positions
from marshal_py.protocol.text.codec import coordinating_partition
from tests.interop.conftest import HB, Stage
from tests.interop.gomodel import GoWorld, parse
from tests.interop.gopeer import coordinator
from tests.support.messages import value_of

pytestmark = pytest.mark.kafka


def await_held(marshal: Marshal, topic: str, timeout_s: float = 120) -> None:
    marshal.claim(topic, 0, timeout_s=timeout_s)


# Claims and releases, in both directions


def test_what_go_holds_is_ours_when_it_releases_and_from_its_offset(stage: Stage) -> None:
    topic = stage.topic(partitions=1, messages=50)
    go = stage.go("go", topic, "-quiet")
    go.expect("claim", topic=topic, partition=0)
    go.expect("first_message")
    ours = stage.ours("py")
    assert ours.try_claim(topic, 0) is None
    claim = ours.want(topic, 0)
    assert go.terminate() == 0
    left = time.monotonic()
    assert claim.wait_held(60)
    assert time.monotonic() - left < HB  # no wait for staleness
    assert claim.held
    assert claim.next_offset == 50


def test_what_we_hold_is_gos_when_we_release_and_from_our_offset(stage: Stage) -> None:
    topic = stage.topic(partitions=1, messages=50)
    ours = stage.ours("py")
    claim = ours.claim(topic, 0, timeout_s=60)
    go = stage.go("go", topic)
    go.expect("dialed")
    claim.commit(20, wait=True)
    time.sleep(2.5 * HB)  # it looks every 3 seconds at most: it had time to take what looks free
    assert go.claims() == set()
    assert claim.held
    claim.commit(30)
    claim.release()
    go.expect("claim", 15, topic=topic, partition=0)
    assert go.expect("msg")["offset"] == 30


def test_after_gos_crash_we_wait_two_intervals_and_go_on_from_its_last_heartbeat(
    stage: Stage,
) -> None:
    topic = stage.topic(partitions=1, messages=50)
    go = stage.go("go", topic, "-quiet")
    go.expect("first_message")
    ours = stage.ours("py")
    claim = ours.want(topic, 0)
    deadline = time.monotonic() + 120
    while (cell := ours.cell(topic, 0)) is None or cell.next_offset != 50:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    go.crash()
    last = ours.cell(topic, 0).version  # type: ignore[union-attr]
    crashed = time.monotonic()
    assert claim.wait_held(3 * HB + 5)
    assert time.monotonic() - crashed > HB  # its last heartbeat is no older than half an interval
    assert claim.next_offset == 50
    stamps = {
        m.offset(): m for m in stage.records() if m.partition() == claim._core.holding.coordinator
    }
    assert parse(value_of(stamps[last]))[0] == "Heartbeat"


def test_after_our_crash_go_takes_over(stage: Stage) -> None:
    topic = stage.topic(partitions=1, messages=50)
    ours = stage.ours("py")
    claim = ours.claim(topic, 0, timeout_s=60)
    claim.commit(20, wait=True)
    go = stage.go("go", topic)
    go.expect("dialed")
    ours.close(release=False)  # as a crash, after a last heartbeat
    assert not claim.held
    assert go.claims() == set()
    go.expect("claim", 4 * HB, topic=topic, partition=0)
    assert go.expect("msg")["offset"] == 20


# Restarts under the same client id


def test_we_resume_at_once_what_a_dead_go_process_of_our_name_held(stage: Stage) -> None:
    topic = stage.topic(partitions=2, messages=10)
    go = stage.go("same", topic, "-quiet", "-greedy")
    go.expect("claim", count=2)
    go.crash()
    ours = stage.ours("same")
    started = time.monotonic()
    claims = ours.claim_many([(topic, 0), (topic, 1)], timeout_s=HB)
    assert time.monotonic() - started < HB
    assert all(claim.held for claim in claims)
    kinds = [
        parse(value_of(m))[0] for m in stage.records() if parse(value_of(m))[2] == ours.instance_id
    ]
    assert set(kinds) == {"Heartbeat"}  # no claim, as Go does it


def test_go_resumes_at_once_what_we_kept_under_its_name(stage: Stage) -> None:
    topic = stage.topic(partitions=1, messages=10)
    ours = stage.ours("same")
    ours.claim(topic, 0, timeout_s=60).commit(7)
    ours.close(release=False)
    go = stage.go("same", topic)
    dialed = go.expect("dialed")
    claim = go.expect("claim", HB)
    assert go.events.index(claim) == go.events.index(dialed) + 1
    assert go.expect("msg")["offset"] == 7


def test_without_resume_we_wait_for_our_own_name_as_well(stage: Stage) -> None:
    topic = stage.topic(partitions=1)
    first = stage.ours("same")
    first.claim(topic, 0, timeout_s=60)
    first.close(release=False)
    ours = stage.ours("same", resume=False)
    with pytest.raises(ClaimTimeout):
        ours.claim(topic, 0, timeout_s=HB)


def test_a_live_go_process_of_our_name_is_noticed_and_we_stop(stage: Stage) -> None:
    topic = stage.topic(partitions=1)
    ours = stage.ours("same")
    claim = ours.claim(topic, 0, timeout_s=60)
    lost: list[Any] = []
    claim.on_lost = lost.append
    go = stage.go("same", topic)
    go.expect("claim", HB + 10)  # it reclaims what it takes for its own
    assert claim.wait_lost(60)
    assert isinstance(ours.failure, DuplicateClientId)
    with pytest.raises(DuplicateClientId):
        ours.claim(topic, 0)


# Clocks


def test_a_live_go_client_keeps_its_partition_whatever_its_clock_shows(stage: Stage) -> None:
    topics = {ahead_s: stage.topic(messages=5) for ahead_s in (-3600, -HB, -1.5, 1.5, HB, 3600)}
    for ahead_s, topic in topics.items():
        go = stage.go(f"go{ahead_s}", topic, "-quiet", "-greedy", "-clock", ahead_s)
        go.expect("claim", count=2)
    ours = stage.ours("py")
    wanted = [ours.want(topic, p) for topic in topics.values() for p in range(2)]
    time.sleep(3 * HB)
    assert not any(claim.held for claim in wanted)
    # We did not even try.
    assert not [m.value() for m in stage.records() if b"/py/" in value_of(m)]


def test_a_dead_go_client_whose_clock_was_ahead_is_replaced_in_the_end(stage: Stage) -> None:
    topic = stage.topic(partitions=1, messages=5)
    go = stage.go("go", topic, "-quiet", "-clock", HB)
    go.expect("claim")
    ours = stage.ours("py")
    go.crash()
    claim = ours.claim(topic, 0, timeout_s=60 * HB)
    assert claim.held


def test_what_a_go_client_with_a_clock_behind_takes_from_us_we_give_up(stage: Stage) -> None:
    """A claim of ours lies in its future, which it takes for none: it claims, and goes on."""
    topic = stage.topic(partitions=1, messages=5)
    ours = stage.ours("py")
    claim = ours.claim(topic, 0, timeout_s=60)
    go = stage.go("go", topic, "-quiet", "-clock", -100)
    go.expect("claim", 60)
    assert claim.wait_lost(60)
    assert claim._core.ended.wait(60)
    assert claim.reason is not None
    with pytest.raises(ClaimTimeout):
        ours.claim(topic, 0, timeout_s=2 * HB)


# Topic claims and pauses


def test_a_topic_that_go_claimed_as_a_whole_is_left_alone_until_it_goes(stage: Stage) -> None:
    topic = stage.topic(partitions=3, messages=2)
    go = stage.go("go", topic, "-entire")
    go.expect("claim", count=3)
    assert go.expect("topic_claims", topics=[topic])
    go.expect("msg", count=3 * 2)  # what it has done is said with its release
    ours = stage.ours("py")
    for partition in range(3):
        assert ours.try_claim(topic, partition) is None
    assert go.terminate() == 0
    claims = ours.claim_many([(topic, p) for p in range(3)], timeout_s=HB)
    assert [claim.next_offset for claim in claims] == [2, 2, 2]


def test_go_leaves_alone_a_topic_whose_first_partition_we_hold(stage: Stage) -> None:
    topic = stage.topic(partitions=3)
    ours = stage.ours("py")
    claim = ours.claim(topic, 0, timeout_s=60)
    go = stage.go("go", topic, "-entire")
    go.expect("dialed")
    time.sleep(2.5 * HB)
    assert go.claims() == set()
    claim.release()
    go.expect("claim", 15, count=3)


def test_a_pause_record_makes_both_sides_release_and_come_back(stage: Stage) -> None:
    topic, mine = stage.topic(partitions=1, messages=2), stage.topic(partitions=1)
    ours = stage.ours("py")
    claim = ours.claim(mine, 0, timeout_s=60)
    claim.on_pause = lambda claim: None  # work has stopped at once
    go = stage.go("go", topic, "-quiet", "-before-94")
    go.expect("claim")
    until = int(time.time()) + 6
    pause = f"ReleaseGroup/0/{int(time.time())}/abc/adm/{stage.group}//0/{until}".encode()
    for partition in range(3):
        stage.append(pause, partition=partition)
    assert claim._core.ended.wait(HB)
    assert claim.reason == "the group was paused"
    go.expect("unclaim", 60)
    again = ours.claim(mine, 0, timeout_s=60)
    assert again.held
    assert time.time() > until
    go.expect("claim", 15, count=2)


def test_our_own_pause_is_heeded_by_go_and_by_us_until_it_is_ended(stage: Stage) -> None:
    topic, mine = stage.topic(partitions=1, messages=2), stage.topic(partitions=1)
    ours = stage.ours("py")
    claim = ours.claim(mine, 0, timeout_s=60)
    claim.on_pause = lambda claim: None
    go = stage.go("go", topic, "-quiet", "-before-94")
    go.expect("claim")
    pause_group(stage.brokers, stage.group, for_s=600, topic=stage.log)
    assert claim._core.ended.wait(HB)
    go.expect("unclaim", 60)
    again = ours.want(mine, 0)
    resume_group(stage.brokers, stage.group, topic=stage.log)
    assert again.wait_held(HB)
    go.expect("claim", 15, count=2)


def test_positions_are_set_as_gos_admin_does_it(stage: Stage) -> None:
    topic = stage.topic(partitions=2, messages=20)
    go = stage.go("go", topic, "-greedy", "-before-94")
    go.expect("msg", count=40)
    set_positions(
        stage.brokers,
        stage.group,
        {(topic, 0): 5, (topic, 1): 15},
        interval_ms=HB * 1000,
        topic=stage.log,
    )
    go.expect("claim", 20, count=4)
    go.expect("msg", count=40 + 15 + 5)
    again = [(e["partition"], e["offset"]) for e in go.said("msg")[40:]]
    assert sorted(again) == [(0, n) for n in range(5, 20)] + [(1, n) for n in range(15, 20)]


def test_a_position_of_zero_is_not_undone_by_what_go_committed(stage: Stage) -> None:
    topic = stage.topic(partitions=2, messages=20)
    kafka = Consumer({"bootstrap.servers": stage.brokers, "group.id": stage.group})
    committed = [TopicPartition(topic, partition, 15) for partition in range(2)]
    kafka.commit(offsets=committed, asynchronous=False)
    set_positions(
        stage.brokers, stage.group, {(topic, 0): 0}, interval_ms=HB * 1000, topic=stage.log
    )
    found = kafka.committed([TopicPartition(topic, partition) for partition in range(2)], 60)
    kafka.close()
    assert [at.offset for at in found] == [0, 15]
    ours = stage.py("py", topic, "-greedy")
    ours.expect("msg", count=20 + 5)
    assert min(e["offset"] for e in ours.said("msg", partition=0)) == 0


# The log


HOSTILE = [
    b"Heartbeat/1/1795223406/i/c/g/t/-1/3",
    b"ClaimingPartition/1/1795223406/i/c/g/t/-1",
    b"Heartbeat/1/1795223406/i/c/g/t/50000000/3",
    b"banana",
    b"",
    None,
    b"ReleaseGroup/0/1795223406/ae803ff8/adm1/ga//0/1795223426",
    b"Heartbeat/1/" + b"9" * 5_000 + b"/i/c/g/t/0/3",
    b"\xff\xfe/\x00",
    b"x" * 900_000,
]


def test_hostile_records_neither_stop_nor_bloat_a_start_and_a_running_client(stage: Stage) -> None:
    topic = stage.topic(partitions=1)
    at = coordinator(topic, 3)
    stage.append(*HOSTILE, partition=at)
    ours = stage.ours("py")
    claim = ours.claim(topic, 0, timeout_s=60)
    stage.append(*HOSTILE, partition=at)
    claim.commit(5, wait=True)
    assert claim.held
    with ours.world() as world:
        assert sum(len(state.cells) for state in world.states) == 2


def test_a_transaction_marker_at_the_end_of_the_log_does_not_keep_us_from_starting(
    stage: Stage,
) -> None:
    producer = Producer({"bootstrap.servers": stage.brokers, "transactional.id": stage.number})
    producer.init_transactions()
    for partition in range(3):
        producer.begin_transaction()
        producer.produce(stage.log, b"banana", partition=partition)
        producer.commit_transaction()
    ours = stage.ours("py")
    assert ours.claim("any", 0, timeout_s=60).held


def test_garbage_before_catching_up_does_not_cut_the_start_short(stage: Stage) -> None:
    topic = stage.topic(partitions=1)
    now = int(time.time())
    stage.append(
        b"banana",
        *[f"Heartbeat/1/{now}/ia/a/{stage.group}/{topic}/0/{n}".encode() for n in range(5_000)],
        partition=coordinator(topic, 3),
    )
    ours = stage.ours("py")
    cell = ours.cell(topic, 0)
    assert cell is not None
    assert cell.next_offset == 4_999


def test_what_we_write_is_what_go_writes(stage: Stage) -> None:
    topic = stage.topic(partitions=1)
    ours = stage.ours("py-é")
    claim = ours.claim(topic, 0, timeout_s=60)
    claim.commit(3, wait=True)
    claim.release()
    world = GoWorld(hb=HB)
    found = stage.records()
    for message in found:
        kind, time_s, instance, client, group, name, number, _ = parse(value_of(message))
        assert (client, group, name, number) == ("py-é", stage.group, topic, 0)
        assert len(instance) == 8
        assert set(instance) <= set("0123456789abcdef")
        assert 0 <= time.time() - time_s < 30
        assert (message.key(), message.headers()) == (None, None)
        assert message.partition() == coordinator(topic, 3)
        assert value_of(message).startswith(f"{kind}/1/".encode())
        world.read(value_of(message), time_s)
    assert {parse(value_of(m))[0] for m in found} == {
        "ClaimingPartition",
        "Heartbeat",
        "ReleasingPartition",
    }
    assert world.partition(stage.group, topic, 0).current_offset == 3
    assert world.invalid == 0


def test_the_elections_api_is_the_same(stage: Stage) -> None:
    one, two = stage.ours("one"), stage.ours("two")
    with one.leader("job") as leadership:
        assert leadership.held
        assert two.try_claim("leader:job", 0) is None
        watch = two.watch_leader("job")
        assert watch.current is not None
        assert watch.current.client_id == "one"
    with two.leader("job") as leadership:
        assert leadership.held


def test_what_version_1_cannot_give_is_refused_and_the_claim_goes_on(stage: Stage) -> None:
    ours = stage.ours("py")
    claim = ours.claim("x", 0, timeout_s=60)
    with pytest.raises(NotInVersion1, match="epoch"):
        print(claim.epoch)
    with pytest.raises(NotInVersion1, match="at-most-once"):
        claim.claim_messages(5)
    with pytest.raises(NotInVersion1, match="metadata"):
        claim.set_metadata(b"x")
    assert claim.held
    claim.commit(7, wait=True)
    assert "held" in repr(claim)


def test_a_topic_with_a_slash_is_refused(stage: Stage) -> None:
    ours = stage.ours("py")
    with pytest.raises(InvalidArgument, match="slash"):
        ours.claim("a/b", 0)


def test_records_of_the_other_version_are_told_of_once(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    with Marshal(stage.brokers, group_id="g", client_id="new", topic=stage.log) as version2:
        version2.claim("x", 0, timeout_s=60)
        # A client of version 2 reads its group's partition alone, and meets what lies there.
        home = version2._driver.world.home("g")
        there = next(t for t in map(str, range(99)) if coordinating_partition(t, 3) == home)
        ours = stage.ours("old")
        ours.claim(there, 0, timeout_s=60)
        version2.claim("z", 0, timeout_s=60)
    told = [r.getMessage() for r in caplog.records if "migrate" in r.getMessage()]
    assert len([t for t in told if "records of version 2" in t]) == 1
    assert len([t for t in told if "text records of version 1" in t]) == 1
