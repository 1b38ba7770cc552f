"""`peer consume` beside Go consumers: every message, in order, and as few as possible twice."""

from __future__ import annotations

import signal
import time

import pytest
from confluent_kafka import Consumer, TopicPartition

import marshal_py
from tests.interop.conftest import HB, Stage
from tests.interop.gopeer import coordinator
from tests.interop.processes import await_all, await_claims, deliveries

pytestmark = pytest.mark.kafka


def test_both_share_a_topic_and_every_message_comes_once(stage: Stage) -> None:
    topic = stage.topic(partitions=6, messages=50)
    ours, go = stage.py("py", topic), stage.go("go", topic)
    await_claims(6, ours, go)
    assert not ours.claims() & go.claims()
    await_all(topic, 6, 50, ours, go)
    assert set(deliveries(ours, go).values()) == {1}
    held = set()
    for event in ours.events:
        if event["ev"] == "claim":
            held.add(event["partition"])
        assert event["ev"] != "msg" or event["partition"] in held  # the claim is told first
    for partition in range(6):
        offsets = [e["offset"] for p in (ours, go) for e in p.said("msg", partition=partition)]
        assert offsets == sorted(offsets)


def test_who_leaves_hands_over_to_the_message(stage: Stage) -> None:
    topic = stage.topic(partitions=2, messages=50)
    ours = stage.py("py", topic, "-greedy")
    await_all(topic, 2, 50, ours)
    go = stage.go("go", topic, "-greedy")
    go.expect("dialed")
    assert ours.terminate() == 0
    assert len(ours.said("unclaim")) == 2
    assert [e["ev"] for e in ours.events[-1:]] == ["stopped"]
    go.expect("claim", 15, count=2)
    stage.produce(topic, 2, 20)
    await_all(topic, 2, 70, ours, go)
    back = stage.py("py2", topic, "-greedy")
    back.expect("dialed")
    assert go.terminate() == 0
    back.expect("claim", 15, count=2)
    stage.produce(topic, 2, 20)
    await_all(topic, 2, 90, ours, go, back)
    assert set(deliveries(ours, go, back).values()) == {1}


@pytest.mark.parametrize("dies", ["py", "go"])
def test_after_a_crash_the_other_goes_on_within_the_bound(stage: Stage, dies: str) -> None:
    topic = stage.topic(partitions=2, messages=50)
    start = {"py": lambda: stage.py("py", topic, "-greedy")}
    start["go"] = lambda: stage.go("go", topic, "-greedy")
    first = start.pop(dies)()
    first.expect("claim", count=2)
    await_all(topic, 2, 50, first)
    second = next(iter(start.values()))()
    second.expect("dialed")
    time.sleep(HB)  # a heartbeat stores the positions
    stage.produce(topic, 2, 5)
    await_all(topic, 2, 55, first)
    crashed = time.time()
    first.crash()
    claims = [second.expect("claim", 5 * HB, count=n) for n in (1, 2)]
    assert all(claim["t"] - crashed > HB for claim in claims)
    stage.produce(topic, 2, 5)
    await_all(topic, 2, 60, first, second)
    again = [key for key, times in deliveries(first, second).items() if times > 1]
    assert all(offset >= 50 for _, _, offset in again)  # what was not stored, and nothing else


@pytest.mark.parametrize("term", ["keep", "exit", "kill"])
def test_a_restart_under_the_same_name_goes_on_at_once(stage: Stage, term: str) -> None:
    topic = stage.topic(partitions=2, messages=20)
    first = stage.py("same", topic, "-greedy", *(["-term", term] if term != "kill" else []))
    await_all(topic, 2, 20, first)
    if term == "kill":
        first.crash()
    else:
        assert first.terminate() == 0
    ended = time.time()
    second = stage.py("same", topic)  # not greedy: what it has at once, it resumed
    claims = [second.expect("claim", count=n) for n in (1, 2)]
    assert claims[1]["t"] - claims[0]["t"] < 0.5
    assert claims[1]["t"] - ended < 2 * HB
    stage.produce(topic, 2, 5)
    await_all(topic, 2, 25, first, second)
    if term == "keep":
        assert set(deliveries(first, second).values()) == {1}


def test_each_side_resumes_what_the_other_left_under_the_same_name(
    stage: Stage,
) -> None:
    topic = stage.topic(partitions=2, messages=20)
    go = stage.go("same", topic, "-greedy", "-term", "keep")
    await_all(topic, 2, 20, go)
    assert go.terminate() == 0
    ours = stage.py("same", topic, "-term", "keep")
    claims = [ours.expect("claim", count=n) for n in (1, 2)]
    assert claims[1]["t"] - claims[0]["t"] < 0.5
    stage.produce(topic, 2, 5)
    await_all(topic, 2, 25, go, ours)
    assert ours.terminate() == 0
    again = stage.go("same", topic)
    again.expect("claim", HB, count=2)
    stage.produce(topic, 2, 5)
    await_all(topic, 2, 30, go, ours, again)
    assert set(deliveries(go, ours, again).values()) == {1}


def test_entire_topics_are_shared_as_a_whole_and_limits_count_topics(
    stage: Stage,
) -> None:
    topics = [stage.topic(partitions=3, messages=5) for _ in range(2)]
    names = ",".join(topics)
    ours = stage.py("py", names, "-entire", "-max-claims", 1)
    go = stage.go("go", names, "-entire", "-max-claims", 1)
    await_claims(6, ours, go)
    assert len({t for t, _ in ours.claims()}) == len({t for t, _ in go.claims()}) == 1
    (mine,) = {t for t, _ in ours.claims()}
    assert ours.expect("topic_claims", topics=[mine])
    for topic in topics:
        await_all(topic, 3, 5, ours, go)
    (theirs,) = {t for t, _ in go.claims()}
    assert go.terminate() == 0
    third = stage.py("py2", names, "-entire")
    third.expect("claim", 20, count=3)
    assert {t for t, _ in third.claims()} == {theirs}


def test_a_limit_is_kept(stage: Stage) -> None:
    topic = stage.topic(partitions=4, messages=5)
    ours = stage.py("py", topic, "-greedy", "-max-claims", 1)
    go = stage.go("go", topic, "-greedy", "-max-claims", 2)
    await_claims(3, ours, go)
    time.sleep(2 * HB)
    assert (len(ours.claims()), len(go.claims())) == (1, 2)
    ours.process.send_signal(signal.SIGUSR1)
    assert [tuple(c) for c in ours.expect("claims")["claims"]] == list(ours.claims())


def test_leaving_under_load_releases_everything_quickly(stage: Stage) -> None:
    topic = stage.topic(partitions=8, messages=20_000)
    ours = stage.py("py", topic, "-greedy")
    ours.expect("claim", count=8)
    ours.expect("msg", count=1_000)
    go = stage.go("go", topic, "-greedy", "-quiet")
    go.expect("dialed")
    left = time.monotonic()
    assert ours.terminate() == 0
    assert time.monotonic() - left < 10
    assert len(ours.said("unclaim")) == 8
    go.expect("claim", 15, count=8)


def test_an_offset_beyond_the_end_does_not_keep_us_from_consuming(stage: Stage) -> None:
    topic = stage.topic(partitions=1, messages=5)
    now = int(time.time())
    stage.append(
        f"Heartbeat/1/{now}/ia/a/{stage.group}/{topic}/0/10000".encode(),
        f"ReleasingPartition/1/{now}/ia/a/{stage.group}/{topic}/0/10000".encode(),
        partition=coordinator(topic, 3),
    )
    ours = stage.py("py", topic)
    await_all(topic, 1, 5, ours)
    stage.produce(topic, 1, 5)
    await_all(topic, 1, 10, ours)
    assert ours.terminate() == 0
    observer = stage.ours("look")
    cell = observer.cell(topic, 0)
    assert cell is not None
    assert cell.next_offset == 10


def test_commits_flush_count_and_duration(stage: Stage) -> None:
    topic = stage.topic(partitions=1, messages=30)
    ours = stage.py("one", topic, "-count", 10, "-commit", "before")
    assert ours.process.wait(60) == 0
    ours.expect("stopped")
    assert [o for _, _, o in deliveries(ours)] == list(range(10))
    ours = stage.py("two", topic, "-count", 10, "-commit", "none")
    assert ours.process.wait(60) == 0
    assert [o for _, _, o in deliveries(ours)] == list(range(10, 20))
    ours = stage.py("three", topic, "-duration", "5s", "-flush", "200ms")
    assert ours.process.wait(60) == 0
    assert [o for _, _, o in deliveries(ours)] == list(range(10, 30))


def test_without_a_position_in_the_log_it_is_the_committed_one_as_for_go(stage: Stage) -> None:
    topic = stage.topic(partitions=2, messages=20)
    kafka = Consumer({"bootstrap.servers": stage.brokers, "group.id": stage.group})
    kafka.commit(offsets=[TopicPartition(topic, 0, 15)], asynchronous=False)
    kafka.close()
    ours = stage.py("py", topic, "-greedy", "-count", 25)
    assert ours.process.wait(60) == 0
    assert sorted(deliveries(ours)) == [
        *((topic, 0, n) for n in range(15, 20)),
        *((topic, 1, n) for n in range(20)),
    ]
    again = stage.py("py2", topic, "-greedy")
    again.expect("claim", count=2)
    stage.produce(topic, 2, 1)
    await_claims(2, again)
    again.expect("msg", count=2)
    assert set(deliveries(again)) == {(topic, 0, 20), (topic, 1, 20)}  # the log's own come first


def test_positions_are_committed_to_kafka_as_go_does_if_that_is_asked_for(stage: Stage) -> None:
    topic = stage.topic(partitions=1, messages=5)
    with marshal_py.Consumer(
        stage.brokers,
        topics=topic,
        group_id=stage.group,
        topic=stage.log,
        wire="text",
        interval_ms=HB * 1000,
        mirror_offsets=True,
    ) as ours:
        # To its end: a loop that is left early has not done its last message.
        assert sum(1 for _ in ours.messages(idle_timeout_s=3 * HB)) == 5
    kafka = Consumer({"bootstrap.servers": stage.brokers, "group.id": stage.group})
    (found,) = kafka.committed([TopicPartition(topic, 0)], timeout=120)
    kafka.close()
    assert found.offset == 5


def test_a_pause_of_the_group_interrupts_our_consumers_and_loses_nothing(stage: Stage) -> None:
    topic = stage.topic(partitions=2, messages=10)
    ours = stage.py("py", topic, "-greedy")
    go = stage.go("go", topic, "-greedy", "-before-94")
    await_all(topic, 2, 10, ours, go)
    until = int(time.time()) + 6
    pause = f"ReleaseGroup/0/{int(time.time())}/abc/adm/{stage.group}//0/{until}".encode()
    for partition in range(3):
        stage.append(pause, partition=partition)
    await_claims(0, ours, go)
    stage.produce(topic, 2, 10)
    await_all(topic, 2, 20, ours, go)
    assert min(e["t"] for p in (ours, go) for e in p.said("msg") if e["offset"] >= 10) >= until
    assert set(deliveries(ours, go).values()) == {1}
