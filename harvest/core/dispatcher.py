"""What may be sent to which destination, and when. Pure: no thread, clock, random or I/O.

Theory of operation (specs/RELAYER.md §3)
-----------------------------------------
A *group* is what keeps its order: the rows of one topic and key. Of each group at most one message
is under way, the first; the others wait behind it. So a group that fails waits, and the others
go on.

A *destination* takes at most `concurrency` messages at once, and `rate_per_s`. One that fails so
many times in a row is left alone for a while: the circuit breaker is open. After that, one message
at a time probes it, until one gets through. One that is *gone* is sent nothing more.

A message that fails is tried again after pauses that grow, with jitter so that groups which failed
together do not come back together. After `attempts` failures it is given up, if it was the message
that failed and not the destination: failures of a probe do not count, and since the message was
first sent, the destination has confirmed another. So an outage is waited for, however long it is
and whatever is answered meanwhile. `Retry-After` holds for the destination as a whole.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from harvest.core.dead_letters import Key
from harvest.core.row import Row

__all__ = [
    "STANDARD_WEBHOOKS_MS",
    "Delivered",
    "Destination",
    "Dispatcher",
    "Failed",
    "GivenUp",
    "Message",
    "Outcome",
    "Policy",
    "Shed",
    "Verdict",
]

_MAX_DOUBLINGS: Final = 32
_JITTER: Final = 0.2
_CATCH_UP_MS: Final = 10.0
"""Who is called later than that does not catch up on a rate."""
STANDARD_WEBHOOKS_MS: Final = tuple(
    [s * 1000 for s in (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)]
)
"""The pauses that Standard Webhooks gives: 10 attempts within three days."""


class Message(NamedTuple):
    """A row on its way to a destination.

    `not_before_ms`: it is not sent earlier. `problem`: why it cannot be sent at all.
    """

    row: Row
    destination: str
    not_before_ms: float = 0.0
    problem: str | None = None

    @property
    def key(self) -> Key:
        """The group that keeps its order."""
        return self.row.topic, self.row.key


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one attempt.

    - `status`: what the destination answered, None if it did not.
    - `error`: why it is no success; None: it was one.
    - `unavailable`: the destination did not answer, or said that it is overloaded: nothing is
      known about this message.
    - `lasting`: another attempt would fail just so.
    - `retry_after_ms`: how long the destination wants to be left alone.
    - `gone`: it wants no more messages, ever.
    """

    status: int | None = None
    error: str | None = None
    unavailable: bool = False
    lasting: bool = False
    retry_after_ms: float = 0.0
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """How a destination is treated.

    - `concurrency`: messages under way at once, of different groups.
    - `priority`: higher ones are served first when there are more messages than `total`.
    - `rate_per_s`: so many messages a second, evenly; None: as many as it takes.
    - `attempts`: so many failures, and a message is given up.
    - `pauses_ms` after the first failure, the second, …; the last one again and again. Up to a
      fifth more is waited.
    - `breaker_failures` in a row, of several messages or for being unavailable, open the breaker,
      for `breaker_open_ms`, doubled up to `max_breaker_open_ms` while probes fail.
    - `max_retry_after_ms`: a longer Retry-After is cut.
    """

    concurrency: int = 32
    priority: int = 0
    rate_per_s: float | None = None
    attempts: int = 10
    pauses_ms: tuple[int, ...] = STANDARD_WEBHOOKS_MS
    breaker_failures: int = 5
    breaker_open_ms: int = 1_000
    max_breaker_open_ms: int = 60_000
    max_retry_after_ms: int = 3_600_000


@dataclass(frozen=True, slots=True)
class Delivered:
    """The message is where it should be. `retries`: failures before."""

    message: Message
    retries: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The message will be tried again, at `due_ms`. `retries`: failures that count."""

    message: Message
    retries: int
    outcome: Outcome
    due_ms: float


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The message will not be tried again, and is no longer known here."""

    message: Message
    retries: int
    outcome: Outcome


Verdict = Delivered | Failed | GivenUp


class Shed(NamedTuple):
    """What was forgotten: by the destination that takes nothing, and behind messages that wait."""

    by_destination: dict[str, list[Message]]
    behind: list[Message]


@dataclass(slots=True)
class Destination:
    """What is known of a destination."""

    policy: Policy
    under_way: int = 0
    failures: int = 0
    """How often in a row it failed."""
    failed_id: int | None = None
    """The first message of these, and whether there were others."""
    failed_others: bool = False
    confirmed: int = 0
    """How many messages it has confirmed."""
    gone: bool = False
    trips: int = 0
    """How often in a row the breaker opened; 0: it is closed."""
    closed_until_ms: float = 0.0
    """Nothing is sent before: the breaker is open, or it asked for it."""
    next_ms: float = float("-inf")
    """Nothing is sent before, for the rate's sake."""
    ready: deque[tuple[Key, int]] = field(default_factory=deque)
    """Groups whose first message may go, and its id."""

    def room(self, now_ms: float) -> int:
        """How many messages may be sent now."""
        if self.gone or now_ms < max(self.closed_until_ms, self.next_ms):
            return 0
        room = (1 if self.trips else self.policy.concurrency) - self.under_way
        if self.policy.rate_per_s is None:
            return room
        return min(room, int(self._late_ms(now_ms) * self.policy.rate_per_s / 1000) + 1)

    def started(self, now_ms: float) -> None:
        """A message is sent."""
        self.under_way += 1
        if self.policy.rate_per_s is not None:
            self.next_ms = now_ms - self._late_ms(now_ms) + 1000 / self.policy.rate_per_s

    def _late_ms(self, now_ms: float) -> float:
        late_ms = now_ms - self.next_ms
        return late_ms if late_ms <= _CATCH_UP_MS else 0.0

    def due_ms(self) -> float | None:
        """Before when nothing is sent; None: this is not known."""
        return None if self.gone else max(self.closed_until_ms, self.next_ms)

    @property
    def takes_none(self) -> bool:
        """Whether it is gone, or known to have failed last."""
        return self.gone or self.trips > 0

    def learn(self, row_id: int, outcome: Outcome, now_ms: float) -> None:
        """Open or close the breaker."""
        policy = self.policy
        if outcome.gone:
            self.gone = True
            return
        if outcome.retry_after_ms:
            pause_ms = min(outcome.retry_after_ms, policy.max_retry_after_ms)
            self.closed_until_ms = max(self.closed_until_ms, now_ms + pause_ms)
        if outcome.error is None or outcome.lasting:
            self.confirmed += outcome.error is None
            self.failures = self.trips = 0
            self.failed_id, self.failed_others = None, False
            return
        self.failures += 1
        self.failed_others |= self.failed_id not in (None, row_id)
        self.failed_id = row_id if self.failed_id is None else self.failed_id
        if self.failures < policy.breaker_failures or now_ms < self.closed_until_ms:
            return
        if not (outcome.unavailable or self.failed_others):
            return  # it may be this message
        doubled = policy.breaker_open_ms << min(self.trips, _MAX_DOUBLINGS)
        self.trips += 1
        open_ms = min(doubled, policy.max_breaker_open_ms)
        self.closed_until_ms = max(self.closed_until_ms, now_ms + open_ms)


@dataclass(slots=True)
class Dispatcher:
    """Decides what is sent next. `random` gives numbers from 0 to 1, for the jitter.

    `give_up` False: nothing is ever given up. `total`: messages under way to all destinations.
    """

    policies: Mapping[str, Policy]
    random: Callable[[], float]
    give_up: bool = True
    total: int = 1_000
    destinations: dict[str, Destination] = field(init=False)
    _groups: dict[Key, deque[Message]] = field(default_factory=dict)
    _retries: dict[int, int] = field(default_factory=dict)
    _confirmed_before: dict[int, int] = field(default_factory=dict)
    """How many messages its destination had confirmed when a message was first sent."""
    _under_way: dict[int, Message] = field(default_factory=dict)
    _waiting: list[tuple[float, int, Key]] = field(default_factory=list)
    """When the first message of a group may go, its id, and the group; a heap."""

    def __post_init__(self) -> None:
        ordered = sorted(self.policies.items(), key=lambda item: -item[1].priority)
        self.destinations = {name: Destination(policy) for name, policy in ordered}

    def __len__(self) -> int:
        """Messages that are not decided."""
        return sum([len(group) for group in self._groups.values()])

    @property
    def under_way(self) -> int:
        """Messages that were sent and not heard of."""
        return len(self._under_way)

    def remember(self, retries: Mapping[int, int]) -> None:
        """Failures that an earlier leader counted, by row id."""
        self._retries = {**retries, **self._retries}

    def offer(self, messages: Iterable[Message], now_ms: float) -> None:
        """Take messages on, in the order of their ids."""
        for message in messages:
            group = self._groups.get(message.key)
            if group is not None:
                group.append(message)
                continue
            self._groups[message.key] = deque([message])
            self._queue(message, now_ms)

    def start(self, now_ms: float) -> list[Message]:
        """What is to be sent now."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= now_ms:
            _, row_id, key = heapq.heappop(waiting)
            group = self._groups.get(key)
            if group is not None and group[0].row.id == row_id:  # else it was withdrawn
                self.destinations[group[0].destination].ready.append((key, row_id))
        started = []
        for destination in self.destinations.values():
            ready = destination.ready
            if not ready:
                continue
            room = min(destination.room(now_ms), self.total - len(self._under_way))
            while room > 0 and ready:
                key, row_id = ready.popleft()
                group = self._groups.get(key)
                if group is None or group[0].row.id != row_id or row_id in self._under_way:
                    continue  # it was withdrawn
                message = self._under_way[row_id] = group[0]
                self._confirmed_before.setdefault(row_id, destination.confirmed)
                destination.started(now_ms)
                room -= 1
                started.append(message)
        return started

    def due_ms(self, now_ms: float) -> float | None:
        """When `start` may have something to say though nothing has happened; None: never."""
        due = [self._waiting[0][0]] if self._waiting else []
        closed = [d.due_ms() for d in self.destinations.values() if d.ready]
        due += [until_ms for until_ms in closed if until_ms is not None and until_ms > now_ms]
        return min(due, default=None)

    def finished(self, row_id: int, outcome: Outcome, now_ms: float) -> Verdict:
        """What follows from the outcome of a message that was started."""
        message = self._under_way.pop(row_id)
        destination = self.destinations[message.destination]
        destination.under_way -= 1
        its_own = outcome.lasting or (outcome.status is None and not outcome.unavailable)
        counts = its_own or not (destination.takes_none or outcome.gone)
        if outcome.error is None or outcome.status is not None or outcome.unavailable:
            destination.learn(row_id, outcome, now_ms)  # else it was not even asked
        if outcome.error is None:
            self._next(message, now_ms)
            self._confirmed_before.pop(row_id, None)
            return Delivered(message, self._retries.pop(row_id, 0))
        retries = self._retries.get(row_id, 0) + counts
        policy = destination.policy
        its_own |= destination.confirmed > self._confirmed_before[row_id]
        if self.give_up and (
            outcome.lasting or (counts and its_own and retries >= policy.attempts)
        ):
            self._retries.pop(row_id, None)
            self._confirmed_before.pop(row_id)
            self._next(message, now_ms)
            return GivenUp(message, retries, outcome)
        self._retries[row_id] = retries
        pauses_ms = policy.pauses_ms
        pause_ms = pauses_ms[min(max(retries - 1, 0), len(pauses_ms) - 1)]
        due_ms = now_ms + pause_ms * (1 + _JITTER * self.random())
        heapq.heappush(self._waiting, (due_ms, row_id, message.key))
        return Failed(message, retries, outcome, due_ms)

    def withdraw(self, key: Key) -> list[Message]:
        """Forget a group of which nothing is under way; return its messages."""
        return list(self._groups.pop(key, ()))

    def shed(self, now_ms: float) -> Shed:
        """Forget what cannot be sent now: what waits for destinations that take nothing, but for
        one message of each and what is under way, and what waits behind messages that wait."""
        forgotten: dict[str, list[Message]] = {
            name: []
            for name, destination in self.destinations.items()
            if destination.takes_none or now_ms < destination.closed_until_ms
        }
        paused = {key: row_id for due_ms, row_id, key in self._waiting if due_ms > now_ms}
        behind: list[Message] = []
        probed: set[str] = set()
        for key, group in list(self._groups.items()) if forgotten or paused else ():
            first = group[0]
            name = first.destination
            stays = name not in forgotten or first.row.id in self._under_way or name not in probed
            if name not in forgotten and paused.get(key) != first.row.id:
                continue
            probed.add(name)
            if stays:
                followers = list(group)[1:]
                self._groups[key] = deque([first])
            else:
                followers = list(self._groups.pop(key))
            forgotten.get(name, behind).extend(followers)
        return Shed({name: messages for name, messages in forgotten.items() if messages}, behind)

    def _next(self, message: Message, now_ms: float) -> None:
        """The first message of a group is done with."""
        group = self._groups[message.key]
        group.popleft()
        if group:
            self._queue(group[0], now_ms)
        else:
            del self._groups[message.key]

    def _queue(self, first: Message, now_ms: float) -> None:
        if first.not_before_ms > now_ms:
            heapq.heappush(self._waiting, (first.not_before_ms, first.row.id, first.key))
        else:
            self.destinations[first.destination].ready.append((first.key, first.row.id))
