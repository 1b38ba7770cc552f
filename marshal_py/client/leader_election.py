"""Leader election on claims (specs/PROTOCOL.md §8).

The leader of a name is the holder of partition 0 of the virtual topic ``leader:NAME``. A colon is
illegal in the names of Kafka topics, so the two cannot meet. Everything that holds for claims holds
here: the lease bounds how long a leader may act, the epoch fences what it did too late, and a
leader that releases hands over without anyone waiting.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Self

from marshal_py.client.claim import Claim
from marshal_py.client.claims import ClaimRegistry
from marshal_py.client.driver import Driver
from marshal_py.client.waiting import FOR_EVER_S, Steps, block
from marshal_py.errors import ClaimTimeout, InvalidArgument
from marshal_py.protocol import events as ev
from marshal_py.protocol.messages import MAX_TOPIC_LENGTH
from marshal_py.protocol.rationalizer import Cell
from marshal_py.protocol.world import LEADER_PREFIX

__all__ = ["Leader", "LeaderWatch", "Leadership", "leader_topic"]


def leader_topic(name: str) -> str:
    """Return the virtual topic whose partition 0 decides who leads `name`."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_TOPIC_LENGTH - len(LEADER_PREFIX):
        raise InvalidArgument(
            f"leader name = {name!r} must be text of 1 to {MAX_TOPIC_LENGTH - len(LEADER_PREFIX)} "
            "characters"
        )
    return LEADER_PREFIX + name


class Leader(NamedTuple):
    """Who leads a name: a client and the epoch of its claim."""

    client_id: str
    instance_id: str
    epoch: int


class Leadership:
    """This client's candidacy for one name, and its leadership once it is elected.

    ::

        with marshal.leader("nightly-report") as leadership:   # blocks until elected
            while leadership.held:
                ...                                            # pass leadership.epoch on

    Leaving the block hands over at once. `held` turns false the moment the lease lapses; stop then.
    If nobody took over meanwhile, the leadership comes back under the same epoch; otherwise it is
    lost, and `campaign` stands again. For any thread.

    Two of one name that one client made are one candidacy: both are elected at once, whoever leaves
    the block first hands over for both, and the hooks of the one that campaigned last are called.
    Where threads of one process should exclude each other, give each a client of its own.
    """

    def __init__(self, registry: ClaimRegistry, name: str) -> None:
        self.name = name
        self._registry = registry
        """For the rest of this library; no part of the public interface."""
        self.claim: Claim | None = None
        """The claim that the leadership is; None before the first election."""
        self._topic = leader_topic(name)
        self.on_lost: Callable[[Leadership], None] | None = None
        """Called once, in the hook thread, when somebody else leads, or the log took it away."""
        self.on_lapsed: Callable[[Leadership], None] | None = None
        """Called when the lease ran out without an answer from the log: stop acting."""
        self.on_regained: Callable[[Leadership], None] | None = None
        """Called when nobody had taken over after all: act again, under the same epoch."""

    @property
    def held(self) -> bool:
        """Whether this client leads now and may act."""
        return self.claim is not None and self.claim.held

    @property
    def epoch(self) -> int:
        """The fencing token: larger for every later leader; −1 before the first election."""
        return -1 if self.claim is None else self.claim.epoch

    @property
    def remaining_ms(self) -> float:
        """Milliseconds left of the lease; 0 when it is not held."""
        return 0.0 if self.claim is None else self.claim.remaining_ms

    @property
    def reason(self) -> str | None:
        """Why the leadership ended, None while it has not."""
        return None if self.claim is None else self.claim.reason

    def campaign(self, timeout_s: float | None = None) -> Self:
        """Wait until elected. Raises `ClaimTimeout` after `timeout_s`, and what `claim` raises."""
        block(self._registry.driver.lock, self.campaign_steps(timeout_s))
        return self

    def campaign_steps(self, timeout_s: float | None) -> Steps[None]:
        """Return the steps of `campaign`, for `waiting.drive`."""
        claim = self._registry.want(self._topic, 0)
        if claim is not self.claim:
            claim.on_lost = self._relay("on_lost")
            claim.on_lapsed = self._relay("on_lapsed")
            claim.on_regained = self._relay("on_regained")
        try:
            yield from self._registry.wait_held([claim], timeout_s)
        except BaseException as error:
            self._registry.give_up(claim)
            if isinstance(error, ClaimTimeout):
                raise ClaimTimeout(f"not elected leader of {self.name!r}: {error}") from None
            raise
        self.claim = claim

    def resign(self, *, wait: bool = True, timeout_s: float = 10.0) -> None:
        """Hand over. Stop acting before you call this; the next leader need not wait."""
        if self.claim is not None:
            self.claim.release(wait=wait, timeout_s=timeout_s)

    def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Wait until this client may not act any more; False if it still may after `timeout_s`."""
        return True if self.claim is None else self.claim.wait_lost(timeout_s)

    def _relay(self, hook: str) -> Callable[[Claim], None]:
        def call(_: Claim) -> None:
            function = getattr(self, hook)
            if function is not None:
                function(self)

        return call

    def __enter__(self) -> Self:
        return self.campaign()

    def __exit__(self, *_: object) -> None:
        # Beyond the timeout the release goes on being tried, and the lease ends in any case.
        with contextlib.suppress(ClaimTimeout):
            self.resign()

    def __repr__(self) -> str:
        return f"<Leadership {self.name!r} held={self.held} claim={self.claim!r}>"


class LeaderWatch:
    """Tells who leads a name, and hears of changes, without being a candidate.

    `on_change(old, new)` runs in the hook thread; either is None when nobody leads. What it tells
    is what the log says: a leader whose lease has lapsed leads until somebody takes over. When the
    log was made anew or lost records, it is what the log says then.
    """

    def __init__(
        self,
        driver: Driver,
        name: str,
        on_change: Callable[[Leader | None, Leader | None], None] | None = None,
    ) -> None:
        self.name = name
        self._topic = leader_topic(name)
        self._group_id = driver.settings.group_id
        self._on_change = on_change
        self._changed = threading.Condition()
        with driver.lock:  # nothing may be folded between the two
            self._driver = driver
            self._stop = driver.listen(self._listen, self._start_over)
            self._current = _leader(driver.world.cell(self._group_id, self._topic, 0))
            self._closed = False
            driver.on_ended.append(self._wake)

    @property
    def current(self) -> Leader | None:
        """The leader according to the log, None if there is none."""
        return self._current

    def wait(self, epoch_above: int = -1, timeout_s: float | None = None) -> Leader | None:
        """Wait for a leader whose epoch is above `epoch_above`.

        Returns None after `timeout_s`, or when the watch is closed. Raises `Closed` when the client
        is, and what else made it stop reading the log.
        """

        def found() -> Leader | None:
            current = self._current
            return current if current is not None and current.epoch > epoch_above else None

        with self._changed:
            self._changed.wait_for(
                lambda: found() is not None or self._closed or self._driver.has_ended,
                None if timeout_s is None else min(timeout_s, FOR_EVER_S),
            )
            leader, closed = found(), self._closed
        if leader is None and not closed and self._driver.has_ended:
            self._driver.check_open()
        return leader

    def close(self) -> None:
        """Stop watching."""
        self._stop()
        self._closed = True
        with contextlib.suppress(ValueError):
            self._driver.on_ended.remove(self._wake)
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _listen(self, _: int, events: list[ev.Event]) -> None:
        for event in events:
            if (
                isinstance(event, ev.Claimed | ev.Released | ev.PositionSet)
                and event.topic == self._topic
                and event.group_id == self._group_id
            ):
                new = (
                    Leader(event.client_id, event.instance_id, event.epoch)
                    if isinstance(event, ev.Claimed)
                    else None
                )
                self._become(new)

    def _start_over(self, _: str) -> None:
        """The log was read anew: who leads is what it says now. In the driver's thread."""
        new = _leader(self._driver.world.cell(self._group_id, self._topic, 0))
        self._driver.hooks.call(partial(self._set, new))

    def _set(self, new: Leader | None) -> None:
        with self._changed:
            old, self._current = self._current, new
            self._changed.notify_all()
        if self._on_change is None or old == new:
            return
        try:
            self._on_change(old, new)
        except BaseException:  # what came with it in one batch is still to be told
            driver = self._driver
            driver.log.exception(
                "%s: on_change of the leader of %r raised", driver.settings.client_id, self.name
            )

    def _become(self, new: Leader | None) -> None:
        with self._changed:
            old = self._current
            if new is not None and old is not None and new.epoch <= old.epoch:
                return  # read at construction already
        self._set(new)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _leader(cell: Cell | None) -> Leader | None:
    if cell is None or cell.holder is None or cell.instance_id is None:
        return None
    return Leader(cell.holder, cell.instance_id, cell.epoch)
