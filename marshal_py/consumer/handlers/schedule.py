"""Which message may run next, when handlers run side by side. Pure: no threads, no clock, no I/O.

Messages wait in queues. What is in one queue runs one after the other, in order; queues run side by
side. With ``ordering="key"`` there is a queue for each key of each partition (messages without a
key have no order among each other: a queue each), with ``"partition"`` one for each partition, with
``"none"`` one for each message.

A queue is *ready* (its first message may run), *busy* (something of it runs) or *waiting* (its
first message failed, and comes again at a given time). Ready queues take turns, first among the
partitions, then within each: nobody starves, however much is queued elsewhere. Every step takes
constant time, whatever is queued, but for `due` (logarithmic in what waits for another attempt) and
for `trim` and `drop`, which look at all queues of one partition.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterable
from enum import Enum
from itertools import count
from typing import Any, Literal, TypeAlias

from marshal_py.protocol.slots import source_of

__all__ = ["Item", "Ordering", "PartitionId", "Schedule"]

Ordering: TypeAlias = Literal["key", "partition", "none"]
PartitionId: TypeAlias = tuple[str, int]
"""A partition, or a slot of one: what is claimed."""


class Item:
    """A message that waits or runs. `payload` is the user's matter; `size` in bytes."""

    __slots__ = (
        "alone",
        "attempts",
        "is_filtered",
        "key_queue",
        "offset",
        "part",
        "partition",
        "payload",
        "raw",
        "size",
    )

    def __init__(
        self, partition: PartitionId, offset: int, payload: Any, size: int, part: Any = None
    ) -> None:
        self.partition = partition
        self.offset = offset
        self.payload = payload
        self.size = size
        self.part = part
        self.attempts = 0
        """How often a handler has failed with it."""
        self.alone = False
        """It is handed out in no batch with others: one of them failed."""
        self.is_filtered = False
        """It is not for the handler."""
        self.raw: tuple[Any, Any] | None = None
        """Key and value as they came, once a deserializer may have changed them."""
        self.key_queue: _KeyQueue

    @property
    def source(self) -> PartitionId:
        """The topic and the partition that the message came from; `partition` may name a slot."""
        return source_of(*self.partition)

    def __repr__(self) -> str:
        return (
            f"<Item {self.partition[0]}/{self.partition[1]}@{self.offset} attempts={self.attempts}>"
        )


class _State(Enum):
    READY = "ready"
    BUSY = "busy"
    WAITING = "waiting"


class _KeyQueue:
    __slots__ = ("due", "items", "key", "partition", "state")

    def __init__(self, partition: _PartitionQueue, key: Hashable) -> None:
        self.partition = partition
        self.key = key
        self.items: deque[Item] = deque()
        self.state = _State.READY
        self.due = 0.0


class _PartitionQueue:
    """What waits and runs of one partition."""

    __slots__ = ("bytes", "count", "held", "key_queues", "listed", "ready", "running", "started")

    def __init__(self) -> None:
        self.key_queues: dict[Hashable, _KeyQueue] = {}
        self.ready: deque[_KeyQueue] = deque()
        self.held = False
        self.listed = False
        """Whether it is in the rotation."""
        self.count = 0
        self.bytes = 0
        self.running = 0
        self.started = -1
        """The highest offset that ever ran."""


class Schedule:
    """Messages in order of their queues, of at most `max_count` and about `max_bytes`.

    `has_room` says whether more may be added: the caller adds what it has fetched in one go, so
    the bounds may be passed by that. What runs counts as well.
    """

    def __init__(self, ordering: Ordering, *, max_count: int, max_bytes: int) -> None:
        self.ordering = ordering
        self.max_count = max_count
        self.max_bytes = max_bytes
        self.count = 0
        """How many messages wait or run."""
        self.bytes = 0
        self.running = 0
        self.waiting = 0
        """How many queues wait for another attempt."""
        self._partitions: dict[PartitionId, _PartitionQueue] = {}
        self._rotation: deque[_PartitionQueue] = deque()
        self._due: list[tuple[float, int, _KeyQueue]] = []
        self._tie = count()

    # In

    def add(self, item: Item, key: Hashable) -> bool:
        """Queue a message. Returns whether its queue became ready by that."""
        partition = self._partitions.get(item.partition)
        if partition is None:
            partition = self._partitions[item.partition] = _PartitionQueue()
        if self.ordering == "partition":
            key = ""
        elif key is None or self.ordering == "none":
            key = item.offset  # an int, which is no key that Kafka knows
        key_queue = partition.key_queues.get(key)
        made_ready = key_queue is None
        if key_queue is None:
            key_queue = partition.key_queues[key] = _KeyQueue(partition, key)
            self._make_ready(key_queue)
        item.key_queue = key_queue
        key_queue.items.append(item)
        partition.count += 1
        partition.bytes += item.size
        self.count += 1
        self.bytes += item.size
        return made_ready

    def has_room(self, share: float = 1.0) -> bool:
        """Whether less than `share` of what may be queued is."""
        return self.count < share * self.max_count and self.bytes < share * self.max_bytes

    def filled(self, partition: PartitionId) -> float:
        """Return how much of all that may be queued this partition takes: 1.0 is all."""
        queue = self._partitions.get(partition)
        if queue is None:
            return 0.0
        return max(queue.count / self.max_count, queue.bytes / self.max_bytes)

    # Out

    @property
    def is_ready(self) -> bool:
        """Whether something may run now."""
        return any(queue.ready and not queue.held for queue in self._rotation)

    def next(self, most: int = 1) -> list[Item]:
        """Return what runs next: up to `most` messages of one partition, in order; [] for nothing.

        Their queues are busy until `done`, `retry`, `split`, `put_back` or `abandon`.
        """
        rotation = self._rotation
        while rotation:
            partition = rotation.popleft()
            if partition.held or not partition.ready:
                partition.listed = False
                continue
            taken = self._take(partition, most)
            if partition.ready:
                rotation.append(partition)
            else:
                partition.listed = False
            partition.running += len(taken)
            self.running += len(taken)
            return taken
        return []

    def _take(self, partition: _PartitionQueue, most: int) -> list[Item]:
        taken: list[Item] = []
        while partition.ready and len(taken) < most:
            key_queue = partition.ready[0]
            queue = key_queue.items
            if queue[0].alone and taken:
                break
            partition.ready.popleft()
            key_queue.state = _State.BUSY
            taken.append(queue.popleft())
            if taken[-1].alone:
                break
            while queue and len(taken) < most and not queue[0].alone:
                taken.append(queue.popleft())
        if len(taken) > 1:
            taken.sort(key=lambda item: item.offset)
        partition.started = max(partition.started, taken[-1].offset)
        return taken

    # Back

    def done(self, items: Iterable[Item]) -> int:
        """They are done with. Returns how many queues became ready."""
        return self._leave(items, gone=True)

    def put_back(self, items: list[Item]) -> int:
        """They were not run, and come first in their queues. Returns how many became ready."""
        for item in sorted(items, key=lambda item: -item.offset):
            item.key_queue.items.appendleft(item)
        return self._leave(items, gone=False)

    def split(self, items: list[Item]) -> int:
        """A batch failed: its messages come again, each alone. Returns queues made ready."""
        for item in items:
            item.alone = True
        return self.put_back(items)

    def retry(self, item: Item, due: float) -> None:
        """It failed, and comes again once `due` is reached; its queue waits."""
        item.alone = True
        key_queue = item.key_queue
        key_queue.items.appendleft(item)
        self._stop_running(item)
        key_queue.state = _State.WAITING
        key_queue.due = due
        self.waiting += 1
        heapq.heappush(self._due, (due, next(self._tie), key_queue))

    def due(self, now: float) -> int:
        """Make ready what has waited long enough. Returns how many queues became ready."""
        made = 0
        while self._due and self._due[0][0] <= now:
            due, _, key_queue = heapq.heappop(self._due)
            if key_queue.state is _State.WAITING and key_queue.due == due:
                self.waiting -= 1
                self._make_ready(key_queue)
                made += 1
        return made

    def abandon(self, items: Iterable[Item]) -> tuple[list[Item], int]:
        """They will not be done, nor what follows them in their queues under the same claim.

        Returns all of that, and how many queues became ready: what came under a later claim stays.
        """
        dropped: list[Item] = []
        made = 0
        for item in items:
            self._stop_running(item)
            self._forget(item)
            dropped.append(item)
            key_queue = item.key_queue
            if key_queue.state is not _State.BUSY:
                continue  # another message of the same batch and queue came first
            for behind in [each for each in key_queue.items if each.part is item.part]:
                key_queue.items.remove(behind)
                self._forget(behind)
                dropped.append(behind)
            if key_queue.items:
                self._make_ready(key_queue)
                made += 1
            else:
                self._remove(key_queue)
        return dropped, made

    def _leave(self, items: Iterable[Item], *, gone: bool) -> int:
        made = 0
        for item in items:
            self._stop_running(item)
            if gone:
                self._forget(item)
            key_queue = item.key_queue
            if key_queue.state is not _State.BUSY:
                continue  # another message of the same batch and queue came first
            if key_queue.items:
                self._make_ready(key_queue)
                made += 1
            else:
                self._remove(key_queue)
        return made

    # Partitions

    def hold(self, partition: PartitionId) -> None:
        """Start nothing of this partition until `resume`."""
        queue = self._partitions.get(partition)
        if queue is not None:
            queue.held = True

    def resume(self, partition: PartitionId) -> int:
        """Start what is ready of this partition again. Returns how many queues are."""
        queue = self._partitions.get(partition)
        if queue is None or not queue.held:
            return 0
        queue.held = False
        self._list(queue)
        return len(queue.ready)

    def is_held(self, partition: PartitionId) -> bool:
        """Whether `hold` was called, and `resume` was not."""
        queue = self._partitions.get(partition)
        return queue is not None and queue.held

    def trim(self, partition: PartitionId, until: float) -> list[Item]:
        """Drop what would run last, and return it: what is above the highest offset that ever ran.

        What is below stays: once it is done there are no gaps, and nothing is done twice. Of queues
        that wait for another attempt beyond `until` nothing stays.
        """
        queue = self._partitions.get(partition)
        if queue is None:
            return []
        dropped: list[Item] = []
        for key_queue in list(queue.key_queues.values()):
            if key_queue.state is _State.WAITING and key_queue.due > until:
                dropped += self._empty(key_queue)
                continue
            while key_queue.items and key_queue.items[-1].offset > queue.started:
                item = key_queue.items.pop()
                self._forget(item)
                dropped.append(item)
            if not key_queue.items:
                self._empty(key_queue)
        queue.ready = deque(key_queue for key_queue in queue.ready if key_queue.items)
        return dropped

    def drop(self, partition: PartitionId) -> list[Item]:
        """Drop all of this partition that does not run, and return it."""
        queue = self._partitions.get(partition)
        if queue is None:
            return []
        dropped: list[Item] = []
        for key_queue in list(queue.key_queues.values()):
            dropped += self._empty(key_queue)
        queue.ready.clear()
        queue.held = False
        queue.started = -1
        if not queue.count:
            del self._partitions[partition]
        return dropped

    def started(self, partition: PartitionId) -> int:
        """Return the highest offset of this partition that ever ran; −1: none."""
        queue = self._partitions.get(partition)
        return -1 if queue is None else queue.started

    def open(self, partition: PartitionId) -> int:
        """Return how many messages of this partition wait or run."""
        queue = self._partitions.get(partition)
        return 0 if queue is None else queue.count

    # Parts of the above

    def _make_ready(self, key_queue: _KeyQueue) -> None:
        key_queue.state = _State.READY
        key_queue.partition.ready.append(key_queue)
        self._list(key_queue.partition)

    def _list(self, partition: _PartitionQueue) -> None:
        if not partition.listed and partition.ready and not partition.held:
            partition.listed = True
            self._rotation.append(partition)

    def _empty(self, key_queue: _KeyQueue) -> list[Item]:
        """Drop what waits in a queue. A ready one stays in `ready`: the caller takes it out."""
        dropped = list(key_queue.items)
        key_queue.items.clear()
        for item in dropped:
            self._forget(item)
        if key_queue.state is _State.WAITING:
            self.waiting -= 1
            key_queue.state = _State.READY
        if key_queue.state is _State.READY:
            self._remove(key_queue)
        return dropped

    def _remove(self, key_queue: _KeyQueue) -> None:
        key_queue.state = _State.READY
        key_queue.partition.key_queues.pop(key_queue.key, None)

    def _stop_running(self, item: Item) -> None:
        item.key_queue.partition.running -= 1
        self.running -= 1

    def _forget(self, item: Item) -> None:
        partition = item.key_queue.partition
        partition.count -= 1
        partition.bytes -= item.size
        self.count -= 1
        self.bytes -= item.size
