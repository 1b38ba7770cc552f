"""What stops a Go client must not stop ours beside it (INTEROP.md §6), one hazard after the other.

The stand-in has the bugs of the real client: each test first sees that it does what Go does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.interop.conftest import HB, Stage
from tests.interop.gomodel import GoWorld
from tests.interop.gopeer import MAX_RECORDS, coordinator
from tests.interop.processes import PeerProcess, await_all, await_claims, deliveries
from tests.support.paths import ROOT

pytestmark = pytest.mark.kafka


def heartbeat(stage: Stage, client: str, topic: str, offset: int, partition: int = 0) -> bytes:
    now = int(time.time())
    return (
        f"Heartbeat/1/{now}/i{client}/{client}/{stage.group}/{topic}/{partition}/{offset}".encode()
    )


# Starting


def test_a_start_on_a_busy_log_of_more_than_100_000_young_records(stage: Stage) -> None:
    topic = stage.topic(partitions=2, messages=5)
    at = coordinator(topic, 3)
    young = [heartbeat(stage, "a", topic, n, partition=1) for n in range(MAX_RECORDS + 20_000)]
    stage.append(heartbeat(stage, "old", topic, 3), *young, partition=at)
    go = stage.go("go", topic)
    assert go.expect("panic")["error"] == "send on closed channel"

    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.001):
            stage.append(*(heartbeat(stage, "a", topic, 7, partition=1),) * 50, partition=at)

    busy = threading.Thread(target=write, daemon=True)
    busy.start()
    try:
        ours = stage.ours("py")
        old = ours.cell(topic, 0)
        assert old is not None
        assert (old.holder, old.next_offset) == ("old", 3)  # from before the last 100,000
        assert ours.claim(topic, 0, timeout_s=60).next_offset == 3
        assert ours.try_claim(topic, 1) is None  # somebody writes for it all the time
    finally:
        stop.set()
        busy.join()


def test_a_transaction_marker_at_the_end_of_the_log(stage: Stage) -> None:
    topic = stage.topic(partitions=1, messages=5)
    producer = Producer({"bootstrap.servers": stage.brokers, "transactional.id": stage.number})
    producer.init_transactions()
    for partition in range(3):
        producer.begin_transaction()
        producer.produce(stage.log, b"banana", partition=partition)
        producer.commit_transaction()
    go = stage.go("go", topic, "-no-bug", "invalid_ends_start")
    go.expect("start")
    ours = stage.py("py", topic)
    await_all(topic, 1, 5, ours)
    assert not go.said("dialed")


# Hostile records


def test_a_negative_partition_ends_go_and_not_us(stage: Stage) -> None:
    topic = stage.topic(partitions=2, messages=20)
    go = stage.go("go", topic, "-max-claims", 1)
    go.expect("claim")
    ours = stage.py("py", topic, "-greedy")
    await_all(topic, 2, 20, ours, go)
    hostile = [heartbeat(stage, "x", topic, 5, partition=p) for p in (-1, 50_000_000)]
    stage.append(*hostile, b"banana", None, partition=coordinator(topic, 3))
    go.expect("panic", 2 * HB)
    ours.expect("claim", 4 * HB, count=2)
    stage.produce(topic, 2, 5)
    await_all(topic, 2, 25, ours, go)
    again = stage.py("late", topic)  # and a start that reads them
    again.expect("dialed")
    assert ours.terminate() == 0
    again.expect("claim", count=2)


def test_records_in_a_partition_that_is_not_their_topics_concern_nobody(stage: Stage) -> None:
    topic = stage.topic(partitions=1, messages=5)
    go = stage.go("go", topic)
    go.expect("msg", count=5)
    ours = stage.ours("py")
    claim = ours.want(topic, 0)
    elsewhere = (coordinator(topic, 3) + 1) % 3
    stage.append(*[heartbeat(stage, "x", topic, 99)] * 50, partition=elsewhere)
    deadline = time.monotonic() + 120
    while True:
        with ours.world() as world:
            if world.states[elsewhere].next_offset == 50:
                break
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert go.terminate() == 0
    assert claim.wait_held(HB)
    assert claim.position == 5


# Leaving


@pytest.mark.parametrize("commit", ["after", "before", "none"])
def test_we_leave_at_full_speed(stage: Stage, commit: str) -> None:
    topic = stage.topic(partitions=4, messages=20_000)
    for _ in range(2):
        ours = stage.py("py", topic, "-greedy", "-quiet", "-commit", commit)
        ours.expect("claim", count=4)
        ours.expect("first_message")
        left = time.monotonic()
        assert ours.terminate() == 0
        assert time.monotonic() - left < 10
        assert len(ours.said("unclaim")) == 4
        assert ours.said("stopped")
    look = stage.ours("look")
    cells = [look.cell(topic, p) for p in range(4)]
    assert all(cell is not None and cell.holder is None for cell in cells)
    if commit == "none":
        assert all(cell is not None and cell.next_offset <= 0 for cell in cells)


def test_a_go_client_that_hangs_while_it_leaves_keeps_what_it_heartbeats(stage: Stage) -> None:
    topic = stage.topic(partitions=3, messages=5)
    go = stage.go("go", topic, "-greedy", "-bug", "deadlock_on_leave")
    await_all(topic, 3, 5, go)
    ours = stage.py("py", topic, "-greedy")
    ours.expect("dialed")
    go.process.terminate()
    go.expect("deadlock")
    ours.expect("claim")
    time.sleep(3 * HB)
    assert len(ours.claims()) == 1
    go.crash()
    ours.expect("claim", 4 * HB, count=3)
    stage.produce(topic, 3, 5)
    await_all(topic, 3, 10, ours, go)
    assert max(deliveries(ours, go).values()) == 1  # it had consumed nothing that was not stored


def test_what_go_releases_for_no_reason_we_go_on_with(stage: Stage) -> None:
    topic = stage.topic(partitions=1, messages=5)
    go = stage.go("go", topic, "-bug", "spurious_release")
    await_all(topic, 1, 5, go)
    ours = stage.py("py", topic)
    go.expect("unclaim", 4 * HB)
    ours.expect("claim", HB)
    stage.produce(topic, 1, 5)
    await_all(topic, 1, 10, ours, go)
    assert max(deliveries(ours, go).values()) == 1


# Positions


@pytest.mark.parametrize("messages", [0, 5])
def test_a_position_beyond_the_end_of_the_log_is_mended(stage: Stage, messages: int) -> None:
    """As it is after a topic was made anew; it may be empty yet."""
    topic = stage.topic(partitions=1, messages=messages)
    now = int(time.time())
    stage.append(
        heartbeat(stage, "a", topic, 10_000),
        f"ReleasingPartition/1/{now}/ia/a/{stage.group}/{topic}/0/10000".encode(),
        partition=coordinator(topic, 3),
    )
    go = stage.go("go", topic)
    go.expect("claim", 60)
    go.expect("unclaim")
    assert go.terminate() == 0
    assert not go.said("msg")
    ours = stage.py("py", topic)
    ours.expect("claim")
    time.sleep(HB)  # heartbeats must not put it back
    stage.produce(topic, 1, 5)
    await_all(topic, 1, messages + 5, ours)
    assert ours.terminate() == 0
    cell = stage.ours("look").cell(topic, 0)
    assert cell is not None
    assert cell.next_offset == messages + 5
    back = stage.go("go", topic)
    back.expect("claim", 60)
    stage.produce(topic, 1, 5)
    await_all(topic, 1, messages + 10, ours, back)
    assert max(deliveries(ours, back).values()) == 1


# Names


@pytest.mark.parametrize("other", ["go", "py"])
def test_a_second_process_of_our_name_ends_the_first(stage: Stage, other: str) -> None:
    topic = stage.topic(partitions=2, messages=5)
    first = stage.py("same", topic, "-greedy")
    await_all(topic, 2, 5, first)
    start = {"go": stage.go, "py": stage.py}[other]
    second = start("same", topic, "-greedy")
    second.expect("claim", count=2)
    assert first.process.wait(2 * HB) == 1
    assert first.claims() == set()
    assert "DuplicateClientId" in first.errors()
    stage.produce(topic, 2, 5)
    await_all(topic, 2, 10, first, second)
    assert second.claims() == {(topic, 0), (topic, 1)}


def test_without_fast_reclaim_a_restart_waits_as_a_stranger_does(stage: Stage) -> None:
    topic = stage.topic(partitions=1, messages=5)
    first = stage.py("same", topic)
    await_all(topic, 1, 5, first)
    crashed = time.time()
    first.crash()
    second = stage.py("same", topic, "-fast-reclaim=false")
    assert second.expect("claim", 4 * HB)["t"] - crashed > HB


# The same world


def observe(stage: Stage) -> dict[tuple[str, int], dict[str, Any]]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.interop.peer", "observe", "-once"),
            *("-brokers", stage.brokers, "-log", stage.log, "-only-group", stage.group),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=True,
    )
    (line,) = done.stdout.splitlines()
    return {(c["topic"], c["partition"]): c for c in json.loads(line)["cells"]}


def test_both_see_the_same_world_after_claims_releases_and_crashes(stage: Stage) -> None:
    topics = [stage.topic(partitions=3, messages=10) for _ in range(2)]
    names = ",".join(topics)
    go, ours = stage.go("go", names, "-max-claims", 3), stage.py("py", names, "-max-claims", 3)
    await_claims(6, go, ours)
    third: PeerProcess = stage.py("third", names, "-greedy")
    third.expect("dialed")
    assert go.terminate() == 0
    third.expect("claim", 4 * HB, count=3)
    ours.crash()
    for topic in topics:
        await_all(topic, 3, 10, go, ours, third)
    third.crash()  # nobody writes any more

    world = GoWorld(hb=HB)
    for message in stage.records():
        raw = message.value() or b""
        world.read(raw, int(raw.split(b"/")[2]))
    seen = observe(stage)
    assert len(seen) == 6
    for (topic, number), cell in seen.items():
        theirs = world.partition(stage.group, topic, number)
        for name in ("instance_id", "client_id", "current_offset", "last_heartbeat"):
            assert cell[name] == getattr(theirs, name), (topic, number, name)
        assert cell["last_release"] == theirs.last_release
        assert cell["marshal_partition"] == coordinator(topic, 3)
