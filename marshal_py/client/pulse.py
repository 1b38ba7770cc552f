"""Noticing that a Kafka consumer hangs: of an idle one nothing comes either."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from marshal_py.errors import ConfigurationError

__all__ = ["PULSE_S", "Pulse", "TimeAwake"]

EVERY_MS: Final = 10_000
"""librdkafka tells its statistics so often, unless a program wants them at other times: they are
the one sign of life that it gives by itself."""

PULSE_S: Final = 60.0
"""Who has not told them for so long, or three times as late as it should, hangs."""

_MOST_S: Final = 1.0
"""Counted between two looks."""


class TimeAwake:
    """Counts the time between looks, of each a second at most.

    Who stood still, or handled messages meanwhile, could neither read nor hear anything.
    """

    def __init__(self) -> None:
        self._looked_s = 0.0

    def passed_s(self, now_s: float) -> float:
        """Return how much time counts since the last look."""
        passed_s = min(now_s - self._looked_s, _MOST_S)
        self._looked_s = now_s
        return passed_s


class Pulse:
    """Hears the statistics of one consumer, and passes them on to a program that wants them.

    Two threads of librdkafka can come to wait for each other for ever (its issue 5476): then the
    consumer brings nothing and says nothing, while this client holds its partitions.

    Raises `ConfigurationError`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        every_ms = _whole(config.get("statistics.interval.ms", EVERY_MS))
        self.limit_s = max(PULSE_S, 3 * every_ms / 1000) if every_ms else float("inf")
        self._program = config.get("stats_cb") if "statistics.interval.ms" in config else None
        self._awake, self._waited_s = TimeAwake(), 0.0
        self.settings: dict[str, Any] = {"statistics.interval.ms": every_ms, "stats_cb": self._hear}
        """Of the consumer."""

    def _hear(self, statistics: str) -> None:
        self._waited_s = 0.0
        if self._program is not None:
            self._program(statistics)

    def stopped(self, now_s: float) -> bool:
        """Whether it has stopped. To be asked after each poll, which lets it be heard."""
        self._waited_s += self._awake.passed_s(now_s)
        return self._waited_s > self.limit_s


def _whole(every_ms: object) -> int:
    if isinstance(every_ms, int | str) and str(every_ms).isdecimal():
        return int(every_ms)
    raise ConfigurationError(
        f"statistics.interval.ms = {every_ms!r} must be a whole number of milliseconds; 0: none"
    )
