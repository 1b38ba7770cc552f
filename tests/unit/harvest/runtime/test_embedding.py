"""A harvester inside of another program: how it begins, ends, and says why."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harvest import Harvest
from harvest.errors import ConfigurationError, StoreUnavailable
from harvest.runtime import embedding as module
from harvest.runtime.events import Stats
from harvest.runtime.monitor import Health

WAIT_S = 20.0
CONFIG = {"kafka": {"bootstrap.servers": "b:1"}, "database": "host=d", "group": "g"}


class World:
    """A process that harvests until it is stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self.monitored: dict[str, Any] = {}
        self.state = "leading"
        self.at_start: Exception | None = None
        self.at_work: Exception | None = None
        self.before: Callable[[], None] = lambda: None
        self._stopped = threading.Event()
        monkeypatch.setattr(module, "process", self._process)
        monkeypatch.setattr(module, "Monitor", self._monitor)

    @contextmanager
    def _process(self, config: object, on_event: object) -> Iterator[Any]:
        del config, on_event
        self.before()
        if self.at_start is not None:
            raise self.at_start
        harvester = SimpleNamespace(
            run=self._run, stop=self._stop, state=self.state, stats=Stats(published=3)
        )
        yield SimpleNamespace(
            harvester=harvester, probes=lambda: "probes", max_age_s=9.0, labels={"group_id": "g"}
        )
        self.seen.append("process ends")

    def _run(self) -> None:
        logging.getLogger("harvest").info("at work")
        logging.getLogger("marshal_py").debug("much is said")
        if self.at_work is not None:
            raise self.at_work
        assert self._stopped.wait(WAIT_S)

    def _stop(self) -> None:
        self.seen.append("stop")
        self._stopped.set()

    def _monitor(self, harvester: object, probes: object, **options: Any) -> Any:
        del harvester
        self.monitored = {"probes": probes, **options}
        return SimpleNamespace(
            start=lambda: self.seen.append("monitor"),
            close=lambda: self.seen.append("monitor ends"),
            health=lambda: Health(True, "leading"),
        )


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_harvest_begins_and_ends_in_order(world: World) -> None:
    def on_event(_: object) -> None: ...

    harvest = Harvest(CONFIG, on_event=on_event, meter_interval_s=2.0)
    assert (harvest.leading, harvest.stats) == (False, Stats())
    assert harvest.health() == Health(False, "stopped", ("it has stopped, or not started",))
    with harvest:
        assert harvest.leading
        assert harvest.stats.published == 3
        assert harvest.health() == Health(True, "leading")
        assert harvest.await_(0.001) is False
    assert harvest.await_() is True
    assert harvest.health().ok is False, "what has ended is not healthy"
    assert world.seen == ["monitor", "stop", "monitor ends", "process ends"]
    assert world.monitored == {
        "probes": "probes",
        "interval_s": 2.0,
        "on_meter": on_event,
        "max_age_s": 9.0,
        "labels": {"group_id": "g"},
    }


def test_who_stands_by_does_not_lead(world: World) -> None:
    world.state = "standing by"
    with Harvest(CONFIG) as harvest:
        assert not harvest.leading


def test_what_is_wrong_at_the_start_is_raised_there_and_once(world: World) -> None:
    world.at_start = StoreUnavailable("no database")
    harvest = Harvest(CONFIG)
    with pytest.raises(StoreUnavailable, match="no database"):
        harvest.start()
    assert harvest.await_() is True
    assert not harvest.health().ok


def test_what_ends_it_later_is_raised_by_who_waits(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.at_work = StoreUnavailable("no database")
    harvest = Harvest(CONFIG).start()
    with pytest.raises(StoreUnavailable, match="no database"):
        harvest.await_(WAIT_S)
    assert world.seen == ["monitor", "monitor ends"]
    assert not caplog.records, "it is told to who waits, and to nobody else"


def test_what_nobody_foresaw_is_told_in_the_log_too(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.at_work = ZeroDivisionError("surprise")
    harvest = Harvest(CONFIG).start()
    with pytest.raises(ZeroDivisionError):
        harvest.await_(WAIT_S)
    assert "surprise" in caplog.text


def test_who_stops_while_it_begins_is_heard(world: World) -> None:
    begins, go_on = threading.Event(), threading.Event()

    def before() -> None:
        begins.set()
        assert go_on.wait(WAIT_S)

    world.before = before
    harvest = Harvest(CONFIG)
    starting = threading.Thread(target=harvest.start, daemon=True)
    starting.start()
    assert begins.wait(WAIT_S)
    harvest.stop()
    go_on.set()
    assert harvest.await_(WAIT_S)
    assert world.seen == ["stop", "monitor", "monitor ends", "process ends"]


class Kept(logging.Handler):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.mark.parametrize(
    ("level", "said"),
    [(logging.INFO, ["at work"]), (logging.DEBUG, ["at work", "much is said"])],
)
def test_a_logger_gets_what_its_level_lets_through_and_nothing_afterwards(
    world: World, level: int, said: list[str]
) -> None:
    world.at_work = StoreUnavailable("no database")
    kept, logger = Kept(), logging.Logger("application", level)
    logger.addHandler(kept)
    ours = [logging.getLogger(name) for name in ("harvest", "marshal_py")]
    before = [(one.level, list(one.handlers)) for one in ours]
    for one in ours:
        one.setLevel(logging.DEBUG)
    try:
        with pytest.raises(StoreUnavailable):
            Harvest(CONFIG, logger=logger).start().await_(WAIT_S)
        assert [one.handlers for one in ours] == [handlers for _, handlers in before]
        assert [text for text in kept.said if text in ("at work", "much is said")] == said
    finally:
        for one, (old, _) in zip(ours, before, strict=True):
            one.setLevel(old)


def test_a_configuration_is_a_mapping_or_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.yaml cannot be read"):
        Harvest(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigurationError, match=r"nowhere\.yaml cannot be read"):
        Harvest("nowhere.yaml")
    with pytest.raises(ConfigurationError, match="the configuration: grup: unknown key"):
        Harvest({**CONFIG, "grup": "g"})


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ({"on_event": "print"}, "on_event = 'print' must be a function"),
        ({"logger": "app"}, "logger = 'app' must be a logging.Logger"),
        ({"meter_interval_s": 0}, "meter_interval_s = 0 must be a number of seconds above 0"),
        ({"meter_interval_s": float("inf")}, "meter_interval_s = inf must be"),
        ({"meter_interval_s": "5"}, "meter_interval_s = '5' must be"),
    ],
)
def test_what_is_of_the_wrong_kind_is_named(argument: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Harvest(CONFIG, **argument)
