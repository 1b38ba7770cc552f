"""The rows of the audit; each kind of anomaly, found when planted, and nothing else reported."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from marshal_py.protocol import events as ev
from marshal_py.protocol.history import anomalies
from marshal_py.protocol.history.anomalies import FOUNDING_MS, KINDS, MEANING
from marshal_py.protocol.history.partition_history import PartitionHistory
from marshal_py.protocol.history.snapshot_checks import SnapshotSeen
from marshal_py.protocol.messages import (
    ClaimingMessages,
    ClaimingPartition,
    ClaimingRange,
    ForgetGroup,
    Genesis,
    Heartbeat,
    Message,
    MetadataEntry,
    ReleaseGroup,
    ReleasingPartition,
    SetLevel,
    SetPosition,
    SplittingRange,
    encode,
)
from marshal_py.protocol.rationalizer import MEMBER_HORIZON, PartitionState, apply
from marshal_py.protocol.snapshots import anchor_of
from marshal_py.protocol.world import coordinating_partition
from marshal_py.spark.audit_tables import TABLES, to_arrow

INTERVAL_MS = 1_000
START_MS = 1_700_000_000_000
PARTITIONS = 3
"""So many that the group of the scripts does not belong in the first."""


class Script:
    """Writes a log of one coordination partition, record by record, at given times."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes | None, int]] = []
        self.now_ms = START_MS
        self.seqs: dict[str, int] = {}
        self.state = PartitionState(0)

    def raw(self, value: bytes | None) -> int:
        offset = len(self.records)
        self.records.append((offset, value, self.now_ms))
        apply(self.state, offset, value)
        return offset

    def put(self, kind: type[Message], client: str, *fields: Any, instance: str = "") -> int:
        instance = instance or f"{client}-1"
        seq = self.seqs[instance] = self.seqs.get(instance, -1) + 1
        return self.raw(encode(kind(2, client, instance, "g", seq, *fields)))

    def wait(self, ms: int) -> None:
        self.now_ms += ms

    def version(self, topic: str = "t") -> int:
        return self.state.version("g", topic, 0)

    def found(self, base: int, partitions: int = 1) -> None:
        self.raw(encode(Genesis(2, "f", "f-1", "-", 0, "its", "", base, partitions, START_MS)))

    def claim(self, client: str, topic: str = "t", *, instance: str = "") -> int:
        """Return the epoch."""
        fields = (topic, 0, INTERVAL_MS, self.version(topic))
        offset = self.put(ClaimingPartition, client, *fields, instance=instance)
        return self.state.base + offset

    def beat(self, client: str, epoch: int, next_offset: int = -1, *, instance: str = "") -> int:
        return self.tell(client, {} if next_offset < 0 else {epoch: next_offset}, instance=instance)

    def tell(self, client: str, positions: Mapping[int, int], *, instance: str = "") -> int:
        """Write a heartbeat that tells of these positions, by epochs."""
        numbers = [n for epoch, at in positions.items() for n in (epoch - self.state.base, at)]
        return self.put(Heartbeat, client, INTERVAL_MS, 0, numbers, instance=instance)

    def beats(self, client: str, epoch: int, count: int, gap_ms: int = INTERVAL_MS) -> None:
        for _ in range(count):
            self.wait(gap_ms)
            self.beat(client, epoch)

    def release(self, client: str, epoch: int, next_offset: int = -1) -> int:
        return self.put(ReleasingPartition, client, "t", 0, epoch, next_offset)

    def history(self, partitions: int = 1, **more: Any) -> PartitionHistory:
        history = PartitionHistory(0, partitions, **more)
        history.feed(*zip(*self.records, strict=True))
        return history


def feed_one(history: PartitionHistory, offset: int, value: bytes | None, at_ms: int) -> None:
    history.feed([offset], [value], [at_ms])


def rows(history: PartitionHistory, table: str) -> list[dict[str, Any]]:
    found = history.rows.tables.get(table, []) + history.open_rows().get(table, [])
    listed: list[dict[str, Any]] = to_arrow(table, found).to_pylist()
    return listed


def life(script: Script) -> None:
    """What correct clients do: claim, beat, crash, be replaced, restart, release."""
    epoch = script.claim("a")
    script.wait(5)
    script.beat("a", epoch, 10)
    script.beats("a", epoch, 30)
    script.put(
        ClaimingPartition, "b", "t", 0, INTERVAL_MS, script.version() - 1
    )  # too late: a race
    script.wait(2_000)
    second = script.claim("b")
    script.wait(7)
    script.beat("b", second, 20)
    script.beat("a", epoch, 11)  # was on its way
    third = script.claim("b", instance="b-2")
    script.beat("b", third, 30, instance="b-2")
    script.put(ClaimingMessages, "b", "t", 0, third, 50, instance="b-2")
    script.put(ReleasingPartition, "b", "t", 0, third, 50, instance="b-2")


def test_the_life_of_a_cell_and_nothing_amiss() -> None:
    script = Script()
    life(script)
    history = script.history()
    claims = rows(history, "claims")
    assert [(c["client_id"], c["epoch"], c["how"], c["ended_by"]) for c in claims] == [
        ("a", 0, "taken_over", "b"),
        ("b", 33, "resumed", "b"),
        ("b", 36, "released", "b"),
    ]
    assert [(c["first_offset"], c["last_offset"], c["heartbeats"]) for c in claims] == [
        (None, 10, 31),
        (10, 20, 1),
        (20, 50, 1),
    ]
    assert [
        (t["silence_ms"], t["first_beat_ms"], t["how"]) for t in rows(history, "takeovers")
    ] == [
        (2_000, 7, "taken_over"),
        (0, 0, "resumed"),
    ]
    assert [(r["client_id"], r["reason"]) for r in rows(history, "rejections")] == [
        ("b", "stale_version"),
        ("a", "not_held"),
    ]
    assert [(b["from_offset"], b["to_offset"]) for b in rows(history, "batches")] == [(None, 50)]
    assert rows(history, "anomalies") == []
    assert rows(history, "elections") == []


def test_an_open_claim_is_a_row_that_may_change() -> None:
    script = Script()
    epoch = script.claim("a")
    script.beat("a", epoch, 5)
    history = script.history()
    (claim,) = rows(history, "claims")
    assert claim["until_at"] is None
    assert claim["last_offset"] == 5
    assert history.take_rows() == {}


def test_elections_have_rows_of_their_own() -> None:
    script = Script()
    epoch = script.put(ClaimingPartition, "a", "leader:x", 0, INTERVAL_MS, -1)
    script.wait(10)
    script.put(ReleasingPartition, "a", "leader:x", 0, epoch, -1)
    script.wait(250)
    script.claim("b", "leader:x")
    elections = rows(script.history(), "elections")
    assert [(e["name"], e["client_id"], e["how"], e["vacancy_ms"]) for e in elections] == [
        ("x", "a", "released", None),
        ("x", "b", None, 250),
    ]


def test_a_leader_that_was_replaced_left_no_vacancy() -> None:
    """And another partition of its topic is no election."""
    script = Script()
    script.claim("a", "leader:x")
    script.wait(2 * INTERVAL_MS)
    script.claim("b", "leader:x")
    script.put(ClaimingPartition, "c", "leader:x", 1, INTERVAL_MS, -1)
    elections = rows(script.history(), "elections")
    assert [(e["client_id"], e["how"], e["vacancy_ms"]) for e in elections] == [
        ("a", "taken_over", None),
        ("b", None, 0),
    ]


def test_a_claim_ends_where_its_messages_were_claimed_to() -> None:
    script = Script()
    epoch = script.claim("a")
    script.beat("a", epoch, 3)
    script.put(ClaimingMessages, "a", "t", 0, epoch, 50)
    history = script.history()
    (claim,) = rows(history, "claims")
    assert (claim["last_offset"], claim["batches"]) == (50, 1)


def test_late_heartbeats_count_for_the_claims_that_stood_then_and_once() -> None:
    script = Script()
    first = script.claim("a")
    script.beats("a", first, 2)
    script.beats("a", first, 1, 2_500)
    script.claim("a", "u")
    script.beats("a", first, 1, 700)
    script.beats("a", first, 1, 2_100)
    history = script.history()
    for _ in range(2):  # it may be asked at any time
        claims = {c["topic"]: c for c in rows(history, "claims")}
        told = {topic: (c["late_heartbeats"], c["longest_gap_ms"]) for topic, c in claims.items()}
        assert told == {"t": (2, 2_500), "u": (1, 2_100)}
    script.wait(1_000)
    script.beat("a", first)
    feed_one(history, *script.records[-1])
    assert {c["topic"]: c["late_heartbeats"] for c in rows(history, "claims")} == {"t": 2, "u": 1}


def test_the_gap_before_a_claim_is_none_of_its_own() -> None:
    script = Script()
    first = script.claim("a")
    script.beats("a", first, 1, 1_000)
    script.wait(900)
    script.claim("a", "u")
    script.beats("a", first, 1, 100)  # a second after the one before; of this claim the first
    script.beats("a", first, 1, 500)
    claims = {c["topic"]: c["longest_gap_ms"] for c in rows(script.history(), "claims")}
    assert claims == {"t": 1_000, "u": 500}


def test_to_claim_more_does_not_make_up_for_a_late_heartbeat() -> None:
    script = Script()
    epoch = script.claim("a")
    script.beats("a", epoch, 2)
    script.wait(2_500)
    script.claim("a", "u")
    script.beat("a", epoch)
    assert [a["kind"] for a in rows(script.history(), "anomalies")] == ["late_heartbeat"]


def test_silence_counts_from_the_latest_word_whatever_it_was() -> None:
    script = Script()
    epoch = script.claim("a")
    script.beats("a", epoch, 2)
    script.wait(500)
    script.put(ClaimingMessages, "a", "t", 0, epoch, 50)
    script.wait(2_000)
    script.claim("b")
    (takeover,) = rows(script.history(), "takeovers")
    assert takeover["silence_ms"] == 2_000


def test_a_rejection_says_what_it_knows_of_the_cell() -> None:
    script = Script()
    script.put(ClaimingMessages, "a", "none", 0, 0, 5)
    epoch = script.claim("a")
    script.put(ClaimingMessages, "a", "t", 0, epoch + 1, 5)
    told = [
        (r["cell_holder"], r["cell_epoch"], r["cell_version"])
        for r in rows(script.history(), "rejections")
    ]
    assert told == [(None, None, None), ("a", epoch, epoch)]


def test_ranges_have_rows_that_name_their_messages_and_their_claims() -> None:
    script = Script()
    epoch = script.put(ClaimingRange, "a", "t", 3, INTERVAL_MS, 0, 100)
    script.put(SplittingRange, "a", "t/3@0", 0, epoch, 40)
    script.put(ReleasingPartition, "a", "t/3@0", 0, epoch, -1)
    again = script.put(ClaimingRange, "b", "t", 3, INTERVAL_MS, 0, 40)
    history = script.history()
    tables = history.take_rows() | {"open": history.open_rows()["claims"]}
    to_arrow("ranges", tables["ranges"])
    names = [column.name for column in TABLES["ranges"]]
    found = [dict(zip(names, row, strict=True)) for row in tables["ranges"]]
    assert {(r["topic"], r["partition"]) for r in found} == {("t", 3)}
    assert [
        (r["from_offset"], r["to_offset"], r["what"], r["granted"], r["client_id"], r["epoch"])
        for r in found
    ] == [
        (0, 100, "granted", 1, "a", epoch),
        (0, 40, "cut", None, "a", None),
        (0, 40, "granted", 1, "b", again),
    ]
    claims = {row[6]: row[4] for row in [*tables["claims"], *tables["open"]]}
    assert claims == {epoch: "a", again: "b"}


def test_positions_are_sampled_and_the_last_is_kept() -> None:
    script = Script()
    epoch = script.claim("a")
    for n in range(12):
        script.wait(INTERVAL_MS // 2)
        script.beat("a", epoch, n)
    script.release("a", epoch, 12)
    positions = rows(script.history(sample_ms=2_000), "positions")
    assert [p["next_offset"] for p in positions] == [2, 6, 10, 12]
    # Each with the time at which its holder had come so far, not with that of its claim.
    after_ms = [int(p["at"].timestamp() * 1000) - START_MS for p in positions]
    assert after_ms == [1_500, 3_500, 5_500, 6_000]
    each = rows(script.history(sample_ms=100), "positions")
    after_ms = [int(p["at"].timestamp() * 1000) - START_MS for p in each]
    assert after_ms == [*range(500, 6_001, 500)]


def test_a_position_that_stands_still_has_the_time_at_which_it_was_reached() -> None:
    """Not of the last heartbeat since, nor only of the end of its claim."""
    script = Script()
    epoch = script.claim("a")
    for next_offset in (5, 7, 7):
        script.wait(INTERVAL_MS)
        script.beat("a", epoch, next_offset)
    script.beats("a", epoch, 20)

    def steps() -> list[tuple[int, int]]:
        found = rows(script.history(sample_ms=2_000), "positions")
        return [(int(p["at"].timestamp() * 1000) - START_MS, p["next_offset"]) for p in found]

    assert steps() == [(1_000, 5), (2_000, 7)]
    script.release("a", epoch, 7)
    assert steps() == [(1_000, 5), (2_000, 7), (23_000, 7)]


@pytest.mark.parametrize("seed", range(40))
def test_positions_say_where_a_cell_was_at_each_sampling_time(seed: int) -> None:
    """As the fold had it then, though a row is written only where it moved on."""
    chance, script, sample_ms = random.Random(seed), Script(), 2_000
    epoch, at = script.claim("a"), 0
    true: list[tuple[int, int]] = []
    for _ in range(60):
        script.wait(chance.choice((1, 300, 900, 5_000)))
        moved = chance.choice((0, 0, 1, 4))
        match chance.randrange(8):
            case 0:
                script.release("a", epoch, at + moved)
                epoch = script.claim("a")
            case 1 if seed % 2:
                script.put(ClaimingMessages, "a", "t", 0, epoch, at + 1 + moved)
            case 2:
                epoch = script.claim("b" if chance.random() < 0.5 else "a")
            case _:
                script.beat("a", epoch, at + moved if chance.random() < 0.7 else -1)
        at = max(0, script.state.cells["g", "t", 0].position)
        true.append((script.now_ms, at))
    found = sorted(
        (int(p["at"].timestamp() * 1000), max(p["next_offset"] or 0, p["claimed_offset"] or 0))
        for p in rows(script.history(sample_ms=sample_ms), "positions")
    )
    for moment in range(START_MS + sample_ms, script.now_ms + sample_ms, sample_ms):
        wanted = [at for when, at in true if when < moment]
        said = [at for when, at in found if when < moment]
        assert (said or [0])[-1] == (wanted or [0])[-1], moment


def test_operations() -> None:
    script = Script()
    paused = script.put(ReleaseGroup, "op", START_MS + 1_000)
    script.put(SetPosition, "op", "t", 0, 7, -1)
    script.put(ForgetGroup, "op", paused)
    script.found(5_000)
    found = rows(script.history(), "operations")
    assert [(o["what"], o["detail"]) for o in found] == [
        ("pause", f"until {START_MS + 1_000} ms"),
        ("set_position", "t/0 to 7"),
        ("forget", "1 cells"),
        ("found", "log its, epochs from 5000, 1 partitions"),
    ]


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_history_carried_over_gives_the_same_rows(cut: int) -> None:
    script = Script()
    life(script)
    whole = script.history()
    first = PartitionHistory(0, 1)
    first.feed(*zip(*script.records[:cut], strict=True))
    second = PartitionHistory.decode(first.encode(), 1)
    second.feed(*zip(*script.records[cut:], strict=True))
    for table in TABLES.keys() - {"ends"}:
        both = first.rows.tables.get(table, []) + second.rows.tables.get(table, [])
        assert both == whole.rows.tables.get(table, []), table
    assert second.open_rows() == whole.open_rows()
    assert second.encode() == whole.encode()


# Each kind of anomaly, planted among what correct clients do.

Plant = Callable[[Script], None]


def foreign_record(script: Script) -> None:
    script.raw(b"not ours")


def wrong_partition(script: Script) -> None:
    assert coordinating_partition("g", PARTITIONS) != 0
    script.claim("c")
    script.claim("c", "u")


def foreign_sender(script: Script) -> None:
    epoch = script.claim("a")
    script.put(ClaimingMessages, "c", "t", 0, epoch, 500)
    script.put(ClaimingMessages, "c", "t", 0, epoch, 501)


def sequence(script: Script) -> None:
    epoch = script.claim("a")
    script.beat("a", epoch)
    script.seqs["a-1"] -= 1
    script.beat("a", epoch, 1_000)


def appended_twice(script: Script) -> None:
    """Three records again, after one that was sent later."""
    epoch = script.claim("a")
    for _ in range(2):
        for position in range(1_000, 1_004):
            script.beat("a", epoch, position)
        script.seqs["a-1"] -= 4
    script.seqs["a-1"] += 4
    script.beat("a", epoch, 1_009)


def duplicate_client_id(script: Script) -> None:
    epoch = script.claim("a")
    for _ in range(4):
        script.beat("a", epoch)
        script.put(Heartbeat, "a", INTERVAL_MS, instance="a-2")


def early_takeover(script: Script) -> None:
    epoch = script.claim("a")
    script.beats("a", epoch, 2)
    script.wait(INTERVAL_MS)
    script.claim("c")


def early_set_position(script: Script) -> None:
    script.put(ReleaseGroup, "op", 0)
    script.put(SetPosition, "op", "t", 0, 7, script.version())


def late_heartbeat(script: Script) -> None:
    epoch = script.claim("a")
    script.beats("a", epoch, 3)
    script.beats("a", epoch, 3, 2 * INTERVAL_MS + 1)


def clock_drift(script: Script) -> None:
    epoch = script.claim("a")
    script.beats("a", epoch, 40, int(INTERVAL_MS * 1.07))


def flapping(script: Script) -> None:
    for client in ("p", "q", "r", "p", "q", "r", "p", "q"):
        epoch = script.claim(client)
        script.beat(client, epoch)
        script.release(client, epoch)


def zombie(script: Script) -> None:
    epoch = script.claim("a")
    script.beat("a", epoch)
    script.release("a", epoch)
    for position in range(6):
        script.wait(INTERVAL_MS)
        script.beat("a", epoch, position)


def impossible_epoch(script: Script) -> None:
    script.beat("c", script.claim("c") + 5, 1)


def impossible_version(script: Script) -> None:
    script.put(ClaimingPartition, "c", "t", 0, INTERVAL_MS, script.version() + 1)


def position_went_back(script: Script) -> None:
    epoch = script.claim("a")
    script.beat("a", epoch, 70)
    script.beat("a", epoch, 69)


def position_went_back_among_many(script: Script) -> None:
    first, second = script.claim("a"), script.claim("a", "u")
    script.tell("a", {first: 70, second: 80})
    script.tell("a", {first: 70, second: 79})


def claimed_not_ahead(script: Script) -> None:
    epoch = script.claim("a")
    script.put(ClaimingMessages, "a", "t", 0, epoch, 90)
    script.put(ClaimingMessages, "a", "t", 0, epoch, 90)  # a retry
    script.put(ClaimingMessages, "a", "t", 0, epoch, 89)


def broker_clock(script: Script) -> None:
    script.beat("a", script.claim("a"))
    script.wait(-1_001)
    script.put(Heartbeat, "a", INTERVAL_MS)
    script.wait(1_001)


def genesis(script: Script, partitions: int = 1) -> None:
    previous = script.state.identity or ""
    script.put(Genesis, "a", f"log {len(script.records)}", previous, 10**6, partitions, START_MS)


def wrong_genesis(script: Script) -> None:
    genesis(script, partitions=2)


def second_genesis(script: Script) -> None:
    genesis(script)
    script.wait(FOUNDING_MS + 1)
    script.put(Genesis, "b", "mine", "", 10**7, 1, START_MS)


def level(script: Script) -> None:
    script.put(SetLevel, "op", 2, 1)
    for _ in range(3):
        script.put(Heartbeat, "a", INTERVAL_MS)
    script.put(SetLevel, "op", 1, 2)


_NAMED: tuple[Plant, ...] = (
    foreign_record,
    wrong_partition,
    foreign_sender,
    sequence,
    appended_twice,
    duplicate_client_id,
    early_takeover,
    late_heartbeat,
    clock_drift,
    flapping,
    zombie,
    impossible_epoch,
    impossible_version,
    position_went_back,
    claimed_not_ahead,
    broker_clock,
    wrong_genesis,
    second_genesis,
    level,
)
PLANTS: list[tuple[str, Plant]] = [
    *((plant.__name__, plant) for plant in _NAMED),
    ("position_went_back", position_went_back_among_many),
]


@pytest.mark.parametrize(("kind", "plant"), PLANTS)
def test_feed_and_note_say_the_same(kind: str, plant: Plant) -> None:
    """`feed` has a shorter way for ordinary heartbeats; `note` has not."""
    script = Script()
    life(script)
    script.wait(60_000)
    plant(script)
    epoch = script.claim("z", "u")
    for n in range(70):  # several positions, steps of the sequence, and pauses of two lengths
        script.wait(INTERVAL_MS * (2 if n % 9 == 0 else 1))
        script.seqs["z-1"] += (0, 1, 40, 70)[n % 4]
        positions = [epoch, n // 2 - 1] if n > 1 else []
        script.put(Heartbeat, "z", INTERVAL_MS, 0, positions)
    noted = PartitionHistory(0, 1, sample_ms=10_000)
    events: list[ev.Event] = []
    for offset, value, at_ms in script.records:
        apply(noted.state, offset, value, events)
        noted.note(offset, value, at_ms, events)
        events.clear()
    fed = script.history(sample_ms=10_000)
    assert fed.rows.tables == noted.rows.tables
    assert fed.encode() == noted.encode()
    track = fed.track(("g", "u", 0))
    assert track is not None
    assert track.heartbeats == 70


@pytest.mark.parametrize("base", [None, 5_000])
@pytest.mark.parametrize(("kind", "plant"), PLANTS)
def test_a_planted_anomaly_is_found_once_and_nothing_else(
    kind: str, plant: Plant, base: int | None
) -> None:
    """In a log that nobody founded, and in one whose epochs are not the offsets of their claims."""
    partitions = PARTITIONS if kind == "wrong_partition" else 1
    script = Script()
    if base is not None:
        script.found(base, partitions)
    if partitions == 1:
        life(script)
    script.wait(60_000)
    plant(script)
    found = rows(script.history(partitions), "anomalies")
    assert [a["kind"] for a in found] == [kind]
    assert found[0]["what"]
    assert kind in MEANING


@pytest.mark.parametrize(("copies", "more"), [(48, []), (49, ["sequence"])])
def test_what_is_appended_twice_again_and_again_is_the_work_of_two_processes(
    copies: int, more: list[str]
) -> None:
    script = Script()
    epoch = script.claim("a")
    for n in range(copies):
        script.wait(10)
        script.beat("a", epoch, n)
        script.seqs["a-1"] -= 1
        script.beat("a", epoch, n)
    found = [a["kind"] for a in rows(script.history(), "anomalies")]
    assert found == ["appended_twice", *more]


def test_all_that_was_in_flight_may_come_again_in_one_go() -> None:
    """A client that was cut off for long gives its cells up and asks for them again, many times."""
    script = Script()
    epoch = script.claim("a")
    for n in range(60):
        script.beat("a", epoch, n)
    script.seqs["a-1"] -= 60
    for n in range(60):
        script.beat("a", epoch, n)
    script.beats("a", epoch, 100)
    assert [a["kind"] for a in rows(script.history(), "anomalies")] == ["appended_twice"]


def test_copies_long_after_one_another_are_each_a_producers_own() -> None:
    script = Script()
    epoch = script.claim("a")
    for n in range(800):
        script.wait(10)
        script.beat("a", epoch, n)
        if n % 20 == 0:
            script.seqs["a-1"] -= 1
            script.beat("a", epoch, n)
    assert [a["kind"] for a in rows(script.history(), "anomalies")] == ["appended_twice"]


def found_in(script: Script, partitions: int = 1) -> list[str]:
    return [a["kind"] for a in rows(script.history(partitions), "anomalies")]


@pytest.mark.parametrize(("silence_ms", "found"), [(1_899, []), (1_898, ["early_takeover"])])
def test_a_claimant_waits_for_two_intervals_less_what_clocks_may_differ(
    silence_ms: int, found: list[str]
) -> None:
    script = Script()
    script.beat("a", script.claim("a"))
    script.wait(silence_ms)
    script.claim("b")
    assert found_in(script) == found


def test_what_the_clocks_of_brokers_may_differ_is_none() -> None:
    script = Script()
    script.beat("a", script.claim("a"))
    script.wait(-1_000)
    script.put(Heartbeat, "a", INTERVAL_MS)
    assert found_in(script) == []


@pytest.mark.parametrize(("gap_ms", "found"), [(2_400, ["flapping"]), (2_401, [])])
def test_six_changes_within_twelve_intervals_are_flapping(gap_ms: int, found: list[str]) -> None:
    script = Script()
    script.release("z", script.claim("z"))
    for client in ("p", "q", "r", "p", "q", "r"):
        script.release(client, script.claim(client))
        script.wait(gap_ms)
    assert found_in(script) == found


def test_flapping_is_told_once_in_its_window_and_again_when_it_goes_on() -> None:
    script = Script()
    for n in range(14):
        script.release("pq"[n % 2], script.claim("pq"[n % 2]))
        script.wait(1_000)
    assert found_in(script) == ["flapping"]
    for n in range(6):
        script.release("pq"[n % 2], script.claim("pq"[n % 2]))
        script.wait(1_000)
    assert found_in(script) == ["flapping", "flapping"]


def test_a_client_that_comes_back_to_its_own_is_not_flapping() -> None:
    script = Script()
    for _ in range(20):
        script.release("a", script.claim("a"))
    assert found_in(script) == []


@pytest.mark.parametrize(
    ("between_ms", "found"),
    [(INTERVAL_MS, []), (2_000, ["clock_drift"]), (2_001, ["late_heartbeat"])],
)
@pytest.mark.parametrize("claims_more", [False, True])
def test_a_clock_is_slow_if_no_gap_is_as_it_should_be(
    between_ms: int, found: list[str], claims_more: bool
) -> None:
    """A gap that the lease did not survive is another trouble, and begins the count anew."""
    script = Script()
    epoch = script.claim("a")
    script.beats("a", epoch, 19, 1_070)
    if claims_more:
        script.claim("a", "u")
    script.beats("a", epoch, 1, between_ms)
    script.beats("a", epoch, 19, 1_070)
    assert found_in(script) == found


@pytest.mark.parametrize("base", [None, 5_000])
@pytest.mark.parametrize(("above", "found"), [(0, []), (1, ["impossible_epoch"])])
def test_a_later_epoch_than_the_cells_is_impossible_even_if_another_cell_has_it(
    base: int | None, above: int, found: list[str]
) -> None:
    script = Script()
    if base is not None:
        script.found(base)
    epoch = script.claim("a")
    script.claim("b", "u")
    script.release("a", epoch)
    script.put(ClaimingMessages, "a", "t", 0, epoch + above, 9)
    assert found_in(script) == found


def test_a_heartbeat_cannot_tell_of_a_claim_that_comes_after_it() -> None:
    script = Script()
    script.claim("a")
    script.beat("a", len(script.records), 5)
    assert found_in(script) == ["impossible_epoch"]


def test_a_claim_of_messages_that_was_overtaken_is_no_anomaly() -> None:
    script = Script()
    epoch = script.claim("a")
    script.seqs["a-1"] = 5
    script.put(ClaimingMessages, "a", "t", 0, epoch, 90)
    script.seqs["a-1"] = 3
    script.put(ClaimingMessages, "a", "t", 0, epoch, 80)
    assert found_in(script) == []


@pytest.mark.parametrize(
    ("gaps_ms", "found"),
    [
        ((0, 2_001), []),
        ((0, 1_000, 1_000), []),
        ((0, 1_000, 1_001), ["zombie"]),
        ((0, 1_000, 1_001, 5_000, 5_000, 5_000), ["zombie"]),
    ],
)
def test_the_third_refused_heartbeat_after_two_intervals_is_a_zombies(
    gaps_ms: tuple[int, ...], found: list[str]
) -> None:
    script = Script()
    epochs = [script.claim("a", topic) for topic in ("t", "u")]
    for topic, epoch in zip("tu", epochs, strict=True):
        script.put(ReleasingPartition, "a", topic, 0, epoch, -1)
    for gap_ms in gaps_ms:
        script.wait(gap_ms)
        script.tell("a", dict.fromkeys(epochs, 5))  # of two claims in one: that is one heartbeat
    assert found_in(script) == found


def test_a_zombie_may_tell_of_metadata_alone() -> None:
    script = Script()
    epoch = script.claim("a")
    script.release("a", epoch)
    for _ in range(4):
        script.wait(INTERVAL_MS)
        script.put(Heartbeat, "a", INTERVAL_MS, 0, [], [MetadataEntry(epoch, b"x")])
    assert found_in(script) == ["zombie"]


def test_heartbeats_for_a_claim_that_was_lost_later_are_counted_for_themselves() -> None:
    script = Script()
    for topic in ("t", "u"):
        epoch = script.claim("a", topic)
        script.put(ReleasingPartition, "a", topic, 0, epoch, -1)
        for _ in range(2):
            script.wait(1_500)
            script.beat("a", epoch, 5)
    assert found_in(script) == []


def test_who_looked_at_a_cell_before_it_was_ended_expects_nothing_impossible() -> None:
    script = Script()
    epoch = script.claim("a")
    script.beat("a", epoch, 5)
    version = script.version()
    script.put(ReleasingPartition, "a", "t", 0, epoch, 5, 1)
    script.put(ClaimingPartition, "b", "t", 0, INTERVAL_MS, version)
    assert found_in(script) == []
    script.put(ClaimingPartition, "b", "t", 0, INTERVAL_MS, len(script.records))
    assert found_in(script) == ["impossible_version"]


@pytest.mark.parametrize("behind", [62, 63, 64])
def test_a_number_that_comes_again_is_found_however_many_came_since(behind: int) -> None:
    script = Script()
    epoch = script.claim("a")
    for n in range(behind + 1):
        script.beat("a", epoch, n)
    script.seqs["a-1"] -= behind + 1
    script.beat("a", epoch, 1_000)
    assert found_in(script) == ["sequence"]


def test_a_record_that_was_overtaken_comes_once() -> None:
    script = Script()
    epoch = script.claim("a")
    script.seqs["a-1"] = 5
    script.beat("a", epoch, 70)
    for position in (60, 61):
        script.seqs["a-1"] = 3
        script.beat("a", epoch, position)
    assert found_in(script) == ["sequence"]


def test_two_late_records_of_an_earlier_process_are_no_sign_of_two() -> None:
    script = Script()
    epoch = script.claim("a")
    script.put(Heartbeat, "a", INTERVAL_MS, instance="a-2")
    for _ in range(2):
        script.beat("a", epoch)
    assert found_in(script) == []
    script.beat("a", epoch)
    assert found_in(script) == ["duplicate_client_id"]


def test_a_genesis_that_was_refused_has_no_group_that_belongs_elsewhere() -> None:
    assert coordinating_partition("-", 4) != 0
    script = Script()
    script.found(5_000, 4)
    script.raw(encode(Genesis(2, "g", "g-1", "-", 0, "mine", "", 9_000, 4, START_MS)))
    assert found_in(script, 4) == []


def test_a_genesis_of_fewer_partitions_or_of_a_base_that_is_too_low_is_told() -> None:
    script = Script()
    script.found(5_000)
    assert found_in(script, PARTITIONS) == ["wrong_genesis"]
    script.wait(FOUNDING_MS + 1)
    script.raw(encode(Genesis(2, "g", "g-1", "-", 0, "mine", "its", 5_000, 1, START_MS)))
    assert found_in(script) == ["second_genesis"]


def test_another_process_of_the_holders_name_may_not_set_its_position_while_it_lives() -> None:
    script = Script()
    script.claim("a")
    script.put(ReleaseGroup, "op", 0)
    script.put(SetPosition, "a", "t", 0, 7, script.version(), instance="a-2")
    assert found_in(script) == ["early_takeover"]


@pytest.mark.parametrize("fed", [True, False])
def test_whoever_is_silent_for_long_is_forgotten_but_not_what_it_holds(
    monkeypatch: pytest.MonkeyPatch, fed: bool
) -> None:
    monkeypatch.setattr(anomalies, "MANY_INSTANCES", 3)
    script = Script()
    script.claim("holder")
    lost = script.claim("zombie", "u")
    script.put(ReleasingPartition, "zombie", "u", 0, lost, -1)
    script.beat("zombie", lost, 5)
    script.put(Heartbeat, "twin", INTERVAL_MS)
    script.put(Heartbeat, "old", INTERVAL_MS)
    history = PartitionHistory(0, 1)
    late = 3 * MEMBER_HORIZON
    for _ in range(3):  # `note` looks at every third record here
        script.put(Heartbeat, "twin", INTERVAL_MS, instance="twin-2")
    records = [
        (offset + (late if offset > 5 else 0), value, at_ms)
        for offset, value, at_ms in script.records
    ]
    for record in records:
        if fed:
            feed_one(history, *record)
        else:
            events: list[ev.Event] = []
            apply(history.state, *record[:2], events)
            history.note(*record, events)
    memory = history._memory
    assert {instance for _, _, instance in memory.instances} == {"holder-1", "twin-2"}
    assert memory.newest == {("g", "holder"): "holder-1", ("g", "twin"): "twin-2"}
    assert memory.lost == {}


def test_a_position_set_over_a_live_holder_is_early() -> None:
    script = Script()
    epoch = script.claim("a")
    script.beat("a", epoch)
    script.wait(100)
    early_set_position(script)
    assert [a["kind"] for a in rows(script.history(), "anomalies")] == ["early_takeover"]


def test_a_holder_may_set_its_position_at_any_time() -> None:
    script = Script()
    epoch = script.claim("a")
    script.beat("a", epoch)
    script.wait(100)
    script.put(SetPosition, "a", "t", 0, 7, script.version())
    history = script.history()
    assert rows(history, "anomalies") == []
    assert "t" not in {key[1] for key, cell in history.state.cells.items() if cell.holder}


def snapshot(script: Script, at: int, **changes: Any) -> SnapshotSeen:
    state = PartitionState(0)
    for offset, value, _ in script.records[:at]:
        apply(state, offset, value)
    fields: dict[str, Any] = {
        "next_offset": at,
        "digest": state.digest(),
        "anchor": anchor_of(script.records[at - 1][1]),
        "writer": "w",
        "snapshot_offset": 0,
        "at_ms": START_MS,
    }
    return SnapshotSeen(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "found"),
    [({}, []), ({"digest": b"?" * 16}, ["differs"]), ({"anchor": b"?" * 16}, ["another log"])],
)
def test_snapshots_are_compared(changes: dict[str, Any], found: list[str]) -> None:
    script = Script()
    life(script)
    seen = snapshot(script, 20, **changes)
    anomalies = rows(script.history(snapshots=[seen, snapshot(script, 30)]), "anomalies")
    assert [a["kind"] for a in anomalies] == ["snapshot_differs" for _ in found]
    assert all(word in a["what"] for word, a in zip(found, anomalies, strict=True))


def test_a_snapshot_of_where_a_history_goes_on_is_compared() -> None:
    """As an operator makes one: of the end of the log, to which it has been read before."""
    script = Script()
    life(script)
    encoded = script.history().encode()
    script.put(Heartbeat, "z", INTERVAL_MS)
    for changes, found in (({}, 0), ({"digest": b"?" * 16}, 1), ({"anchor": b"?" * 16}, 1)):
        history = PartitionHistory.decode(encoded, 1)
        history.watch([snapshot(script, history.state.next_offset, **changes)])
        feed_one(history, *script.records[-1])
        assert len(rows(history, "anomalies")) == found


def test_of_the_snapshot_that_a_history_begins_with_the_record_before_is_not_known() -> None:
    script = Script()
    life(script)
    first = snapshot(script, len(script.records))
    state = PartitionState.decode(script.state.encode())
    script.put(Heartbeat, "z", INTERVAL_MS)
    history = PartitionHistory(0, 1, state=state, snapshots=[first])
    feed_one(history, *script.records[-1])
    assert rows(history, "anomalies") == []


def test_create_time_is_said_once() -> None:
    history = PartitionHistory(0, 1)
    history.saw_create_time(3, START_MS)
    history.saw_create_time(4, START_MS)
    assert [a["kind"] for a in rows(history, "anomalies")] == ["create_time"]


def test_a_claim_that_began_before_the_history() -> None:
    script = Script()
    epoch = script.claim("a")
    script.beat("a", epoch, 3)
    state = PartitionState.decode(script.state.encode())
    script.wait(500)
    script.beat("a", epoch, 4)
    script.release("a", epoch, 5)
    history = PartitionHistory(0, 1, state=state)
    history.feed(*zip(*script.records[2:], strict=True))
    (claim,) = rows(history, "claims")
    assert (claim["from_at"], claim["how"], claim["last_offset"]) == (None, "released", 5)
    assert rows(history, "anomalies") == []


def test_records_that_overtake_each_other_are_no_anomaly() -> None:
    script = Script()
    epoch = script.claim("a")
    script.seqs["a-1"] = 5
    script.beat("a", epoch, 70)
    script.seqs["a-1"] = 3
    script.beat("a", epoch, 60)  # an older one, sent by a producer that was given up
    script.seqs["a-1"] = 6
    script.beat("a", epoch, 70)
    assert rows(script.history(), "anomalies") == []


@pytest.mark.parametrize("late_ms", [0, FOUNDING_MS, FOUNDING_MS + 1])
def test_clients_that_found_a_log_at_once_are_no_anomaly(late_ms: int) -> None:
    script = Script()
    script.put(Genesis, "a", "its", "", 10**6, 1, START_MS)
    history = PartitionHistory.decode(script.history().encode(), 1)
    script.wait(late_ms)
    script.put(Genesis, "b", "mine", "", 10**7, 1, START_MS)
    offset, value, at_ms = script.records[-1]
    history.feed([offset], [value], [at_ms])
    found = [a["kind"] for a in rows(history, "anomalies")]
    assert found == (["second_genesis"] if late_ms > FOUNDING_MS else [])


def test_what_is_said_once_is_not_said_again_by_whoever_goes_on() -> None:
    script = Script()
    epoch = script.claim("a")
    script.beat("a", epoch, 1)
    first = script.history(sample_ms=100)
    first.saw_create_time(0, START_MS)
    second = PartitionHistory.decode(first.encode(), 1, sample_ms=100)
    assert second.create_time
    second.saw_create_time(1, START_MS)
    for _ in range(3):
        script.wait(200)
        script.beat("a", epoch, len(script.records))
        feed_one(second, *script.records[-1])
    assert [p["next_offset"] for p in rows(second, "positions")] == [1, 2, 3, 4]
    assert rows(second, "anomalies") == []


def test_every_kind_has_a_meaning() -> None:
    assert set(KINDS) == set(MEANING)


def test_a_heartbeat_renews_all_that_its_session_holds_and_no_other() -> None:
    script = Script()
    for topic in ("t", "u"):
        script.claim("a", topic)
    script.claim("b", "v")
    for _ in range(4):
        script.wait(INTERVAL_MS)
        script.put(Heartbeat, "a", INTERVAL_MS)
    script.wait(300)
    late = script.claim("a", "w")
    script.wait(400)
    script.put(Heartbeat, "a", INTERVAL_MS)
    history = script.history()
    claims = {c["topic"]: (c["heartbeats"], c["longest_gap_ms"]) for c in rows(history, "claims")}
    assert claims == {"t": (5, 1_000), "u": (5, 1_000), "v": (0, 0), "w": (1, 400)}
    track = history.track(("g", "w", 0))
    assert track is not None
    assert (track.epoch, track.version_ms) == (late, script.now_ms)
    script.wait(2 * INTERVAL_MS - 500)
    script.claim("b", "u")
    (early,) = rows(script.history(), "anomalies")
    assert (early["kind"], early["topic"]) == ("early_takeover", "u")


def test_a_claim_that_was_seen_is_known_though_its_session_began_before_the_history() -> None:
    script = Script()
    script.claim("a")
    history = PartitionHistory(0, 1, state=PartitionState.decode(script.state.encode()))
    script.wait(100)
    script.claim("a", "u")
    script.wait(100)
    script.put(Heartbeat, "a", INTERVAL_MS)
    history.feed(*zip(*script.records[1:], strict=True))
    began = {c["topic"]: c["from_at"] is None for c in rows(history, "claims")}
    assert began == {"t": True, "u": False}


def test_a_takeover_that_no_heartbeat_followed_has_a_row() -> None:
    script = Script()
    script.claim("a")
    script.wait(2 * INTERVAL_MS)
    script.release("b", script.claim("b"))
    (takeover,) = rows(script.history(), "takeovers")
    assert (takeover["client_id"], takeover["first_beat_ms"]) == ("b", None)


def test_a_session_that_began_before_the_history() -> None:
    script = Script()
    for topic in ("t", "u"):
        script.claim("a", topic)
    state = PartitionState.decode(script.state.encode())
    script.wait(500)
    script.put(Heartbeat, "a", INTERVAL_MS)
    script.wait(2 * INTERVAL_MS)
    script.claim("b")
    history = PartitionHistory(0, 1, state=state)
    history.feed(*zip(*script.records[2:], strict=True))
    (takeover,) = rows(history, "takeovers")
    assert takeover["silence_ms"] == 2 * INTERVAL_MS
    held = {(c["topic"], c["client_id"]) for c in rows(history, "claims")}
    assert held == {("t", "a"), ("u", "a"), ("t", "b")}
    assert rows(history, "anomalies") == []


def test_what_is_kept_does_not_grow_with_cells_that_were_ended() -> None:
    script = Script()
    for n in range(50):
        script.put(ReleasingPartition, "a", f"job {n}", 0, script.claim("a", f"job {n}"), -1, 1)
    history = script.history()
    assert not history.tracks
    assert len(rows(history, "claims")) == 50
    size = len(history.encode())
    for n in range(50, 100):
        script.put(ReleasingPartition, "a", f"job {n}", 0, script.claim("a", f"job {n}"), -1, 1)
    assert len(script.history().encode()) < size + 100


def test_of_ranges_that_were_closed_and_groups_that_were_forgotten_nothing_is_kept() -> None:
    script = Script()
    epoch = script.put(ClaimingRange, "a", "t", 0, INTERVAL_MS, 0, 100)
    script.put(ReleasingPartition, "a", "t/0@0", 0, epoch, 5)
    paused = script.put(ReleaseGroup, "op", 0)
    script.put(SetPosition, "op", "t", 0, 7, script.version())
    assert set(script.history().tracks) == {("g", "t", 0)}
    script.put(ForgetGroup, "op", paused)
    assert not script.history().tracks
