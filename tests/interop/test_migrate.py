"""A group moves from Go to version 2 and back, while messages flow, process by process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from marshal_py import ConfigurationError, Marshal, TopicMissing
from marshal_py.admin.migration import Bridge
from marshal_py.client.topics import admin_client
from tests.interop.conftest import HB, Stage
from tests.interop.processes import PeerProcess
from tests.support.paths import ROOT

pytestmark = pytest.mark.kafka

PARTITIONS = 4


class Flow:
    """Messages that keep coming, numbered by their offsets."""

    def __init__(self, stage: Stage, topic: str) -> None:
        self.topic = topic
        self.sent: Counter[int] = Counter()
        self._producer = Producer({"bootstrap.servers": stage.brokers, "linger.ms": 0})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            for partition in range(PARTITIONS):
                self._producer.produce(self.topic, b"x", partition=partition)
                self.sent[partition] += 1
            self._producer.poll(0)

    def stop(self) -> Counter[int]:
        self._stop.set()
        self._thread.join()
        self._producer.flush()
        return self.sent


@pytest.fixture
def flow(stage: Stage) -> Iterator[Callable[[str], Flow]]:
    flows = []

    def start(topic: str) -> Flow:
        flows.append(Flow(stage, topic))
        return flows[-1]

    yield start
    for found in flows:
        found.stop()


class Migration(PeerProcess):
    """`marshal group migrate` as a process; its lines are events."""

    event_key = "event"

    def __init__(self, stage: Stage, *args: str, hb: int = HB) -> None:
        super().__init__("marshal_py.cli", *command(stage, *args, "--json", hb=hb), hb=hb)


def command(stage: Stage, *args: str, hb: int = HB) -> list[str]:
    return [
        *("group", "migrate", stage.group, "-b", stage.brokers, "--text-topic", stage.log),
        *("--interval", str(hb), *args),
    ]


def rehearse(stage: Stage, *args: str) -> tuple[int, list[dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-m", "marshal_py.cli", *command(stage, *args, "--dry-run", "--json")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout or "[]")


def worker(stage: Stage, client: str, topic: str) -> PeerProcess:
    return stage.kept(
        PeerProcess(
            "tests.interop.worker",
            *("-brokers", stage.brokers, "-log", f"{stage.log}.v2", "-client", client),
            *("-group", stage.group, "-topic", topic, "-partitions", PARTITIONS),
        )
    )


def deliveries(peers: Iterable[PeerProcess]) -> Counter[tuple[int, int]]:
    return Counter((e["partition"], e["offset"]) for peer in peers for e in peer.said("msg"))


def expected(sent: Counter[int]) -> set[tuple[int, int]]:
    return {(p, offset) for p, count in sent.items() for offset in range(count)}


def await_all(peers: list[PeerProcess], sent: Counter[int], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while set(deliveries(peers)) != expected(sent):
        missing = sorted(expected(sent) - set(deliveries(peers)))
        assert time.monotonic() < deadline, f"{len(missing)} missing, such as {missing[:5]}"
        time.sleep(0.1)


def last(peers: list[PeerProcess], partition: int) -> float:
    return max((e["t"] for q in peers for e in q.said("msg", partition=partition)), default=0.0)


def first(peers: list[PeerProcess], partition: int) -> float:
    return float(min(e["t"] for q in peers for e in q.said("msg", partition=partition)))


def test_a_group_moves_while_messages_flow_and_back_again(
    stage: Stage, flow: Callable[[str], Flow]
) -> None:
    topic = stage.topic(partitions=PARTITIONS)
    messages = flow(topic)
    go = [stage.go(f"go{n}", topic, "-greedy", "-max-claims", 2) for n in range(2)]
    for peer in go:
        peer.expect("claim", count=2)
        peer.expect("msg", count=50)

    code, steps = rehearse(stage)
    assert code == 0
    assert [step["state"] for step in steps] == ["held"] * PARTITIONS

    with Migration(stage) as bridge:
        bridge.expect("blocked")
        new = [worker(stage, f"py{n}", topic) for n in range(2)]
        for peer in new:
            peer.expect("dialed")

        # One process leaves in order, the other one dies.
        gone = {e["partition"] for e in go[0].said("claim")}
        assert go[0].terminate() == 0
        bridge.expect("moved", count=2)
        assert {e["partition"] for e in bridge.said("moved")} == gone
        go[1].crash()
        bridge.expect("complete", 8 * HB)
        for peer in new:
            peer.wait_for(lambda: len(new[0].claims() | new[1].claims()) == PARTITIONS, 30)
        assert new[0].said("msg") or new[1].said("msg")

        # The bridge dies, and goes on where it was.
        bridge.crash()
    with Migration(stage) as bridge:
        assert bridge.expect("blocked")["moved"] == PARTITIONS
        bridge.expect("complete")
        assert bridge.terminate() == 0
    with Migration(stage, "--source-stopped") as bridge:
        bridge.expect("finished")
        assert bridge.process.wait(60) == 0

    # Back: the new side's processes leave one by one, a Go process takes over.
    code, steps = rehearse(stage, "--back")
    assert (code, {step["state"] for step in steps}) == (0, {"held"})
    with Migration(stage, "--back") as bridge:
        bridge.expect("blocked")
        again = stage.go("go2", topic, "-greedy")
        again.expect("dialed")
        for peer in new:
            assert peer.terminate() == 0
        bridge.expect("complete", 60)
        again.expect("claim", 30, count=PARTITIONS)
        sent = messages.stop()
        await_all([*go, *new, again], sent)
        assert bridge.terminate() == 0

    # Every message came; again came only what the dead process had not stored.
    twice = [key for key, times in deliveries([*go, *new, again]).items() if times > 1]
    assert {p for p, _ in twice} <= set(range(PARTITIONS)) - gone
    per_interval = 50 * (HB + 2)
    assert max(Counter(p for p, _ in twice).values(), default=0) <= per_interval
    # And no partition was worked on by both sides at once.
    for partition in range(PARTITIONS):
        assert last(go, partition) < first(new, partition)
        assert last(new, partition) < first([again], partition)


def test_with_a_pause_everything_moves_at_once_and_nothing_comes_twice(
    stage: Stage, flow: Callable[[str], Flow]
) -> None:
    topic = stage.topic(partitions=PARTITIONS)
    messages = flow(topic)
    go = stage.go("go", topic, "-greedy")
    go.expect("claim", count=PARTITIONS)
    go.expect("msg", count=100)
    assert go.terminate() == 0
    before = len(stage.records())
    code, steps = rehearse(stage)
    assert (code, {step["state"] for step in steps}) == (0, {"free"})
    assert len(stage.records()) == before  # a rehearsal writes nothing
    with pytest.raises(TopicMissing):
        Marshal(stage.brokers, group_id=stage.group, topic=f"{stage.log}.v2").start()
    with Migration(stage, "--source-stopped") as bridge:
        bridge.expect("finished")
    new = worker(stage, "py", topic)
    with new:
        new.expect("claim", count=PARTITIONS)
        sent = messages.stop()
        await_all([go, new], sent)
        assert max(deliveries([go, new]).values()) == 1


def await_holder(stage: Stage, topic: str, partitions: Iterable[int], peer: PeerProcess) -> None:
    """Wait until the peer says that it holds them."""
    wanted = {(topic, p) for p in partitions}
    peer.wait_for(lambda: wanted <= peer.claims(), 120, f"claims of {wanted}")


def test_a_bridge_dies_a_standby_goes_on_and_without_one_version_2_stops_first(
    stage: Stage, flow: Callable[[str], Flow]
) -> None:
    hb = 12  # a standby has HB/6 of time to notice, and 0.4 HB to go on
    topic = stage.topic(partitions=PARTITIONS)
    messages = flow(topic)
    go = [stage.go(f"go{n}", topic, "-greedy", "-max-claims", 2, hb=hb) for n in range(2)]
    for peer in go:
        peer.expect("claim", count=2)
        peer.expect("msg", count=20)
    with Migration(stage, hb=hb) as bridge:
        bridge.expect("blocked")
        with Migration(stage, hb=hb) as standby:
            standby.expect("standby")
            new = worker(stage, "py", topic)
            gone = {e["partition"] for e in go[0].said("claim")}
            assert go[0].terminate() == 0
            await_holder(stage, topic, gone, new)

            # It dies, and the other one goes on: version 2 never stops.
            bridge.crash()
            assert standby.expect("blocked", 60)["moved"] == len(gone)
            handled = {p: len(new.said("msg", partition=p)) for p in gone}
            new.wait_for(
                lambda: all(len(new.said("msg", partition=p)) > handled[p] + 100 for p in gone), 60
            )
            assert new.said("unclaim") == []

            # It dies, too, and nobody goes on: version 2 stops before Go takes back.
            standby.crash()
        again = stage.go("go2", topic, "-greedy", "-max-claims", 2, hb=hb)
        await_holder(stage, topic, gone, again)
        again.expect("msg", count=20)
        assert {e["partition"] for e in new.said("unclaim")} == gone
        assert new.claims() == set()

    # The next bridge sees what happened, and moves on.
    with Migration(stage, hb=hb) as bridge:
        assert bridge.expect("blocked")["moved"] == 0
        for peer in (again, go[1]):
            assert peer.terminate() == 0
        bridge.expect("complete", 60)
        await_holder(stage, topic, range(PARTITIONS), new)
        sent = messages.stop()
        await_all([*go, again, new], sent)
        assert bridge.terminate() == 0
    for partition in gone:
        stopped = next(e["t"] for e in new.said("unclaim", partition=partition))
        assert stopped < first([again], partition)


def test_a_topic_that_grows_while_it_moves_belongs_to_one_side_from_the_first_moment(
    stage: Stage, flow: Callable[[str], Flow]
) -> None:
    topic = stage.topic(partitions=2)
    go = stage.go("go", topic, "-greedy")
    go.expect("claim", count=2)
    with Migration(stage) as bridge:
        bridge.expect("blocked")
        new = worker(stage, "py", topic)  # it wants all four from the beginning
        new.expect("dialed")
        admin = admin_client({"bootstrap.servers": stage.brokers})
        admin.create_partitions([NewPartitions(topic, PARTITIONS)])[topic].result(60)
        messages = flow(topic)
        adopted = bridge.expect("adopted", 60)
        assert adopted["partitions"] == [[topic, 2], [topic, 3]]
        # Whoever is first in version 1's log gets them: Go, or the bridge for version 2.
        go.wait_for(lambda: len(go.claims() | new.claims()) == PARTITIONS, 120)
        go.expect("msg", count=50)
        assert go.claims() & new.claims() == set()
        assert go.terminate() == 0
        await_holder(stage, topic, range(PARTITIONS), new)
        sent = messages.stop()
        await_all([go, new], sent)
        assert bridge.terminate() == 0
    assert max(deliveries([go, new]).values()) == 1


def pair(stage: Stage, closing: list[Marshal]) -> tuple[Marshal, Marshal]:
    common: dict[str, Any] = {
        "group_id": stage.group,
        "client_id": "bridge",
        "interval_ms": HB * 1000,
        "member": False,
    }
    text = Marshal(stage.brokers, topic=stage.log, wire="text", **common)
    new = Marshal(stage.brokers, topic=f"{stage.log}.v2", create_topics=True, **common)
    for marshal in (text, new):
        closing.append(marshal.start())
    return text, new


@pytest.fixture
def closing() -> Iterator[list[Marshal]]:
    started: list[Marshal] = []
    yield started
    for marshal in started:
        marshal.close()


def test_a_target_that_is_ahead_or_in_use_is_refused(stage: Stage, closing: list[Marshal]) -> None:
    topic = stage.topic(partitions=1)
    text, new = pair(stage, closing)
    with Marshal(
        stage.brokers, topic=new.settings.topic, group_id=stage.group, client_id="other"
    ) as other:
        claim = other.claim(topic, 0, timeout_s=60)
        while (cell := new.cell(topic, 0)) is None or not cell.held:
            time.sleep(0.01)
        with pytest.raises(ConfigurationError, match="other of the target holds it"):
            Bridge(text, new, {topic: 1}).block(10)
        claim.commit(99, wait=True)
        claim.release()
    while new.cell(topic, 0).held:  # type: ignore[union-attr]
        time.sleep(0.01)
    with pytest.raises(ConfigurationError, match="beyond"):
        Bridge(text, new, {topic: 1}).block(10)
    bridge = Bridge(text, new, {topic: 1}, skip_to_target=True)
    bridge.block(10)
    while not bridge.step():
        time.sleep(0.05)
    assert bridge.complete
    cell = new.cell(topic, 0)
    assert cell is not None
    assert (cell.holder, cell.next_offset) == (None, 99)


def test_without_a_position_in_the_log_the_committed_one_comes_over(
    stage: Stage, closing: list[Marshal]
) -> None:
    topic = stage.topic(partitions=2, messages=20)
    kafka = Consumer({"bootstrap.servers": stage.brokers, "group.id": stage.group})
    kafka.commit(offsets=[TopicPartition(topic, 0, 15)], asynchronous=False)
    kafka.close()
    text, new = pair(stage, closing)
    bridge = Bridge(text, new, {topic: 2})
    bridge.block(10)
    while not bridge.complete:
        bridge.step()
        time.sleep(0.05)
    positions = [cell.next_offset for p in range(2) if (cell := new.cell(topic, p)) is not None]
    assert positions == [15, -1]


def test_a_process_of_the_source_that_takes_what_was_moved_is_reported(
    stage: Stage, closing: list[Marshal], caplog: pytest.LogCaptureFixture
) -> None:
    topic = stage.topic(partitions=1)
    text, new = pair(stage, closing)
    bridge = Bridge(text, new, {topic: 1})
    bridge.block(10)
    while not bridge.step():
        time.sleep(0.05)
    stage.append(
        f"Heartbeat/1/{int(time.time())}/abc/rogue/{stage.group}/{topic}/0/5".encode(),
        partition=text._driver.world.coordinator(stage.group, topic, 0),
    )
    deadline = time.monotonic() + 120
    while not bridge.conflicts:
        assert time.monotonic() < deadline
        bridge.step()
        time.sleep(0.05)
    assert not bridge.complete
    assert "rogue" in caplog.text
    while new.cell(f"migrated:{topic}", 0).held:  # type: ignore[union-attr]
        assert time.monotonic() < deadline
        bridge.step()
        time.sleep(0.05)
    while not bridge.complete:  # the rogue is silent from here on
        assert time.monotonic() < deadline
        bridge.step()
        time.sleep(0.05)


def test_both_sides_have_to_fit(stage: Stage, closing: list[Marshal]) -> None:
    text, new = pair(stage, closing)
    with pytest.raises(ConfigurationError, match="both sides speak"):
        Bridge(text, text, {})
    other = Marshal(stage.brokers, group_id="other", topic=new.settings.topic)
    with pytest.raises(ConfigurationError, match="group"):
        Bridge(text, other, {})
    same = Marshal(stage.brokers, group_id=stage.group, topic=stage.log)
    with pytest.raises(ConfigurationError, match="of its own"):
        Bridge(text, same, {})


def test_an_unknown_group_and_the_same_topic_are_usage_errors(stage: Stage) -> None:
    code, _ = rehearse(stage, "--topics", "no-such-topic")
    assert code == 2
    code, _ = rehearse(stage, "--new-topic", stage.log)
    assert code == 2
