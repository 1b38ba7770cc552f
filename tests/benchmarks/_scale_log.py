"""What the log of a group of 1,000 clients at 5 s costs the brokers and each of them.

- `records/s`, `log GB/day`, `egress MB/s`: the records of an interval go one by one through
  the `LogWriter` of a client to a real broker, each in a batch of its own, as with 1,000 clients;
  what its segment files grow by is counted. Egress is that for each client; what the answers to
  fetches add is measured beside it, by a consumer under the real load of the group.
- `core share %`: processor time of `apply` and `Claimant` over simulated intervals; of a whole
  client (both, the driver, librdkafka's threads) that reads the real load from a broker; and of
  comparing snapshots (§6.5), one each 50,000 records.
- `worst record, us`: of each type of record the median, and the largest of those.
- `bytes per cell`: tracemalloc, all that a state holds; each cell has a position.
- `start, s`: `LogReader.open` and `replay`.
"""

from __future__ import annotations

import gc
import itertools
import json
import math
import multiprocessing
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event as Stop
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from marshal_py import Marshal
from marshal_py.client.log_reader import LogReader
from marshal_py.client.log_writer import LogWriter
from marshal_py.client.snapshots import Boundary, SnapshotDesk
from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.protocol.claimant import Claimant
from marshal_py.protocol.events import Event
from marshal_py.protocol.messages import (
    NO_OFFSET,
    VERSION,
    ClaimingMessages,
    ForgetGroup,
    Genesis,
    Heartbeat,
    ReleaseGroup,
    ReleasingPartition,
    ResumeGroup,
    SetLevel,
    SetPosition,
    decode,
    encode,
)
from marshal_py.protocol.rationalizer import BOUNDARY, MEMBER_HORIZON, PartitionState, apply
from marshal_py.protocol.snapshots import encode_snapshot
from marshal_py.protocol.state_image import image_of
from marshal_py.protocol.world import MS, Observer, World
from tests.benchmarks._servers import append_all, new_topic
from tests.benchmarks._synthetic_group import (
    BASE,
    GROUP,
    INTERVAL_MS,
    TOPIC,
    Sender,
    SyntheticGroup,
    group_of,
    position,
)
from tests.benchmarks.harness import Figure, Options, median, say

DAY_OLD: int = 20_000_000
"""An offset of a log that is older than a day: each that a heartbeat names takes five bytes."""

SNAPSHOT_EVERY = 50_000
"""The default of `Marshal`: a new client reads so many records at most beyond a snapshot."""


def figures(options: Options) -> list[Figure]:
    """Measure everything here."""
    clients, sizes = (20, (200, 2_000)) if options.quick else (1_000, (10_000, 100_000))
    found: list[Figure] = []
    with EmbeddedKafka() as kafka:
        for cells, moving in itertools.product(sizes, (False, True)):
            group = SyntheticGroup(clients, cells, DAY_OLD)
            found += written(kafka, group, moving=moving)
            found += live(kafka, clients, cells, options, moving=moving)
        for moving in (False, True):
            found += starts(kafka, clients, sizes[1], options, moving=moving)
    for cells, moving in itertools.product(sizes, (False, True)):
        group = SyntheticGroup(clients, cells, DAY_OLD, absent=1)
        found.append(fold_and_claimant(group, options, moving=moving))
    found += [comparing(SyntheticGroup(clients, cells), options) for cells in sizes]
    found.append(worst_record(SyntheticGroup(clients, sizes[1]), options))
    return found + memory(SyntheticGroup(clients, sizes[1]))


def _name(what: str, group: SyntheticGroup, moving: bool) -> str:
    return f"{what}, {group.cells:,} cells {'all moving' if moving else 'at rest'}"


# What is written, and what leaves the brokers


def written(kafka: EmbeddedKafka, group: SyntheticGroup, *, moving: bool) -> list[Figure]:
    """Write an interval's records with the writer of a client, each in a batch of its own.

    Counted is what the broker's segments grow by; all of it goes to each client.
    """
    topic = new_topic(kafka, 1)
    writer = LogWriter(
        {"bootstrap.servers": kafka.bootstrap_servers},
        topic=topic,
        snapshot_topic=f"{topic}.snapshots",
        timeout_ms=30_000,
    )
    before, records = segment_bytes(kafka, topic), group.interval(1, moving=moving)
    for seq, record in enumerate(records):
        writer.append(0, seq, record)
        if writer.flush(30):
            raise RuntimeError("a record could not be written")
    grown = segment_bytes(kafka, topic) - before
    say(_name(f"{grown / len(records):.0f} bytes a record and batch", group, moving))
    most_gb, most = (math.inf, 250) if moving else (3, 35)
    if moving and group.cells <= 10_000:
        most = 60
    count, bytes_s = len(records) * 1_000 / INTERVAL_MS, grown * 1_000 / INTERVAL_MS
    day_gb, egress = bytes_s * 86_400 / 1e9, bytes_s * group.clients / 1e6
    return [
        _at_most(_name("records/s", group, moving), count, "records/s", 200),
        _at_most(_name("log GB/day", group, moving), day_gb, "GB/day", most_gb),
        _at_most(_name("egress MB/s", group, moving), egress, "MB/s", most),
    ]


def _at_most(name: str, value: float, unit: str, most: float) -> Figure:
    if most == math.inf:
        return Figure(name, value, unit)
    return Figure(name, value, unit, None, f"≤ {most}", value <= most)


def segment_bytes(kafka: EmbeddedKafka, topic: str) -> int:
    """Return how large the broker's files of the records of a topic are."""
    data = Path(f"/proc/{kafka.pid()}/cwd/data")
    return sum(path.stat().st_size for path in data.glob(f"{topic}-[0-9]*/*.log"))


# What a client computes


class Client:
    """One of the clients: its world, and a claimant that holds its share of the cells.

    It is the first of a group that is lacking just that one.
    """

    def __init__(self, group: SyntheticGroup) -> None:
        self.group = group
        self.world = World(1)
        self.observers = [Observer()]
        self.now_ns = 10**15
        self.state = self.world.states[0] = group.state()
        _, client_id, instance_id, group_id, _ = group.sender(0, 0)
        self.claimant = Claimant(
            self.world,
            self.observers,
            client_id=client_id,
            instance_id=instance_id,
            group_id=group_id,
            interval_ms=INTERVAL_MS,
            margin_ms=INTERVAL_MS // 10,
            wall_s=time.time,
        )
        self.written = 0
        """How many records it wrote."""
        self.observers[0].caught_up_at_offset = self.state.next_offset
        self.observers[0].seen.note(self.state.next_offset - 1, self.now_ns)
        self.claimant.caught_up(0, self.now_ns)
        wanted = [self.claimant.want(TOPIC, n, self.now_ns) for n in range(group.each)]
        self.write()
        if not all(holding.held(self.now_ns) for holding in wanted):
            raise RuntimeError("not all of its own cells are held")
        self.holdings = wanted

    def read(self, value: bytes) -> list[Event]:
        """Take in one record, as the driver does."""
        state, events = self.state, list[Event]()
        apply(state, state.next_offset, value, events)
        self.observers[0].seen.note(state.next_offset - 1, self.now_ns)
        self.claimant.applied(0, events, self.now_ns)
        self.claimant.tick(self.now_ns)
        return events

    def write(self) -> list[bytes]:
        """Have what the claimant asks for appended, and read."""
        values = []
        while appends := self.claimant.take_appends():
            for append in appends:
                self.read(append.value)
                values.append(append.value)
        self.claimant.take_notices()
        self.written += len(values)
        return values

    def interval(self, records: list[bytes], turn: int, *, moving: bool) -> list[bytes]:
        """Read an interval's records of the others, evenly; return those of its own."""
        written = []
        if moving:
            for holding in self.holdings:
                self.claimant.advance(holding, position(holding.partition, turn))
        for record in records:
            self.now_ns += INTERVAL_MS * MS // (len(records) + 1)
            self.read(record)
            written += self.write()
        return written


def fold_and_claimant(group: SyntheticGroup, options: Options, *, moving: bool) -> Figure:
    """Return the processor time of the fold and the claimant, in per cent of a core."""
    client = Client(group)
    shares = []
    for turn in range(2 + options.repeats):
        records = group.interval(turn, moving=moving)
        began = time.process_time()
        written = client.interval(records, turn, moving=moving)
        shares.append(100 * (time.process_time() - began) / (INTERVAL_MS / 1_000))
        if turn >= 2:
            check_synthetic(group, written, turn, moving)
    share = median(shares[2:])
    return Figure(
        _name("core share %, fold and claimant", group, moving), share, "% of a core", None,
        "≤ 1", share <= 1,
    )  # fmt: skip


def check_synthetic(group: SyntheticGroup, written: list[bytes], turn: int, moving: bool) -> None:
    """The synthetic records are what a claimant writes, or the figures are of something else."""
    (own,) = written
    synthetic = group.heartbeat(0, turn, moving=moving)
    if type(decode(own)) is not Heartbeat or not 0 <= len(synthetic) - len(own) <= 8:
        raise RuntimeError(f"a claimant wrote {decode(own)}, not {decode(synthetic)}")


def comparing(group: SyntheticGroup, options: Options) -> Figure:
    """Return the processor time of boundaries and snapshots: 12 and 1 in 50,000 records (§6.5)."""
    state, later = group.state(), PartitionState(group.home)
    p, per_s = state.partition, group.clients * 1_000 / INTERVAL_MS
    costs = []
    for _ in range(min(3, options.repeats)):
        spent: dict[int, float] = {}
        for boundaries in (1, 8):
            desk = SnapshotDesk("__marshal")
            desk.reset(p + 1)
            at = state.next_offset
            snapshot = encode_snapshot(
                state.encode(),
                coordinator=p,
                partitions=p + 1,
                next_offset=at,
                anchor=bytes(16),
                writer="another",
            )
            began = time.process_time()
            for n in range(boundaries):
                desk.at_boundary(Boundary(p, at - boundaries + 1 + n, b"", image_of(state)))
            desk.read(snapshot, lambda _: later)
            while desk.newest.get(p) != at:
                time.sleep(0.001)
            spent[boundaries] = time.process_time() - began
            desk.close()
        each = (spent[8] - spent[1]) / 7
        costs.append(spent[1] + (SNAPSHOT_EVERY // BOUNDARY - 1) * each)
    share = 100 * median(costs) * per_s / SNAPSHOT_EVERY
    return Figure(f"core share %, comparing snapshots, {group.cells:,} cells", share, "% of a core")


# A whole client


def _load(servers: str, topic: str, group: SyntheticGroup, moving: bool, stop: Stop) -> None:
    """Write what all clients of a group write, evenly, until `stop`. A process of its own."""
    config = {"bootstrap.servers": servers}
    writer = LogWriter(config, topic=topic, snapshot_topic="-", timeout_ms=30_000)
    due_s, seq = time.monotonic(), 0
    for turn in itertools.count():
        for client in group.present:
            writer.append(group.home, seq, group.heartbeat(client, turn, moving=moving))
            seq += 1
            due_s += INTERVAL_MS / 1_000 / group.clients
            while (left_s := due_s - time.monotonic()) > 0:
                if stop.wait(left_s):
                    return
            writer.serve()


@contextmanager
def _under_load(
    kafka: EmbeddedKafka, topic: str, group: SyntheticGroup, moving: bool
) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    args = (kafka.bootstrap_servers, topic, group, moving, stop)
    process = context.Process(target=_load, args=args)
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join()


def live(
    kafka: EmbeddedKafka, clients: int, cells: int, options: Options, *, moving: bool
) -> list[Figure]:
    """Run one real client of the group, while another process writes what the others write."""
    topic, group = new_topic(kafka), group_of(clients, cells, absent=1)
    append_all(kafka, topic, group.home, group.opening())
    shares = {}
    with _under_load(kafka, topic, group, moving):
        for gather_ms in (0, GATHER_MS):
            name = _name(f"{gather_ms} ms gathered", group, moving)
            client = Marshal(
                kafka.bootstrap_servers,
                group_id=GROUP,
                client_id="measured",
                topic=topic,
                gather_ms=gather_ms,
            )
            with client:
                shares[gather_ms] = share_of(client, group, options, name, moving=moving)
        received = received_bytes_s(kafka, topic, group.home, 5) * clients / 1e6
    at_once, gathered = shares[0], shares[GATHER_MS]
    return [
        Figure(_name("core share %, a whole client", group, moving), at_once, "% of a core"),
        _at_most(
            _name(f"core share %, a whole client, gather_ms={GATHER_MS}", group, moving),
            *(gathered, "% of a core", 1),
        ),
        Figure(_name("egress MB/s with the answers to fetches", group, moving), received, "MB/s"),
    ]


GATHER_MS = 50
"""What is advised for a group of hundreds."""


def share_of(
    marshal: Marshal, group: SyntheticGroup, options: Options, name: str, *, moving: bool
) -> float:
    """Return what share of a core, in percent, this process uses while the client does its part."""
    claims = marshal.claim_many([(TOPIC, n) for n in range(group.each)], timeout_s=60)
    window_s, shares = 2 if options.quick else INTERVAL_MS / 1_000, []
    for turn in range(1 + options.repeats):  # the first warms up
        if moving:
            for claim in claims:
                claim.commit(position(claim.partition, turn))
        before, began_s, spent_s = offset_of(marshal), time.perf_counter(), time.process_time()
        time.sleep(window_s)  # the measured time itself
        spent_s, seconds = time.process_time() - spent_s, time.perf_counter() - began_s
        shares.append(100 * spent_s / seconds)
        rate = (offset_of(marshal) - before) / seconds
    say(f"{name}: {rate:.0f} records/s read")
    return median(shares[1:])


def offset_of(marshal: Marshal) -> int:
    """Return how far a client has read the coordination partition of its group."""
    with marshal.world() as world:
        return world.states[world.home(GROUP)].next_offset


def received_bytes_s(kafka: EmbeddedKafka, topic: str, p: int, seconds: float) -> float:
    """Return what a consumer with a client's fetch settings gets from its broker, all included."""
    counts: list[tuple[float, int]] = []

    def note(text: str) -> None:
        told = json.loads(text)
        counts.append((told["ts"] / 1e6, told["rx_bytes"]))

    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "bare",
            "enable.auto.commit": False,
            "fetch.min.bytes": 1,
            "fetch.wait.max.ms": 500,
            "queued.min.messages": 300_000,
            "auto.offset.reset": "latest",
            "statistics.interval.ms": 500,
            "stats_cb": note,
        }
    )
    consumer.assign([TopicPartition(topic, p)])
    until_s = time.monotonic() + 1 + seconds
    while time.monotonic() < until_s:
        consumer.consume(1_000, 0.05)
    consumer.close()
    (first_s, before), (last_s, after) = counts[1], counts[-1]
    return (after - before) / (last_s - first_s)


# Starts


def starts(
    kafka: EmbeddedKafka, clients: int, cells: int, options: Options, *, moving: bool
) -> list[Figure]:
    """Read a log to its end: from a snapshot that is due to be replaced, and without one."""
    topic, group = new_topic(kafka), group_of(clients, cells)
    append_all(kafka, topic, group.home, group.opening())
    write_snapshot(kafka, topic, group.home)
    turns = range((2_000 if options.quick else SNAPSHOT_EVERY) // clients)
    beats = (group.interval(turn, moving=moving) for turn in turns)
    append_all(kafka, topic, group.home, itertools.chain.from_iterable(beats))
    what = f"{len(turns) * clients:,} heartbeats"
    found = []
    for use_snapshots, origin in ((True, "a snapshot"), (False, f"the log: {cells:,} claims")):
        seconds = [read_all(kafka, topic, use_snapshots) for _ in range(options.repeats + 1)][1:]
        name = _name(f"start, s, from {origin} and {what}", group, moving)
        at = median(seconds)
        found.append(Figure(name, at, "s", None, "≤ 1", at <= 1))
    return found


def reader_of(kafka: EmbeddedKafka, topic: str, use_snapshots: bool) -> LogReader:
    return LogReader(
        {"bootstrap.servers": kafka.bootstrap_servers},
        topic=topic,
        snapshot_topic=f"{topic}.snapshots",
        groups=[GROUP],
        use_snapshots=use_snapshots,
    )


def read_all(kafka: EmbeddedKafka, topic: str, use_snapshots: bool) -> float:
    reader = reader_of(kafka, topic, use_snapshots)
    began = time.perf_counter()
    reader.open(30)
    reader.replay()
    seconds = time.perf_counter() - began
    reader.close()
    return seconds


def write_snapshot(kafka: EmbeddedKafka, topic: str, p: int) -> None:
    reader = reader_of(kafka, topic, use_snapshots=False)
    reader.open(30)
    reader.replay()
    due = reader.snapshot_now(p)
    if due is None:
        raise RuntimeError("the log is empty")
    writer = LogWriter(
        {"bootstrap.servers": kafka.bootstrap_servers},
        topic=topic,
        snapshot_topic=f"{topic}.snapshots",
        timeout_ms=30_000,
    )
    writer.write_snapshot(due, reader.world.partitions, "benchmark")
    writer.flush(30)
    reader.close()


# The worst record


def worst_record(group: SyntheticGroup, options: Options) -> Figure:
    """Return what the record costs that costs a reader most: decoding, fold and its events.

    Of each type the median of many, with the garbage collector as it is in production: on. A sweep
    is a record at which a member is dropped that has been silent for too long.
    """
    times: dict[str, list[float]] = {}

    def fold(what: str, state: PartitionState, value: bytes | None, ahead: int = 0) -> None:
        events: list[Event] = []
        began = time.perf_counter_ns()
        apply(state, state.next_offset + ahead, value, events)
        times.setdefault(what, []).append((time.perf_counter_ns() - began) / 1e3)

    state = group.state()
    image = state.encode(canonical=False)
    repeats, each, holder = 40 * options.repeats, min(100, group.each), group.clients - 1
    at = group.first + 1 + holder * group.each
    cell = holder * group.each
    seq = itertools.count(10**6)

    def sender(client: int = holder) -> Sender:
        return group.sender(client, next(seq))

    for turn in range(repeats):
        fold(f"Heartbeat that moves {each}", state, group.heartbeat(holder, turn, moving=True))
        fold("Heartbeat at rest", state, group.heartbeat(holder, turn, moving=False))
        proposed = ClaimingMessages(*sender(), TOPIC, cell, BASE + at, turn + 1)
        fold("ClaimingMessages", state, encode(proposed))
        fold("Genesis refused", state, encode(Genesis(*sender(), "x" * 32, "y", BASE, 1, 1)))
        fold("SetLevel", state, encode(SetLevel(*sender(), 1, 1)))
        fold("undecodable", state, b"\xc1" * 1_000)
        fold("ReleaseGroup", state, encode(ReleaseGroup(*sender(), 2**40)))
        paused = state.next_offset - 1
        fold("ForgetGroup refused", state, encode(ForgetGroup(*sender(), paused)))
        fold("ResumeGroup", state, encode(ResumeGroup(*sender(), paused)))
    for n in range(repeats):
        other, unit = n % (group.clients - 1), (TOPIC, cell + n % each)
        version = state.version(GROUP, *unit)
        fold("ClaimingPartition refused", state, group.claim(other, unit[1], version - 1))
        fold("ClaimingPartition of a held cell", state, group.claim(other, unit[1], version))
        epoch = state.cells[GROUP, *unit].epoch
        released = ReleasingPartition(*sender(), *unit, epoch, 1)
        fold("ReleasingPartition", state, encode(released))
        version = state.version(GROUP, *unit)
        fold("ClaimingPartition of a free cell", state, group.claim(other, unit[1], version))
        version = state.version(GROUP, *unit)
        fold("SetPosition", state, encode(SetPosition(*sender(other), *unit, n, version)))
        fold("ClaimingPartition of a new cell", state, group.claim(other, 10**6 + n, NO_OFFSET))
        epoch = state.base + state.next_offset - 1
        ended = ReleasingPartition(*sender(), TOPIC, 10**6 + n, epoch, 1, 1)
        fold("ReleasingPartition that ends a cell", state, encode(ended))
    for _ in range(min(3, options.repeats)):
        state = PartitionState.decode(image)
        for cells in state.groups[GROUP].sessions.values():
            cells.claims.clear()
        full = state.groups[GROUP]
        for held in full.cells.values():
            held.holder = held.instance_id = None
        full.held = 0
        fold("ReleaseGroup", state, encode(ReleaseGroup(*sender(), 2**40)))
        fold("ForgetGroup", state, encode(ForgetGroup(*sender(), state.next_offset - 1)))
        for _ in range(repeats):
            fold("after a ForgetGroup", state, b"\xc1")
    state = PartitionState(0)
    for client in range(repeats):
        record = Heartbeat(*sender(client % 10_000), INTERVAL_MS, 1)
        apply(state, state.next_offset, encode(record))
    state.next_offset = MEMBER_HORIZON
    for _ in range(repeats):
        fold("a sweep", state, b"\xc1")
    of = {what: median(found) for what, found in times.items()}
    for what, us in sorted(of.items(), key=lambda item: -item[1]):
        say(f"{us:7.1f} us, at most {max(times[what]):.0f}: {what}")
    worst = max(of, key=lambda what: of[what])
    name = f"worst record, us ({worst}, {group.cells:,} cells)"
    return Figure(name, of[worst], "us", None, "≤ 50", of[worst] <= 50)


# Memory


def memory(group: SyntheticGroup) -> list[Figure]:
    """Return what a cell takes of a client's memory: read from the log, and from a snapshot."""

    def changed_hands() -> PartitionState:
        """Half of the cells are taken over, half are released first."""
        state = group.state()
        for cell in range(group.cells):
            owner, claimed_at = cell // group.each, group.first + 1 + cell
            if cell % 2:
                released = ReleasingPartition(
                    *group.sender(owner, cell), TOPIC, cell, BASE + claimed_at, NO_OFFSET
                )
                apply(state, state.next_offset, encode(released))
            version = state.version(GROUP, TOPIC, cell)
            heir = (owner + 1) % group.clients
            apply(state, state.next_offset, group.claim(heir, cell, version))
        return state

    def move_all(state: PartitionState) -> None:
        for (client_id, instance_id), session in list(state.groups[GROUP].sessions.items()):
            positions: list[int] = []
            for epoch, cell in session.claims.items():
                positions += (epoch - BASE, position(cell.unit[1], 1))
            sender: Sender = (VERSION, client_id, instance_id, GROUP, 1)
            record = encode(Heartbeat(*sender, INTERVAL_MS, 1, positions))
            apply(state, state.next_offset, record)

    moved = group.state()
    move_all(moved)
    image = moved.encode()
    del moved
    ways: dict[str, Callable[[], PartitionState]] = {
        "of the log": group.state,
        "of a log in which each cell changed hands": changed_hands,
        "of a snapshot": lambda: PartitionState.decode(image),
    }
    found = []
    for way, make in ways.items():
        gc.collect()
        tracemalloc.start()
        state = make()
        if way != "of a snapshot":
            move_all(state)
        gc.collect()
        each = tracemalloc.get_traced_memory()[0] / group.cells
        tracemalloc.stop()
        name = f"bytes per cell, {way}, {len(state.cells):,} cells"
        found.append(Figure(name, each, "bytes", None, "≤ 400", each <= 400))
    return found
