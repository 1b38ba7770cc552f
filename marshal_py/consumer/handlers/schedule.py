"""Which message may run next, when handlers run side by side. Pure: no threads, no clock, no I/O.

Messages wait in *lanes*. What is in one lane runs one after the other, in order; lanes run side by
side. With ``ordering="key"`` there is a lane for each key of each partition (messages without a
key have no order among each other: a lane each), with ``"partition"`` one for each partition, with
``"none"`` one for each message.

A lane is *ready* (its first message may run), *busy* (something of it runs) or *waiting* (its first
message failed, and comes again at a given time). Ready lanes take turns, first among the
partitions, then within each: nobody starves, however much is queued elsewhere. Every step takes
constant time, whatever is queued, but for `due` (logarithmic in what waits for another attempt) and
for `trim` and `drop`, which look at all lanes of one partition.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterable
from enum import Enum
from itertools import count
from typing import Any, Literal, TypeAlias

__all__ = ["Home", "Item", "Ordering", "Schedule"]

Ordering: TypeAlias = Literal["key", "partition", "none"]
Home: TypeAlias = tuple[str, int]
"""A partition: topic and number."""


class Item:
    """A message that waits or runs. `payload` is the user's matter; `size` in bytes."""

    __slots__ = ("_lane", "alone", "attempts", "home", "offset", "part", "payload", "raw", "size")

    def __init__(self, home: Home, offset: int, payload: Any, size: int, part: Any = None) -> None:
        self.home = home
        self.offset = offset
        self.payload = payload
        self.size = size
        self.part = part
        self.attempts = 0
        """How often a handler has failed with it."""
        self.alone = False
        """It is handed out in no batch with others: one of them failed."""
        self.raw: tuple[Any, Any] | None = None
        """Key and value as they came, once a deserializer may have changed them."""
        self._lane: _Lane

    def __repr__(self) -> str:
        return f"<Item {self.home[0]}/{self.home[1]}@{self.offset} attempts={self.attempts}>"


class _State(Enum):
    READY = "ready"
    BUSY = "busy"
    WAITING = "waiting"


class _Lane:
    __slots__ = ("due", "home", "key", "queue", "state")

    def __init__(self, home: _Queue, key: Hashable) -> None:
        self.home = home
        self.key = key
        self.queue: deque[Item] = deque()
        self.state = _State.READY
        self.due = 0.0


class _Queue:
    """What waits and runs of one partition."""

    __slots__ = ("bytes", "count", "held", "lanes", "listed", "ready", "running", "started")

    def __init__(self) -> None:
        self.lanes: dict[Hashable, _Lane] = {}
        self.ready: deque[_Lane] = deque()
        self.held = False
        self.listed = False
        """Whether it is in the rotation."""
        self.count = 0
        self.bytes = 0
        self.running = 0
        self.started = -1
        """The highest offset that ever ran."""


class Schedule:
    """Messages in order of their lanes, of at most `max_count` and about `max_bytes`.

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
        """How many lanes wait for another attempt."""
        self._homes: dict[Home, _Queue] = {}
        self._rotation: deque[_Queue] = deque()
        self._due: list[tuple[float, int, _Lane]] = []
        self._tie = count()

    # In

    def add(self, item: Item, key: Hashable) -> bool:
        """Queue a message. Returns whether its lane became ready by that."""
        home = self._homes.get(item.home)
        if home is None:
            home = self._homes[item.home] = _Queue()
        if self.ordering == "partition":
            key = ""
        elif key is None or self.ordering == "none":
            key = item.offset  # an int, which is no key that Kafka knows
        lane = home.lanes.get(key)
        made_ready = lane is None
        if lane is None:
            lane = home.lanes[key] = _Lane(home, key)
            self._make_ready(lane)
        item._lane = lane
        lane.queue.append(item)
        home.count += 1
        home.bytes += item.size
        self.count += 1
        self.bytes += item.size
        return made_ready

    def has_room(self, share: float = 1.0) -> bool:
        """Whether less than `share` of what may be queued is."""
        return self.count < share * self.max_count and self.bytes < share * self.max_bytes

    def filled(self, home: Home) -> float:
        """Return how much of all that may be queued this partition takes: 1.0 is all."""
        queue = self._homes.get(home)
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

        Their lanes are busy until `done`, `retry`, `split`, `put_back` or `abandon`.
        """
        rotation = self._rotation
        while rotation:
            home = rotation.popleft()
            if home.held or not home.ready:
                home.listed = False
                continue
            taken = self._take(home, most)
            if home.ready:
                rotation.append(home)
            else:
                home.listed = False
            home.running += len(taken)
            self.running += len(taken)
            return taken
        return []

    def _take(self, home: _Queue, most: int) -> list[Item]:
        taken: list[Item] = []
        while home.ready and len(taken) < most:
            lane = home.ready[0]
            queue = lane.queue
            if queue[0].alone and taken:
                break
            home.ready.popleft()
            lane.state = _State.BUSY
            taken.append(queue.popleft())
            if taken[-1].alone:
                break
            while queue and len(taken) < most and not queue[0].alone:
                taken.append(queue.popleft())
        if len(taken) > 1:
            taken.sort(key=lambda item: item.offset)
        home.started = max(home.started, taken[-1].offset)
        return taken

    # Back

    def done(self, items: Iterable[Item]) -> int:
        """They are done with. Returns how many lanes became ready."""
        return self._leave(items, gone=True)

    def put_back(self, items: list[Item]) -> int:
        """They were not run after all, and come first in their lanes. Returns lanes made ready."""
        for item in sorted(items, key=lambda item: -item.offset):
            item._lane.queue.appendleft(item)
        return self._leave(items, gone=False)

    def split(self, items: list[Item]) -> int:
        """A batch failed: its messages come again, each alone. Returns lanes made ready."""
        for item in items:
            item.alone = True
        return self.put_back(items)

    def retry(self, item: Item, due: float) -> None:
        """It failed, and comes again once `due` is reached; its lane waits."""
        item.alone = True
        lane = item._lane
        lane.queue.appendleft(item)
        self._stop_running(item)
        lane.state = _State.WAITING
        lane.due = due
        self.waiting += 1
        heapq.heappush(self._due, (due, next(self._tie), lane))

    def due(self, now: float) -> int:
        """Make ready what has waited long enough. Returns how many lanes became ready."""
        made = 0
        while self._due and self._due[0][0] <= now:
            due, _, lane = heapq.heappop(self._due)
            if lane.state is _State.WAITING and lane.due == due:
                self.waiting -= 1
                self._make_ready(lane)
                made += 1
        return made

    def abandon(self, items: Iterable[Item]) -> list[Item]:
        """They will not be done, nor what follows them in their lanes. Returns all of that."""
        dropped = []
        for item in items:
            self._stop_running(item)
            self._forget(item)
            dropped.append(item)
            lane = item._lane
            if lane.state is _State.BUSY:
                dropped += self._empty(lane)
                self._remove(lane)
        return dropped

    def _leave(self, items: Iterable[Item], *, gone: bool) -> int:
        made = 0
        for item in items:
            self._stop_running(item)
            if gone:
                self._forget(item)
            lane = item._lane
            if lane.state is not _State.BUSY:
                continue  # another message of the same batch and lane came first
            if lane.queue:
                self._make_ready(lane)
                made += 1
            else:
                self._remove(lane)
        return made

    # Partitions

    def hold(self, home: Home) -> None:
        """Start nothing of this partition until `resume`."""
        queue = self._homes.get(home)
        if queue is not None:
            queue.held = True

    def resume(self, home: Home) -> int:
        """Start what is ready of this partition again. Returns how many lanes are."""
        queue = self._homes.get(home)
        if queue is None or not queue.held:
            return 0
        queue.held = False
        self._list(queue)
        return len(queue.ready)

    def is_held(self, home: Home) -> bool:
        """Whether `hold` was called, and `resume` was not."""
        queue = self._homes.get(home)
        return queue is not None and queue.held

    def trim(self, home: Home, until: float) -> list[Item]:
        """Drop what would run last, and return it: what is above the highest offset that ever ran.

        What is below stays: once it is done there are no gaps, and nothing is done twice. Of lanes
        that wait for another attempt beyond `until` nothing stays.
        """
        queue = self._homes.get(home)
        if queue is None:
            return []
        dropped: list[Item] = []
        for lane in list(queue.lanes.values()):
            if lane.state is _State.WAITING and lane.due > until:
                dropped += self._empty(lane)
                continue
            while lane.queue and lane.queue[-1].offset > queue.started:
                item = lane.queue.pop()
                self._forget(item)
                dropped.append(item)
            if not lane.queue and lane.state is _State.READY:
                self._remove(lane)
        queue.ready = deque(lane for lane in queue.ready if lane.queue)
        return dropped

    def drop(self, home: Home) -> list[Item]:
        """Drop all of this partition that does not run, and return it."""
        queue = self._homes.get(home)
        if queue is None:
            return []
        dropped: list[Item] = []
        for lane in list(queue.lanes.values()):
            dropped += self._empty(lane)
        queue.ready.clear()
        queue.held = False
        queue.started = -1
        if not queue.count:
            del self._homes[home]
        return dropped

    def open(self, home: Home) -> int:
        """Return how many messages of this partition wait or run."""
        queue = self._homes.get(home)
        return 0 if queue is None else queue.count

    # Parts of the above

    def _make_ready(self, lane: _Lane) -> None:
        lane.state = _State.READY
        lane.home.ready.append(lane)
        self._list(lane.home)

    def _list(self, home: _Queue) -> None:
        if not home.listed and home.ready and not home.held:
            home.listed = True
            self._rotation.append(home)

    def _empty(self, lane: _Lane) -> list[Item]:
        """Drop what waits in a lane. A ready lane stays in `ready`, for the caller to take out."""
        dropped = list(lane.queue)
        lane.queue.clear()
        for item in dropped:
            self._forget(item)
        if lane.state is _State.WAITING:
            self.waiting -= 1
            lane.state = _State.READY
        if lane.state is _State.READY:
            self._remove(lane)
        return dropped

    def _remove(self, lane: _Lane) -> None:
        lane.state = _State.READY
        lane.home.lanes.pop(lane.key, None)

    def _stop_running(self, item: Item) -> None:
        item._lane.home.running -= 1
        self.running -= 1

    def _forget(self, item: Item) -> None:
        home = item._lane.home
        home.count -= 1
        home.bytes -= item.size
        self.count -= 1
        self.bytes -= item.size
