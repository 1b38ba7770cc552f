"""Snapshots as a reader of the log meets them: the newest one to start from, and those of others.

(specs/PROTOCOL.md §6.)
"""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from marshal_py.client.kafka_clients import read_to_end
from marshal_py.client.settings import KafkaConfig
from marshal_py.errors import MalformedRecord, SnapshotMismatch
from marshal_py.protocol.rationalizer import PartitionState
from marshal_py.protocol.snapshots import Snapshot, decode_snapshot, encode_snapshot
from marshal_py.protocol.state_image import canonical_bytes, identity_in, image_of

__all__ = ["Boundary", "SnapshotDesk", "newest_snapshots", "next_offset_in"]

logger = logging.getLogger("marshal_py.log")

KEPT_DIGESTS: Final = 8
"""Boundaries per coordination partition whose digest is kept to compare snapshots with."""

MAX_WAITING: Final = 8
"""Boundaries that wait to be looked at; when there are more, the next ones are passed over."""


class Boundary(NamedTuple):
    """A state that may be compared, and written down if `writer` is not empty.

    `image` is what `state_image.image_of` returned, `anchor` as in a snapshot.
    """

    coordinator: int
    next_offset: int
    anchor: bytes
    image: bytes
    writer: str = ""


class _Head(msgspec.Struct, array_like=True):
    """What a snapshot begins with."""

    format: int
    coordinator: int
    partitions: int
    next_offset: int


_head_decoder: Final = msgspec.msgpack.Decoder(_Head)


def next_offset_in(value: bytes) -> int:
    """Return where the snapshot in a record ends. Raises `msgspec.MsgspecError`."""
    return _head_decoder.decode(value).next_offset


class _Known(NamedTuple):
    """What a state is compared by, and whose it is if not this process's."""

    digest: bytes
    identity: str | None
    writer: str = ""


class SnapshotDesk:
    """Compares the snapshots that clients write with what this process made of the log (§6.5).

    Sorting a large state, its digest and its compression take a good part of a second: a thread
    does that, which starts with the first boundary or snapshot, so that nobody waits for it who
    holds a lock. The methods are for one thread, that of the reader; `mismatches`, `newest` and
    `ready` grow at any time.
    """

    def __init__(self, topic: str) -> None:
        self.newest: dict[int, int] = {}
        """Coordination partition → `next_offset` of the newest valid snapshot seen."""
        self.mismatches: list[SnapshotMismatch] = []
        self.ready: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        """(coordination partition, value) of the snapshots that this process is to write."""
        self._topic = topic
        self._partitions = 0
        self._lock = threading.Lock()
        """Guards what is known of the present log against the end of it."""
        self._era = 0
        """Counts the logs: what was begun for one before is dropped."""
        self._own: list[dict[int, _Known]] = []
        self._others: list[dict[int, _Known]] = []
        self._work: queue.SimpleQueue[tuple[int, Boundary | bytes] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def reset(self, partitions: int) -> None:
        """Begin anew, with a log of so many coordination partitions."""
        with self._lock:
            self._era += 1
            self._partitions = partitions
            self.newest.clear()
            self._own = [{} for _ in range(partitions)]
            self._others = [{} for _ in range(partitions)]

    def at_boundary(self, boundary: Boundary) -> None:
        """Have a boundary's digest kept, and its snapshot made if it has a writer."""
        if self._work.qsize() < MAX_WAITING:
            self._do(boundary)

    def read(self, value: bytes | None, state: Callable[[int], PartitionState | None]) -> None:
        """Take in a snapshot that was written; `state` has the present one of its partition.

        Raises `MalformedRecord` if it is none. One of a partition that is not read, or of a log of
        another shape, is passed over.
        """
        try:
            head = _head_decoder.decode(value or b"")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise MalformedRecord(f"no snapshot: {error}") from None
        p, at = head.coordinator, head.next_offset
        present = state(p)
        if present is None or head.partitions != self._partitions:
            return
        if at == present.next_offset and at not in self._own[p]:
            self._do(Boundary(p, at, b"", image_of(present)))
        self._do(value or b"")

    def close(self) -> None:
        """End the thread, after what it is at."""
        self._era += 1
        if self._thread is not None:
            self._work.put(None)

    # The thread

    def _do(self, work: Boundary | bytes) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="marshal-snapshots", daemon=True)
            self._thread.start()
        self._work.put((self._era, work))

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            era, work = item
            if era != self._era:
                continue
            try:
                if isinstance(work, Boundary):
                    self._note(era, work)
                else:
                    self._take(era, decode_snapshot(work))
            except (MalformedRecord, msgspec.MsgspecError) as error:
                logger.error("%s.snapshots: %s", self._topic, error)
            except Exception:  # a snapshot may be lost, but not the thread
                logger.exception("%s.snapshots: a snapshot could not be looked at", self._topic)

    def _note(self, era: int, boundary: Boundary) -> None:
        p, at = boundary.coordinator, boundary.next_offset
        state = canonical_bytes(boundary.image)
        digest = hashlib.blake2b(state, digest_size=16).digest()
        value = b""
        if boundary.writer:
            value = encode_snapshot(
                state,
                coordinator=p,
                partitions=self._partitions,
                next_offset=at,
                anchor=boundary.anchor,
                writer=boundary.writer,
            )
        with self._lock:
            if era != self._era:
                return
            if value:
                self.ready.put((p, value))
            _keep(self._own[p], at, _Known(digest, identity_in(state)))
            self._compare(p, at)

    def _take(self, era: int, snapshot: Snapshot) -> None:
        p, at = snapshot.coordinator, snapshot.next_offset
        other = _Known(snapshot.digest, identity_in(snapshot.state), snapshot.writer)
        with self._lock:
            if era == self._era:
                self.newest[p] = max(at, self.newest.get(p, 0))
                _keep(self._others[p], at, other)
                self._compare(p, at)

    def _compare(self, p: int, at: int) -> None:
        own, other = self._own[p].get(at), self._others[p].get(at)
        if own is None or other is None:
            return
        del self._others[p][at]
        if own.digest == other.digest:
            return
        if own.identity != other.identity:
            logger.warning(
                "%s's snapshot of %s/%d at offset %d is of another log; it is passed over",
                other.writer,
                self._topic,
                p,
                at,
            )
            return
        mismatch = SnapshotMismatch(
            f"{other.writer}'s snapshot of {self._topic}/{p} at offset {at} differs from the "
            "state of this process: one of the two does not follow the protocol, or they read "
            "different logs. Compare their versions; `marshal verify` tells which one is wrong"
        )
        self.mismatches.append(mismatch)
        logger.error("%s", mismatch)


def _keep(digests: dict[int, _Known], at: int, known: _Known) -> None:
    digests[at] = known
    while len(digests) > KEPT_DIGESTS:
        del digests[next(iter(digests))]


def newest_snapshots(
    config: KafkaConfig,
    topic: str,
    ends: dict[int, int],
    deadline: float,
    acceptable: Callable[[Snapshot], PartitionState | None],
) -> dict[int, tuple[Snapshot, PartitionState]]:
    """Return the newest acceptable snapshot of each partition that has one, and its state.

    Looks at the last record of each partition, and at all of them only if that one will not do.
    """
    newest: dict[int, tuple[Snapshot, PartitionState]] = {}
    starts = {p: end - 1 for p, end in ends.items() if end > 0}
    for attempt in (starts, dict.fromkeys(starts, 0)):
        missing = {p: at for p, at in attempt.items() if p not in newest}
        if not missing:
            break
        for message in read_to_end(config, topic, missing, ends, deadline):
            try:
                snapshot = decode_snapshot(message.value())
            except MalformedRecord as error:
                logger.error("%s/%d: %s; it is not used", topic, message.partition(), error)
                continue
            if snapshot.coordinator != message.partition():
                continue
            state = acceptable(snapshot)
            if state is not None:
                newest[snapshot.coordinator] = snapshot, state
    return newest
