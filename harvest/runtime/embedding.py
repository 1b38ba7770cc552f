"""A harvester inside of another program.

::

    from harvest import Harvest

    harvest = Harvest("reaper.yaml", on_event=print).start()
    ...
    harvest.stop()
    harvest.await_()

It does what `harvest reap` does, in threads of this process.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from harvest.config.load import load
from harvest.config.model import ReaperConfig
from harvest.config.validation import validated
from harvest.errors import ConfigurationError, HarvestError
from harvest.runtime.events import Event, Stats
from harvest.runtime.monitor import Health, Monitor
from harvest.runtime.process import Process, process

__all__ = ["Harvest"]

_MOST_S: Final = 1_000_000_000
_LOGGERS: Final = ("harvest", "marshal_py")


class Harvest:
    """Harvests one outbox whenever it leads, from `start` to `stop`.

    - `config`: a `ReaperConfig`, the same as a mapping, or the path of a file.
    - `on_event`: hears `LeaderAcquired`, `LeaderRefreshed`, `LeaderRevoked` (the next leader is
      elected when it has returned: what must not overlap can be finished in it), `LeaderFenced`,
      from the harvesting thread; and `MeterRead` every `meter_interval_s`, from another. An
      exception of it ends the harvest, but for that of a `MeterRead`.
    - `logger`: gets what the loggers `harvest` and `marshal_py` of the process say, too. When this
      process begins to lead, that is an info line with the words ``leader acquired``.

    Use once. Raises `ConfigurationError`.
    """

    def __init__(
        self,
        config: ReaperConfig | Mapping[str, Any] | str | Path,
        *,
        on_event: Callable[[Event], None] | None = None,
        logger: logging.Logger | None = None,
        meter_interval_s: float = 5.0,
    ) -> None:
        if isinstance(config, str | Path):
            config = load(config)
        elif not isinstance(config, ReaperConfig):
            config = validated(ReaperConfig, config, "the configuration")
        if on_event is not None and not callable(on_event):
            raise ConfigurationError(f"on_event = {on_event!r} must be a function, or None")
        if logger is not None and not isinstance(logger, logging.Logger):
            raise ConfigurationError(f"logger = {logger!r} must be a logging.Logger, or None")
        if type(meter_interval_s) not in (int, float) or not 0 < meter_interval_s <= _MOST_S:
            raise ConfigurationError(
                f"meter_interval_s = {meter_interval_s!r} must be a number of seconds above 0, up "
                f"to {_MOST_S}"
            )
        self._config = config
        self._on_event = on_event
        self._meter_interval_s = meter_interval_s
        self._forward = None if logger is None else _Forward(logger)
        self._ready = threading.Event()
        self._stop_asked = threading.Event()
        self._process: Process | None = None
        self._monitor: Monitor | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="harvest", daemon=True)

    def start(self) -> Self:
        """Begin; returns when the process stands for election.

        Raises what is wrong at the start: a missing table, a server that cannot be reached.
        """
        self._thread.start()
        self._ready.wait()
        if self._process is None:
            self.await_()
        return self

    def stop(self) -> None:
        """Finish what is in flight, hand over and end. Returns at once; from any thread."""
        self._stop_asked.set()
        running = self._process
        if running is not None:
            running.harvester.stop()

    def await_(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; False if it has not come after `timeout_s`.

        Raises the error that ended it, if one did.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        error, self._error = self._error, None
        if error is not None:
            raise error
        return True

    @property
    def leading(self) -> bool:
        """Whether this process leads, at the moment."""
        running = self._process
        return running is not None and running.harvester.state == "leading"

    @property
    def stats(self) -> Stats:
        """Counts since the start."""
        return Stats() if self._process is None else self._process.harvester.stats

    def health(self) -> Health:
        """Whether it leads, or stands by, and reaches its servers."""
        if self._monitor is None or not self._thread.is_alive():
            return Health(False, "stopped", ("it has stopped, or not started",))
        return self._monitor.health()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.await_()

    def _run(self) -> None:
        try:
            with self._forwarding(), process(self._config, self._on_event) as running:
                self._monitor = Monitor(
                    running.harvester,
                    running.probes(),
                    interval_s=self._meter_interval_s,
                    on_meter=self._on_event,
                    max_age_s=running.max_age_s,
                    labels=running.labels,
                )
                self._process = running
                if self._stop_asked.is_set():
                    running.harvester.stop()
                self._monitor.start()
                try:
                    self._ready.set()
                    running.harvester.run()
                finally:
                    self._monitor.close()
        except BaseException as error:
            if not isinstance(error, HarvestError):
                logging.getLogger("harvest").error("harvesting ended: %r", error)
            self._error = error
        finally:
            self._ready.set()

    @contextlib.contextmanager
    def _forwarding(self) -> Any:
        if self._forward is None:
            yield
            return
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self._forward)
        try:
            yield
        finally:
            for name in _LOGGERS:
                logging.getLogger(name).removeHandler(self._forward)


class _Forward(logging.Handler):
    """Hands records on to another logger."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        if self._logger.isEnabledFor(record.levelno):
            self._logger.handle(record)
