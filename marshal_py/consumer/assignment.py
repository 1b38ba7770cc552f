"""The thread of a consumer that claims partitions and gives them back, as the assignor decides.

It goes round whenever something happened, and at least every tenth of an interval; less often while
nothing comes and nobody goes. Each round looks at every partition, and now and then at what this
member should hold.
"""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol

from marshal_py.client.marshal import Marshal, driver_of
from marshal_py.client.structured_logs import Fields
from marshal_py.consumer.delivery import Delivery
from marshal_py.consumer.fetcher import Fetcher
from marshal_py.consumer.held_partition import Stage
from marshal_py.consumer.partitions import Partitions
from marshal_py.consumer.positions import Positions
from marshal_py.consumer.topics import Topics
from marshal_py.consumer.wakeup import Wakeup
from marshal_py.errors import Closed, DuplicateClientId, MarshalError
from marshal_py.protocol.events import Beat, Event

__all__ = ["Assignment", "Claims"]

REST_S: Final = 1.0
"""Between two rounds, while nothing comes and nothing changes hands; a quarter of an interval, if
that is less. What happens wakes it, and so does the silence of a member that has died."""

TWIN_INTERVALS: Final = 3
"""So long another instance of our client_id must be heard: one that is closing is not, by then."""

LOOK_AT_ENDS_S: Final = 0.5
"""At most once: between two looks at how many messages wait, while there are many."""


class Claims(Protocol):
    """What one member claims and gives back: `PartitionClaims`, or `RangeClaims`."""

    def start(self) -> None:
        """Begin: the client has started."""

    def close(self) -> None:
        """Ask for nothing more. May be called again."""

    def is_affected_by(self, events: list[Event]) -> bool:
        """Whether a round is due because of what the driver has just read. Under its lock."""

    def look_at_lags(self) -> None:
        """The topics were looked at. In a thread of its own."""

    def round(self, now_s: float) -> float | None:
        """Claim and give back what is to be. Returns when to look again, None: no sooner."""

    def rest_s(self) -> float | None:
        """Return how long nothing need be looked at if nothing happens; None: only shortly."""


class Assignment:
    """Has `claims` look at what there is, and `partitions` follow, from `start` to `close`."""

    def __init__(
        self,
        marshal: Marshal,
        topics: Topics,
        partitions: Partitions,
        positions: Positions,
        claims: Claims,
        fetcher: Fetcher,
        delivery: Delivery,
        log: Fields,
        wakeup: Wakeup,
    ) -> None:
        self._marshal = marshal
        self._topics = topics
        self._partitions = partitions
        self._positions = positions
        self._claims = claims
        self._fetcher = fetcher
        self._delivery = delivery
        self._log = log
        self._wakeup = wakeup
        self._look_again_s: float | None = None
        self._is_text = marshal.settings.wire == "text"
        self._closing = False
        self._is_left = False
        """Nobody waits for its end: it stops when all is given back."""
        self._settled = threading.Event()
        self._twin: tuple[str, float, float] | None = None
        """Another instance of our client_id, and when its heartbeats were read: first and last."""
        self._looked_at_ends_s = float("-inf")
        self._thread = threading.Thread(target=self._run, name="marshal-assignment", daemon=True)
        self._stopped = threading.Event()

    # Life

    def start(self) -> None:
        """Begin to claim."""
        driver = driver_of(self._marshal)
        self._claims.start()
        with driver.lock:
            driver.watchers.append(self._on_events)
            driver.restarted.append(self._on_restart)
            driver.before_heartbeat.append(self._partitions.refresh_offsets)
        self._wakeup.wake()
        self._thread.start()
        self._topics.start(self._stopped, self._on_look_at_topics)

    @property
    def is_alive(self) -> bool:
        """Whether its thread works."""
        return self._thread.is_alive()

    def close(self, wait_s: float, deadline: float, *, release: bool) -> None:
        """Give everything back, or keep it (`release=False`), and end."""
        if not self._thread.is_alive():  # the client was closed before
            self._stopped.set()
            self._topics.stop()
            return
        self._partitions.end(hurry_s=time.monotonic() + wait_s, release=release)
        self._closing = True
        self._wakeup.wake()
        try:
            self._settled.wait(max(0.1, deadline - time.monotonic()))
        except BaseException:  # Ctrl-C: nothing is waited for any more, and it ends by itself
            self._partitions.end(hurry_s=time.monotonic(), release=release)
            self._is_left = True
            self._wakeup.wake()
            raise
        self._stopped.set()
        self._topics.stop()
        self._wakeup.wake()
        self._thread.join(max(1.0, deadline - time.monotonic()))
        driver = driver_of(self._marshal)
        with driver.lock:
            driver.watchers.remove(self._on_events)
            driver.restarted.remove(self._on_restart)
            if release:
                driver.before_heartbeat.remove(self._partitions.refresh_offsets)

    def _on_events(self, _: int, events: list[Event]) -> None:
        me = self._marshal
        for event in events:
            if (
                type(event) is Beat
                and event.client_id == me.client_id
                and event.instance_id != me.instance_id
                and event.group_id == me.group_id
            ):
                now_s, before = time.monotonic(), self._twin
                is_same = before is not None and before[0] == event.instance_id
                since_s = before[1] if before is not None and is_same else now_s
                self._twin = (event.instance_id, since_s, now_s)
        if self._claims.is_affected_by(events):
            self._wakeup.wake()

    def _on_restart(self, _: str) -> None:
        self._wakeup.plan_due = True
        self._wakeup.wake()

    def _on_look_at_topics(self, changed: bool) -> None:
        if changed:
            self._wakeup.plan_due = True
            self._wakeup.wake()
        self._claims.look_at_lags()

    # Rounds

    def _run(self) -> None:
        name = self._marshal.client_id
        while not self._stopped.is_set():
            self._wakeup.wait(self._wait_s())
            self._wakeup.clear()
            try:
                self._round()
            except Closed as error:
                if self._marshal.failure is None or self._closing:
                    self._remove_all()
                    if not self._closing and threading.main_thread().is_alive():
                        self._wakeup.fail(error)  # the loop would wait for ever
                    return
            except MarshalError as error:  # the client has failed for good: leases lapse
                self._wakeup.fail(error)
                if self._closing:
                    self._remove_all()
                    return
            except Exception as error:
                self._log.exception("%s: the assignment of a consumer failed", name)
                failure = MarshalError(f"the consumer's assignment failed: {error}")
                failure.__cause__ = error
                self._wakeup.fail(failure)
                if self._closing:
                    self._remove_all()
                    return

    def _wait_s(self) -> float:
        """Return when to go round next if nothing happens, in seconds."""
        if self._look_again_s is not None:
            return self._look_again_s
        if self._closing:
            return 0.02
        interval_s = self._marshal.settings.interval_ms / 1000
        tick_s = min(0.25, max(0.02, interval_s / 10))
        rest_s = self._claims.rest_s() if self._is_at_rest() else None
        return tick_s if rest_s is None else max(0.02, min(REST_S, interval_s / 4, rest_s))

    def _is_at_rest(self) -> bool:
        """Whether nothing has to be looked at again before something happens."""
        return (
            self._fetcher.is_resting
            and not self._wakeup.plan_due
            and not self._partitions.is_waiting
        )

    def _remove_all(self) -> None:
        for part in self._partitions.all():
            self._partitions.remove(part)
        self._partitions.tell_of_lost(now=True)
        self._settled.set()

    def _round(self) -> None:
        for part in self._partitions.all():
            self._partitions.advance(part)
        self._partitions.tell_of_lost()
        if self._closing:
            self._look_again_s = None
            self._claims.close()
            if self._partitions.wind_up():
                self._settled.set()
                if self._is_left:
                    self._stopped.set()
            return
        now_s = time.monotonic()
        if self._delivery.is_behind and now_s - self._looked_at_ends_s > LOOK_AT_ENDS_S:
            self._looked_at_ends_s, self._delivery.is_behind = now_s, False
            if not self._is_text:
                self._positions.request_ends(list(self._fetcher.active.values()))
        self._fetcher.hear()
        self._look_for_a_twin(now_s)
        self._look_again_s = self._claims.round(now_s)

    def _look_for_a_twin(self, now_s: float) -> None:
        """End if another process has our client_id, and all there is for us, for good.

        Who has something hears of it when it is taken away (PROTOCOL.md §5.8); who has nothing
        would wait for ever.
        """
        if self._twin is None or self._wakeup.failure is not None:
            return
        instance_id, since_s, last_s = self._twin
        interval_s = self._marshal.settings.interval_ms / 1000
        if last_s - since_s < TWIN_INTERVALS * interval_s or now_s - last_s > 2 * interval_s:
            return
        wanted = self._partitions.all()
        if not wanted or any(part.stage is not Stage.WANTED for part in wanted):
            return
        cells = [self._marshal.cell(*part.key) for part in wanted]
        if all(cell is not None and cell.instance_id == instance_id for cell in cells):
            name, group_id = self._marshal.client_id, self._marshal.group_id
            error = DuplicateClientId(
                f"client_id {name!r} is used by another live process in group {group_id!r} "
                f"(instance {instance_id}), which holds all that this one wants; give each process "
                "its own client_id"
            )
            self._log.error("%s: %s", name, error)
            self._wakeup.fail(error)
