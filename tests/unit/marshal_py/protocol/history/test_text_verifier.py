"""What is wrong with version 1 logs, and how they are told: in sentences, on the dashboard."""

from __future__ import annotations

import time

from marshal_py.admin.cell_timeline import CellTimeline
from marshal_py.admin.event_text import without_epoch
from marshal_py.dashboard.live_state import LiveState
from marshal_py.protocol import events as ev
from marshal_py.protocol.history.partition_history import PartitionHistory
from marshal_py.protocol.history.text_history import text_history
from marshal_py.protocol.history.text_verifier import TextVerifier
from marshal_py.protocol.messages import ResumeGroup
from marshal_py.protocol.messages import encode as encode_msgpack
from marshal_py.protocol.text.codec import coordinating_partition
from marshal_py.protocol.text.rationalizer import TextState, TextWorld, apply
from marshal_py.protocol.world import MS, Observer

HB = 60
T = 1_700_000_000
HERE = coordinating_partition("t", 3)


def verify(*records: str | bytes, broker_s: int = 0) -> list[tuple[str, int, str]]:
    found = TextVerifier(HERE, 3, HB)
    for offset, record in enumerate(records):
        value = record if isinstance(record, bytes) else record.encode()
        found.feed(offset, value, broker_s * 1000)
    return [(f.kind, f.offset, f.what) for f in found.finish()]


def beat(client: str, at_s: int, offset: int = 5, topic: str = "t") -> str:
    return f"Heartbeat/1/{T + at_s}/i-{client}/{client}/g/{topic}/7/{offset}"


def claim(client: str, at_s: int) -> str:
    return f"ClaimingPartition/1/{T + at_s}/i-{client}/{client}/g/t/7"


def test_a_log_of_correct_clients_is_sound() -> None:
    released = f"ReleasingPartition/1/{T + 130}/i-a/a/g/t/7/9"
    pause = f"ReleaseGroup/0/{T + 131}/abc/adm/g//0/{T + 600}"
    assert verify(
        claim("a", 0), beat("a", 1), beat("a", 60), beat("a", 120), released, pause,
        claim("b", 140), beat("b", 141), claim("c", 141 + 2 * HB), beat("c", 142 + 2 * HB),
    ) == []  # fmt: skip


def test_a_heartbeat_that_takes_what_is_held_is_an_error() -> None:
    ((kind, offset, what),) = verify(claim("a", 0), beat("a", 1), beat("b", 31))
    assert (kind, offset) == ("early_takeover", 2)
    assert what == "b took it from a, whose last heartbeat was 30 s old; nobody may before 120 s"


def test_a_claim_in_doubt_and_a_clock_that_is_behind_are_warnings() -> None:
    found = verify(claim("a", 0), beat("a", 1), beat("a", 61), claim("late", 0))
    assert [(kind, offset) for kind, offset, _ in found] == [("clock", 3), ("in_doubt", 3)]
    assert "61 s behind" in found[0][2]
    (skewed,) = verify(claim("a", 0), beat("a", 1), broker_s=T - 40)
    assert skewed[:2] == ("clock", 0)
    assert "+40 s against the broker's clock" in skewed[2]


def test_what_is_no_record_of_this_log_is_told_apart() -> None:
    newer = encode_msgpack(ResumeGroup(2, "c", "i", "g", 1, 0))
    elsewhere = next(n for n in ("u", "v", "w", "x") if coordinating_partition(n, 3) != HERE)
    found = verify(b"\xff\xfe", newer, newer, beat("a", 0, topic=elsewhere))
    assert [(kind, offset) for kind, offset, _ in found] == [
        ("foreign_record", 0),
        ("other_version", 1),
        ("wrong_partition", 3),
    ]


def test_what_two_clients_may_both_have_done_is_an_error_and_what_is_in_doubt_a_warning() -> None:
    found = TextVerifier(HERE, 3, HB)
    for offset, record in enumerate([claim("a", 0), beat("a", 1), beat("b", 31), claim("c", 0)]):
        found.feed(offset, record.encode(), 0)
    levels = {f.kind: f.level for f in found.finish()}
    assert levels == {"early_takeover": "error", "clock": "warning", "in_doubt": "warning"}
    assert (found.records, found.snapshots) == (4, 0)


def test_a_process_that_takes_up_what_its_name_held_takes_nothing_early() -> None:
    again = f"Heartbeat/1/{T + 10}/i-new/a/g/t/7/5"
    assert verify(claim("a", 0), beat("a", 1), again) == []


def test_a_heartbeat_long_before_the_owners_is_of_a_wrong_clock_and_no_early_takeover() -> None:
    """By the times in the records, two intervals lie between them."""
    found = verify(claim("a", 300), beat("a", 301), beat("b", 100))
    assert [(kind, offset) for kind, offset, _ in found] == [("clock", 2)]


def test_each_wrong_clock_and_each_misplaced_topic_is_told_once() -> None:
    slow = [claim("a", 100), beat("b", 69), beat("b", 60), beat("c", 69), beat("d", 70)]
    found = verify(*slow)
    assert [offset for kind, offset, _ in found if kind == "clock"] == [1, 3]
    by_brokers = [claim("a", 31), beat("a", 32), claim("b", -31), beat("c", 30), beat("c", -30)]
    found = verify(*by_brokers, broker_s=T)
    assert [(offset, what) for kind, offset, what in found if kind == "clock"] == [
        (0, "its record says +31 s against the broker's clock"),
        (2, "its record says -31 s against the broker's clock"),
        (4, "its record is 62 s behind what others wrote before"),
    ]
    topics = [n for n in ("u", "v", "w", "x", "y") if coordinating_partition(n, 3) != HERE][:2]
    beats = [beat("a", 0, topic=topic) for topic in topics * 2]
    assert [(kind, offset) for kind, offset, _ in verify(*beats)] == [
        ("wrong_partition", 0),
        ("wrong_partition", 1),
    ]


def told(*records: str) -> PartitionHistory:
    state = TextState(HERE, HB)
    history = text_history(HERE, 3, state=state)
    for offset, record in enumerate(records):
        events: list[ev.Event] = []
        apply(state, offset, record.encode(), events)
        history.note(offset, record.encode(), int(record.split("/")[2]) * 1000, events)
    return history


def test_a_history_of_version_1_looks_for_what_its_records_can_show() -> None:
    """Late heartbeats; seconds do not show a slow clock, and there is no epoch to be wrong."""
    released = f"ReleasingPartition/1/{T}/i-b/b/g/t/7/9"
    history = told(
        claim("a", 0), *(beat("a", 64 * n) for n in range(1, 30)), claim("b", 1_900), released
    )
    rows = history.take_rows()
    assert "anomalies" not in rows
    assert [(row[6], row[7], row[11]) for row in rows["rejections"]] == [
        ("ClaimingPartition", "still_held", None),
        ("ReleasingPartition", "not_held", None),
    ]
    late = told(claim("a", 0), beat("a", 1), beat("a", 121), beat("a", 242)).take_rows()
    assert [(row[3], row[1]) for row in late["anomalies"]] == [("late_heartbeat", 3)]


def test_in_version_1_a_position_is_what_was_said_last() -> None:
    """Operators set it back with a release; and whoever comes next may begin before it."""
    released = f"ReleasingPartition/1/{T + 200}/i-b/b/g/t/7/3"
    records = [claim("a", 0), beat("a", 1, 50), claim("b", 130), beat("b", 131, 20), released]
    history = told(*records)
    rows = history.take_rows()
    assert [(row[4], row[14]) for row in rows["claims"]] == [("a", 50), ("b", 3)]
    assert rows["positions"][-1][7] == 3
    timeline = CellTimeline(("g", "t", 7), HERE, has_sessions=False)
    state = TextState(HERE, HB)
    for offset, record in enumerate(records):
        events: list[ev.Event] = []
        apply(state, offset, record.encode(), events)
        for event in events:
            timeline.feed(without_epoch(event), int(record.split("/")[2]) * 1000)
    assert timeline.status((T + 210) * 1000).position == 3 == state.cells["g", "t", 7].position


def test_a_pause_of_version_1_is_over_by_itself() -> None:
    state, timeline = TextState(HERE, HB), CellTimeline(("g", "t", 7), HERE, has_sessions=False)
    events: list[ev.Event] = []
    apply(state, 0, f"ReleaseGroup/0/{T}/abc/adm/g//0/{T + 60}".encode(), events)
    for event in events:
        timeline.feed(event, T * 1000)
    assert timeline.status((T + 60) * 1000 - 1).paused
    over = timeline.status((T + 60) * 1000)
    assert not over.paused
    assert "paused" not in over.text


def test_the_story_of_a_cell_has_no_epochs() -> None:
    state, timeline = TextState(HERE, HB), CellTimeline(("g", "t", 7), HERE)
    records = [claim("a", 0), beat("a", 1), claim("b", 20), claim("b", 200), beat("b", 201)]
    for offset, record in enumerate(records):
        events: list[ev.Event] = []
        apply(state, offset, record.encode(), events)
        for event in events:
            timeline.feed(without_epoch(event), int(record.split("/")[2]) * 1000)
    timeline.finish()
    story = "\n".join(entry.sentence for entry in timeline.entries)
    assert "epoch" not in story
    assert "b tried to claim it and was refused: a holds it, whose last heartbeat is less" in story
    assert "b took it over from a, interval 1.0 min: a had been silent for 3.3 min" in story
    status = timeline.status((T + 210) * 1000)
    assert (status.holder, status.epoch) == ("b", None)
    assert "epoch" not in status.text


def test_the_dashboard_shows_what_version_1_says_and_raises_no_alert_of_version_2() -> None:
    world = TextWorld(3, HB, time.time)
    state_of_page = LiveState(world, [Observer() for _ in range(3)])
    state = world.states[HERE]
    elsewhere = next(p for p in range(3) if p != HERE)
    for offset, record in enumerate(
        [claim("a", 0), beat("a", 1), claim("b", 20), claim("b", 200), beat("b", 201)]
    ):
        events: list[ev.Event] = []
        apply(state, offset, record.encode(), events)
        at_ms = int(record.split("/")[2]) * 1000
        state_of_page.record(HERE, offset, record.encode(), at_ms, events)
    pause = f"ReleaseGroup/0/{T}/abc/adm/g//0/{T + 60}".encode()
    apply(world.states[elsewhere], 0, pause, None)
    now_ms = (T + 205) * 1000
    for observer in state_of_page.observers:
        observer.caught_up_at_offset = 5
        observer.seen.note(4, 1_000 * MS)
    state_of_page.caught_up(1_000 * MS, now_ms)
    document = state_of_page.document(now_ms)
    (row,) = document["rows"]
    assert (row["topic"], row["live"]) == ("t", {"1": "0"}), "fresh"
    assert document["clients"][-1] == "b"
    assert document["alerts"] == []
    (group,) = document["groups"]
    assert group["paused_until_ms"] is None, "it ended by itself"
    assert [line["kind"] for line in document["activity"]] == ["Claimed", "Rejected", "TakenOver"]
    assert not any("epoch" in line["text"] for line in document["activity"])
    (ended,) = state_of_page.claims.claims(("g", "t", 7))
    assert (ended.client_id, ended.how, ended.by) == ("a", "taken_over", "b")
