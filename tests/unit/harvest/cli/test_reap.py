"""`harvest reap`: with which settings it harvests, and what ends when it ends."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from harvest.cli import reap as module
from harvest.cli.app import app
from harvest.cli.stop_signals import StopSignals
from harvest.config.model import ReaperConfig
from harvest.errors import StoreUnavailable


class World:
    """A harvesting process that is watched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self.settings: ReaperConfig | None = None
        self.monitored: dict[str, Any] = {}
        self.address: tuple[str, int] | None = None
        self.fails = False
        self.signals = StopSignals()
        monkeypatch.setattr(module, "STOP_SIGNALS", self.signals)
        monkeypatch.setattr(module, "process", self._process)
        monkeypatch.setattr(module, "Monitor", self._monitor)
        monkeypatch.setattr(module, "status_server", self._status_server)
        monkeypatch.setattr(module, "log_to_stderr", lambda: None)
        monkeypatch.setattr(module, "collect_less_often", lambda: None)

    @contextmanager
    def _process(self, settings: ReaperConfig) -> Iterator[Any]:
        self.settings = settings
        stats = SimpleNamespace(published=3)
        harvester = SimpleNamespace(run=self._run, stop=self._note("stop"), stats=stats)
        yield SimpleNamespace(
            harvester=harvester, probes=lambda: "probes", max_age_s=9.0, labels={"group_id": "g"}
        )
        self.seen.append("process ends")

    def _run(self) -> None:
        self.seen.append("run")
        if self.fails:
            raise StoreUnavailable("no database")
        self.signals.received(signal.SIGTERM, None)

    def _monitor(self, harvester: object, probes: object, **options: Any) -> Any:
        del harvester
        self.monitored = {"probes": probes, **options}
        return SimpleNamespace(start=self._note("monitor"), close=self._note("monitor ends"))

    @contextmanager
    def _status_server(self, monitor: object, address: tuple[str, int]) -> Iterator[None]:
        del monitor
        self.address = address
        yield
        self.seen.append("server ends")

    def _note(self, what: str) -> Callable[[], None]:
        return lambda: self.seen.append(what)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    levels = {name: logging.getLogger(name).level for name in ("harvest", "marshal_py")}
    yield World(monkeypatch)
    for number, handler in kept.items():
        signal.signal(number, handler)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "reaper.yaml"
    path.write_text(
        "kafka: {bootstrap.servers: 'b:1'}\ndatabase: host=d\ngroup: g\nlogging: {level: warn}\n"
        "coordination: {topic: elsewhere}\n",
        encoding="utf-8",
    )
    return str(path)


def reap(config: str, *options: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["reap", "-c", config, *options])
    assert done.exit_code == code, done.output
    return done.output


def test_a_signal_stops_the_harvester_and_it_ends_in_order(world: World, config: str) -> None:
    reap(config)
    assert world.seen == ["run", "stop", "process ends"]
    assert signal.getsignal(signal.SIGTERM) == world.signals.received
    assert world.settings is not None
    assert world.settings.coordination.create_topics is False
    assert logging.getLogger("harvest").level == logging.WARNING
    assert logging.getLogger("marshal_py").level == logging.WARNING


def test_topics_are_made_where_that_is_asked_for(world: World, config: str) -> None:
    reap(config, "--create-topics")
    assert world.settings is not None
    made = world.settings.coordination
    assert (made.create_topics, made.topic) == (True, "elsewhere")


def test_status_is_served_while_it_harvests(world: World, config: str) -> None:
    reap(config, "--listen", ":9101")
    assert world.seen == ["monitor", "run", "stop", "monitor ends", "server ends", "process ends"]
    assert world.address == ("", 9101)
    assert world.monitored == {"probes": "probes", "max_age_s": 9.0, "labels": {"group_id": "g"}}


def test_the_monitor_ends_with_a_harvest_that_fails(world: World, config: str) -> None:
    world.fails = True
    assert "no database" in reap(config, "--listen", ":9101", code=3)
    assert world.seen == ["monitor", "run", "monitor ends"]


def test_an_address_that_is_none_harvests_nothing(world: World, config: str) -> None:
    assert "--listen" in reap(config, "--listen", "nowhere", code=2)
    assert world.seen == []
