"""Watches a harvesting process from beside: is it healthy, how much waits, how fast does it go?

One thread with connections of its own, so that neither a slow question nor a scrape holds up the
harvest. It never changes anything.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from confluent_kafka import KafkaException

from harvest.core.interfaces.mark_store import Backlog
from harvest.core.wal_slot import SlotHealth
from harvest.errors import HarvestError, SchemaError
from harvest.runtime.events import MeterRead, Stats
from marshal_py.errors import MarshalError

__all__ = ["HarvesterState", "Health", "Monitor", "Probes"]

_LOG: Final = logging.getLogger("harvest")
_STUCK_S: Final = 15.0
"""So long a leader may take to open the sink, or to recover, before it counts as ill."""
_ANSWER_S: Final = 60.0
"""So long a server may neither answer nor fail: nobody asks anything else meanwhile."""
_COUNT_EVERY_S: Final = 15.0
_COUNT_SHARE: Final = 20
"""Counting the backlog reads the table: it may take up at most one part in so many of the time."""


class HarvesterState(Protocol):
    """What the monitor sees of a `Harvester`."""

    @property
    def stats(self) -> Stats: ...
    @property
    def state(self) -> str: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def stuck_s(self) -> float: ...
    @property
    def refusal(self) -> str | None: ...


class Probes(Protocol):
    """Questions to the servers. Each raises when there is no answer."""

    def database(self) -> None: ...
    def kafka(self) -> None: ...
    def backlog(self) -> Backlog | None:
        """What waits; None where that is not known."""

    def slot(self) -> SlotHealth | None:
        """In wal mode, what the slot costs."""

    def dead_letters(self) -> int: ...
    def holders(self) -> dict[str, str]:
        """Who leads: election name to client."""

    def paused(self) -> bool:
        """Whether somebody has paused the outbox."""

    def publish(self, facts: dict[str, float]) -> None:
        """Show `facts`, by name, beside what this process leads."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Health:
    """`ok` if the process leads, or stands by, and reaches the database and Kafka."""

    ok: bool
    state: str
    problems: tuple[str, ...] = ()


class Monitor:
    """Looks every `interval_s` seconds, between `start` and `close`.

    `max_age_s`: a row that waits for longer is a problem, unless the outbox is paused. `labels`
    are those of its metrics: which outbox, of which group.
    """

    def __init__(
        self,
        harvester: HarvesterState,
        probes: Probes,
        *,
        interval_s: float = 5.0,
        on_meter: Callable[[MeterRead], None] | None = None,
        max_age_s: float | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.labels = dict(labels or {})
        self._max_age_s = max_age_s
        self.paused = False
        self.backlog: Backlog | None = None
        self.dead_letters: int | None = None
        self.slot: SlotHealth | None = None
        self.holders: dict[str, str] = {}
        self._harvester = harvester
        self._probes = probes
        self._interval_s = interval_s
        self._on_meter = on_meter
        self._problems: tuple[str, ...] = ("not checked yet",)
        self.reachable: dict[str, bool] = {}
        """Whether `database` and `kafka` answered when they were last asked."""
        self._asking: tuple[str, float] | None = None
        """What is asked now, and since when."""
        self._count_at_s = float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="harvest-monitor", daemon=True)

    @property
    def harvester(self) -> HarvesterState:
        """What is harvester."""
        return self._harvester

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(2 * self._interval_s)
        self._probes.close()

    def health(self) -> Health:
        """How it was when it was last looked at; whether a leader works, as it is now."""
        state = self._harvester.state
        problems = list(self._problems)
        asking = self._asking
        if asking is not None and time.monotonic() > asking[1] + _ANSWER_S:
            problems.append(f"{asking[0]}: there is no answer for more than {_ANSWER_S:.0f} s")
        if self._harvester.refusal is not None:
            problems.append(f"nothing is published: {self._harvester.refusal}")
        if state == "stopped":
            problems.append("it has stopped, or not started")
        if self._harvester.stuck_s > _STUCK_S:
            problems.append(f"it leads, and has not been able to work for {_STUCK_S:.0f} s")
        age_s = self.backlog and self.backlog.oldest_age_s
        if self._max_age_s is not None and not self.paused and (age_s or 0) > self._max_age_s:
            problems.append(f"the oldest row in the table waits for {age_s or 0:.0f} s")
        if self.paused and state == "standing by":
            state = "paused"
        return Health(not problems, state, tuple(problems))

    def _run(self) -> None:
        read_s, published = time.monotonic(), self._harvester.stats.published
        while True:
            self.check()
            if self._stopping.wait(self._interval_s):
                return
            now_s, total = time.monotonic(), self._harvester.stats.published
            took_s, rows = now_s - read_s, total - published
            self._publish(rows / took_s)
            if self._on_meter is not None:
                in_flight = self._harvester.in_flight
                try:
                    self._on_meter(MeterRead(took_s, rows, rows / took_s, total, in_flight))
                except Exception:
                    _LOG.exception("the handler of MeterRead failed")
            read_s, published = now_s, total

    def _publish(self, rows_per_s: float) -> None:
        """Tell the group, with the heartbeats: dashboards read nothing but the log."""
        facts: dict[str, float] = {"rows/s": round(rows_per_s)}
        if self.backlog is not None:
            facts["backlog"] = self.backlog.rows
            if self.backlog.oldest_age_s is not None:
                facts["oldest s"] = round(self.backlog.oldest_age_s, 1)
        if self.slot is not None:
            facts["behind bytes"] = self.slot.behind_bytes
            facts["log kept MiB"] = round(self.slot.pinned_bytes / (1 << 20), 1)
        facts["in flight"] = self._harvester.in_flight
        if self._harvester.stats.gaps:
            facts["gaps"] = self._harvester.stats.gaps
        if self.dead_letters:
            facts["set aside"] = self.dead_letters
        try:
            self._probes.publish(facts)
        except MarshalError as error:
            _LOG.warning("what is shown of this harvester is out of date: %s", error)

    def check(self) -> None:
        """Ask everything once."""
        problems = []
        for name, probe in (
            ("database", self._probes.database),
            ("kafka", self._probes.kafka),
            ("holders", self._ask_holders),
            ("table", self._count),
        ):
            self._asking = name, time.monotonic()
            try:
                probe()
                answered = True
            except (HarvestError, MarshalError, KafkaException) as error:
                problems.append(f"{name}: {error}")
                answered = False
                if name == "table":  # what was counted before is not so now
                    self.backlog = self.dead_letters = None
            if name in ("database", "kafka"):
                self.reachable[name] = answered
        self._asking = None
        self._problems = tuple(problems)

    def _ask_holders(self) -> None:
        self.holders = self._probes.holders()
        self.paused = self._probes.paused()

    def _count(self) -> None:
        started_s = time.monotonic()
        if started_s < self._count_at_s:
            return
        try:
            self.slot = self._probes.slot()
        except Exception:
            self.slot = None  # it may cost more by now
            raise
        if self.slot is not None and self.slot.lost:
            raise SchemaError("the replication slot is lost: see `harvest check`")
        self.backlog = self._probes.backlog()
        self.dead_letters = self._probes.dead_letters()
        took_s = time.monotonic() - started_s
        self._count_at_s = started_s + max(_COUNT_EVERY_S, _COUNT_SHARE * took_s)
