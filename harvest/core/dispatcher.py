"""What may be sent to which destination, and when. Pure: no thread, clock, random or I/O.

Theory of operation (specs/RELAYER.md §3)
-----------------------------------------
A *group* is what keeps its order: the rows of one topic and key. Of each group at most one request
is under way, with the first message; the others wait behind it. So a group that fails waits, and
the others go on. Where a row goes to several destinations, it is a message to each, on a *lane* of
its own: a group is then the rows of one topic, key and destination.

A destination with `batch_records` takes several messages in one request: those of other groups, and
of a group those that follow. What has failed before is sent alone, so that one bad message does not
take others along; and so is the probe of a destination.

A *destination* takes at most `concurrency` requests at once, and `rate_per_s`. One that fails so
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
import operator
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

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
    "Untried",
    "Verdict",
]

Group: TypeAlias = tuple[str, bytes | None, str]
Token: TypeAlias = tuple[int, str]
"""A message: the row's id, and the lane."""

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

    - `not_before_ms`: it is not sent earlier.
    - `problem`: why it cannot be sent at all. Then `destination` is any, and is not asked.
    - `lane`: the destination, where the row goes to several; empty otherwise.
    - `joined`: it goes in one request with the message that was started before it.
    """

    row: Row
    destination: str
    not_before_ms: float = 0.0
    problem: str | None = None
    lane: str = ""
    joined: bool = False

    @property
    def key(self) -> Key:
        """What a dead letter holds back."""
        return self.row.topic, self.row.key

    @property
    def token(self) -> Token:
        """Which message it is."""
        return self.row.id, self.lane

    @property
    def group(self) -> Group:
        """What keeps its order."""
        return self.row.topic, self.row.key, self.lane


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
    - `untried`: it was not sent, since one of its group before it, of the same request, failed.
    - `shared`: the failure is that of a request which another message has told of.
    """

    status: int | None = None
    error: str | None = None
    unavailable: bool = False
    lasting: bool = False
    retry_after_ms: float = 0.0
    gone: bool = False
    untried: bool = False
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """How a destination is treated.

    - `concurrency`: requests under way at once, of different groups.
    - `batch_records`, `batch_bytes`: what goes into one request at most, in messages and in bytes
      of their values.
    - `priority`: higher ones are served first when there are more requests than `total`.
    - `rate_per_s`: so many requests a second, evenly; None: as many as it takes.
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
    batch_records: int = 1
    batch_bytes: int = 1 << 20


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


@dataclass(frozen=True, slots=True)
class Untried:
    """The message waits for those of its group before it."""

    message: Message


Verdict = Delivered | Failed | GivenUp | Untried


class Shed(NamedTuple):
    """What was forgotten: by the destination that takes nothing, and behind messages that wait."""

    by_destination: dict[str, list[Message]]
    behind: list[Message]


@dataclass(slots=True)
class Destination:
    """What is known of a destination."""

    policy: Policy
    under_way: int = 0
    """Requests."""
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
    ready: deque[tuple[Group, int]] = field(default_factory=deque)
    """Groups whose first message may go, and its id."""

    def room(self, now_ms: float) -> int:
        """How many requests may be sent now."""
        if self.gone or now_ms < max(self.closed_until_ms, self.next_ms):
            return 0
        room = (1 if self.trips else self.policy.concurrency) - self.under_way
        if self.policy.rate_per_s is None:
            return room
        return min(room, int(self._late_ms(now_ms) * self.policy.rate_per_s / 1000) + 1)

    def started(self, now_ms: float) -> None:
        """A request is sent."""
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

    `give_up` False: nothing is ever given up. `total`: requests under way to all destinations.
    """

    policies: Mapping[str, Policy]
    random: Callable[[], float]
    give_up: bool = True
    total: int = 1_000
    destinations: dict[str, Destination] = field(init=False)
    _groups: dict[Group, deque[Message]] = field(default_factory=dict)
    _retries: dict[Token, int] = field(default_factory=dict)
    _due_ms: dict[Token, float] = field(default_factory=dict)
    """When a message that failed, or was postponed, may go again: it may be offered anew before."""
    _confirmed_before: dict[Token, int] = field(default_factory=dict)
    """How many messages its destination had confirmed when a message was first sent."""
    _under_way: dict[Token, Message] = field(default_factory=dict)
    _requests: int = 0
    """Under way."""
    _hopeless: deque[tuple[Group, int]] = field(default_factory=deque)
    """Groups whose first message can be sent nowhere, and its id: that needs no destination."""
    _waiting: list[tuple[float, int, Group]] = field(default_factory=list)
    """When the first message of a group may go, its id, and the group; a heap."""
    _started_ms: float = float("-inf")
    """When `start` was last asked."""

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
        """Failures that an earlier leader counted, by row id, of rows with one destination."""
        self._retries = {**{(id, ""): n for id, n in retries.items()}, **self._retries}

    def offer(self, messages: Iterable[Message], now_ms: float) -> None:
        """Take messages on, in the order of their ids."""
        for message in messages:
            group = self._groups.get(message.group)
            if group is not None:
                group.append(message)
                continue
            self._groups[message.group] = deque([message])
            self._queue(message, now_ms)

    def start(self, now_ms: float) -> list[Message]:
        """What is to be sent now."""
        self._started_ms = now_ms
        waiting = self._waiting
        while waiting and waiting[0][0] <= now_ms:
            _, row_id, key = heapq.heappop(waiting)
            group = self._groups.get(key)
            if group is not None and group[0].row.id == row_id:  # else it was withdrawn
                self._ready_for(group[0]).append((key, row_id))
        started = self._start_hopeless(now_ms)
        for destination in self.destinations.values():
            if destination.ready:
                started += self._start(destination, now_ms)
        return started

    def _ready_for(self, first: Message) -> deque[tuple[Group, int]]:
        if first.problem is not None:
            return self._hopeless
        return self.destinations[first.destination].ready

    def _start_hopeless(self, now_ms: float) -> list[Message]:
        started: list[Message] = []
        hopeless, self._hopeless = self._hopeless, deque()
        for key, row_id in hopeless:
            group, token = self._groups.get(key), (row_id, key[2])
            if group is None or group[0].row.id != row_id or token in self._under_way:
                continue  # it was withdrawn
            if self._due_ms.get(token, now_ms) > now_ms:
                continue  # it was here twice, and has failed meanwhile
            self._under_way[token] = group[0]
            confirmed = self.destinations[group[0].destination].confirmed
            self._confirmed_before.setdefault(token, confirmed)
            started.append(group[0])
        return started

    def _start(self, destination: Destination, now_ms: float) -> list[Message]:
        started: list[Message] = []
        ready = destination.ready
        room = min(destination.room(now_ms), self.total - self._requests)
        records, size = 0, 0  # of the last request, in which others may go along
        most = 1 if destination.trips else destination.policy.batch_records
        while ready and (room > 0 or 0 < records < most):
            key, row_id = ready[0]
            group = self._groups.get(key)
            if group is None or group[0].row.id != row_id or (row_id, key[2]) in self._under_way:
                ready.popleft()  # it was withdrawn
                continue
            if self._due_ms.get((row_id, key[2]), now_ms) > now_ms:
                ready.popleft()  # it was here twice, and has failed meanwhile
                continue
            for message in group:
                alone = most > 1 and (row_id, key[2]) in self._retries
                value = len(message.row.value or b"")
                joins = 0 < records < most and not alone
                joins &= size + value <= destination.policy.batch_bytes
                if message is group[0]:
                    if not joins and room <= 0:
                        return started
                    ready.popleft()
                elif not joins or not self._follows(message, group[0], now_ms):
                    break
                if joins:
                    records, size = records + 1, size + value
                    message = message._replace(joined=True)
                else:
                    records, size = most if alone else 1, value
                    destination.started(now_ms)
                    self._requests += 1
                    room -= 1
                self._under_way[message.token] = message
                self._confirmed_before.setdefault(message.token, destination.confirmed)
                started.append(message)
        return started

    def _follows(self, message: Message, first: Message, now_ms: float) -> bool:
        """Whether a message may go in the request of the first one of its group."""
        return (
            message.not_before_ms <= now_ms
            and message.token not in self._retries
            and message.token not in self._due_ms
            and message.destination == first.destination
            and message.problem is None
        )

    def due_ms(self) -> float | None:
        """When `start` may have something to say though nothing has happened; None: never.

        That may be past already: since `start` was asked, time went on.
        """
        due = [self._waiting[0][0]] if self._waiting else []
        closed = [d.due_ms() for d in self.destinations.values() if d.ready]
        asked_ms = self._started_ms
        due += [until_ms for until_ms in closed if until_ms is not None and until_ms > asked_ms]
        return min(due, default=None)

    def finished(self, row_id: int, outcome: Outcome, now_ms: float, lane: str = "") -> Verdict:
        """What follows from the outcome of a message that was started.

        The messages of one group that went in one request are told of in their order if they were
        confirmed, and those that are `untried` before the one that failed.
        """
        token = row_id, lane
        message = self._under_way.pop(token)
        destination = self.destinations[message.destination]
        if not message.joined and message.problem is None:
            destination.under_way -= 1
            self._requests -= 1
        if outcome.untried:
            return Untried(message)
        its_own = outcome.lasting or (outcome.status is None and not outcome.unavailable)
        counts = its_own or not (destination.takes_none or outcome.gone)
        asked = outcome.error is None or outcome.status is not None or outcome.unavailable
        if asked and not outcome.shared:
            destination.learn(row_id, outcome, now_ms)
        if outcome.error is None:
            self._next(message, now_ms)
            self._confirmed_before.pop(token, None)
            self._due_ms.pop(token, None)
            return Delivered(message, self._retries.pop(token, 0))
        retries = self._retries.get(token, 0) + counts
        policy = destination.policy
        its_own |= destination.confirmed > self._confirmed_before[token]
        if self.give_up and (
            outcome.lasting or (counts and its_own and retries >= policy.attempts)
        ):
            self._retries.pop(token, None)
            self._confirmed_before.pop(token)
            self._due_ms.pop(token, None)
            self._next(message, now_ms)
            return GivenUp(message, retries, outcome)
        self._retries[token] = retries
        pauses_ms = policy.pauses_ms
        pause_ms = pauses_ms[min(max(retries - 1, 0), len(pauses_ms) - 1)]
        due_ms = now_ms + pause_ms * (1 + _JITTER * self.random())
        self._due_ms[token] = due_ms
        heapq.heappush(self._waiting, (due_ms, row_id, message.group))
        return Failed(message, retries, outcome, due_ms)

    def postpone(self, message: Message, due_ms: float) -> None:
        """If a message that is not known here is offered, it is not sent before."""
        self._due_ms[message.token] = due_ms

    def withdraw(self, group: Group) -> list[Message]:
        """Forget a group of which nothing is under way; return its messages."""
        return list(self._groups.pop(group, ()))

    def shed(self, now_ms: float) -> Shed:
        """Forget what cannot be sent now: what waits for destinations that take nothing, but for
        one message of each and what is under way, and what waits behind messages that wait.

        That one is due soon, if there is such a one, and has failed least. Nor is a message
        forgotten that was sent with a later one of which nothing is known yet.
        """
        forgotten: dict[str, list[Message]] = {
            name: []
            for name, destination in self.destinations.items()
            if destination.takes_none or now_ms < destination.closed_until_ms
        }
        paused = {(key, row_id): due_ms for due_ms, row_id, key in self._waiting if due_ms > now_ms}
        probes: dict[str, tuple[tuple[float, int, float], Group]] = {}
        for key, group in self._groups.items() if forgotten else ():
            first = group[0]
            name = first.destination
            if name in forgotten and first.problem is None:
                due_ms = paused.get((key, first.row.id), now_ms)
                rank = self._rank(first, due_ms, now_ms), key
                probes[name] = min(probes.get(name, rank), rank, key=operator.itemgetter(0))
        behind: list[Message] = []
        for key, group in list(self._groups.items()) if forgotten or paused else ():
            first = group[0]
            asked = first.destination if first.problem is None else None
            left = None if asked is None else forgotten.get(asked)
            if left is None and (key, first.row.id) not in paused:
                continue
            name = first.destination
            if left is None or first.token in self._under_way or probes[name][1] == key:
                sent = max(n for n, m in enumerate(group) if not n or m.token in self._under_way)
                messages = list(group)
                kept, followers = messages[: sent + 1], messages[sent + 1 :]
                self._groups[key] = deque(kept)
            else:
                followers = list(self._groups.pop(key))
            (behind if left is None else left).extend(followers)
        return Shed({name: messages for name, messages in forgotten.items() if messages}, behind)

    def _rank(self, first: Message, due_ms: float, now_ms: float) -> tuple[float, int, float]:
        """The lowest one is to probe its destination: soon, and what failed least before."""
        destination = self.destinations[first.destination]
        soon_ms = max(now_ms, destination.closed_until_ms) + destination.policy.max_breaker_open_ms
        return max(due_ms, soon_ms), self._retries.get(first.token, -1), due_ms

    def _next(self, message: Message, now_ms: float) -> None:
        """The first message of a group is done with."""
        group = self._groups[message.group]
        group.popleft()
        if group:
            self._queue(group[0], now_ms)
        else:
            del self._groups[message.group]

    def _queue(self, first: Message, now_ms: float) -> None:
        due_ms = max(first.not_before_ms, self._due_ms.get(first.token, now_ms))
        if due_ms > now_ms:
            heapq.heappush(self._waiting, (due_ms, first.row.id, first.group))
        else:
            self._ready_for(first).append((first.group, first.row.id))
