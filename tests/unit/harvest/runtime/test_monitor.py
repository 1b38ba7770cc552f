"""What the monitor shows is what it knows now."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from harvest.core.interfaces.mark_store import Backlog
from harvest.core.wal_slot import SlotHealth
from harvest.errors import StoreUnavailable
from harvest.runtime import monitor as module
from harvest.runtime.events import MeterRead, Stats
from harvest.runtime.monitor import Health, Monitor
from marshal_py.errors import MarshalError

WAIT_S = 60.0


class Probes:
    """Servers that are asked, and may be taken away. It keeps what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failures: dict[str, Exception] = {}
        self.answers: dict[str, Any] = {"backlog": Backlog(3, 1, 0.2), "dead_letters": 0}
        self.shown: list[dict[str, float]] = []
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens while the backlog is counted."""

    def publish(self, facts: dict[str, float]) -> None:
        self.shown.append(facts)
        self._answer("publish")

    def _answer(self, name: str) -> Any:
        self.calls.append(name)
        if name == "backlog":
            self.meanwhile()
        if name in self.failures:
            raise self.failures[name]
        return self.answers.get(name)

    def __getattr__(self, name: str) -> Any:
        return lambda: self._answer(name)


def harvester(**changes: Any) -> Any:
    known = {"state": "leading", "refusal": None, "stuck_s": 0.0, "in_flight": 0, "stats": Stats()}
    return SimpleNamespace(**{**known, **changes})


def monitor_of(probes: Probes, its: Any = None, **given: Any) -> Monitor:
    return Monitor(its or harvester(), cast(Any, probes), **{"interval_s": 1, **given})


def test_a_backlog_that_cannot_be_counted_any_more_is_not_shown() -> None:
    probes = Probes()
    monitor = monitor_of(probes)
    monitor.check()
    assert monitor.backlog == Backlog(3, 1, 0.2)
    probes.failures["backlog"] = StoreUnavailable("permission denied for table outbox")
    monitor._count_at_s = 0.0
    monitor.check()
    assert monitor.backlog is None, "an old age of the oldest row would be taken for a small one"
    assert monitor.health().problems == ("table: permission denied for table outbox",)


def test_what_a_slot_costs_is_not_shown_when_it_is_not_known_any_more() -> None:
    probes = Probes()
    probes.answers["slot"] = SlotHealth(True, lost=False, pinned_bytes=7)
    monitor = monitor_of(probes)
    monitor.check()
    assert monitor.slot is not None
    probes.failures["slot"] = StoreUnavailable("no")
    monitor._count_at_s = 0.0
    monitor.check()
    assert monitor.slot is None, "the log may have grown since"


def test_a_slot_that_is_lost_is_shown_and_makes_it_ill() -> None:
    probes = Probes()
    probes.answers["slot"] = SlotHealth(True, lost=True)
    monitor = monitor_of(probes)
    monitor.check()
    assert monitor.slot == SlotHealth(True, lost=True)
    assert monitor.health().problems == (
        "table: the replication slot is lost: see `harvest check`",
    )


@pytest.mark.parametrize("probe", ["slot", "backlog", "dead_letters"])
def test_what_could_not_be_counted_is_a_problem_until_it_is_counted(probe: str) -> None:
    """Though it is counted only now and then."""
    probes = Probes()
    probes.failures[probe] = StoreUnavailable("no")
    monitor = monitor_of(probes)
    for _ in range(3):
        monitor.check()
        assert monitor.health().problems == ("table: no",)
    del probes.failures[probe]
    monitor.check()
    assert monitor.health().ok
    assert monitor.backlog is not None


@pytest.mark.parametrize(
    ("its", "problem"),
    [
        ({"state": "stopped"}, "it has stopped, or not started"),
        ({"stuck_s": 15.1}, "it leads, and has not been able to work for 15 s"),
        ({"refusal": "another database"}, "nothing is published: another database"),
    ],
)
def test_who_does_not_work_is_ill(its: dict[str, Any], problem: str) -> None:
    monitor = monitor_of(Probes(), harvester(**its))
    monitor.check()
    assert monitor.health() == Health(False, its.get("state", "leading"), (problem,))


def test_who_has_led_for_a_moment_only_is_well() -> None:
    monitor = monitor_of(Probes(), harvester(stuck_s=15.0))
    assert monitor.health().problems == ("not checked yet",)
    monitor.check()
    assert monitor.health() == Health(True, "leading")


@pytest.mark.parametrize(
    ("state", "shown"), [("standing by", "paused"), ("leading", "leading"), ("stopped", "stopped")]
)
def test_who_stands_by_while_the_outbox_is_paused_is_paused(state: str, shown: str) -> None:
    """A leader that has not ended yet leads: `harvest pause` waits for it. Old rows are nobody's
    fault then."""
    probes = Probes()
    probes.answers |= {"paused": True, "backlog": Backlog(3, 1, 99.0)}
    monitor = monitor_of(probes, harvester(state=state), max_age_s=5.0)
    monitor.check()
    assert monitor.health().state == shown
    assert monitor.health().ok is (state != "stopped")
    probes.answers["paused"] = False
    monitor.check()
    assert monitor.health().state == state
    assert monitor.health().problems[-1] == "the oldest row in the table waits for 99 s"


@pytest.mark.parametrize(
    ("probe", "failure"),
    [
        ("database", StoreUnavailable("no")),
        ("kafka", MarshalError("no")),
        ("kafka", KafkaException(KafkaError(KafkaError._TRANSPORT))),
        ("holders", MarshalError("no")),
    ],
)
def test_of_servers_that_do_not_answer_each_is_named_and_the_others_are_asked(
    probe: str, failure: Exception
) -> None:
    probes = Probes()
    probes.failures[probe] = failure
    monitor = monitor_of(probes)
    monitor.check()
    (problem,) = monitor.health().problems
    assert problem.startswith(f"{probe}: ")
    assert monitor.reachable == {"database": probe != "database", "kafka": probe != "kafka"}
    assert monitor.backlog is not None


@pytest.mark.parametrize(("probe", "name"), [("database", "database"), ("backlog", "table")])
def test_a_server_that_neither_answers_nor_fails_makes_it_ill(
    probe: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is frozen: whoever waits for it asks nothing any more, and so does the leader."""
    now_s, seen = [100.0], list[Health]()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    class Frozen(Probes):
        def _answer(self, asked: str) -> Any:
            if asked == probe and monitor.reachable:
                for waited_s in (60.0, 1.0):
                    now_s[0] += waited_s
                    seen.append(monitor.health())
            return super()._answer(asked)

    monitor = monitor_of(Frozen())
    monitor.check()
    monitor._count_at_s = 0.0
    seen.clear()
    monitor.check()
    assert seen == [
        Health(True, "leading"),
        Health(False, "leading", (f"{name}: there is no answer for more than 60 s",)),
    ]
    assert monitor.health() == Health(True, "leading")


def test_counting_takes_one_part_in_twenty_of_the_time_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, probes = [100.0], Probes()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monitor = monitor_of(probes)

    def pass_time(took_s: float) -> None:
        now_s[0] += took_s

    def counted_at(at_s: float, took_s: float = 0.0) -> bool:
        now_s[0], before = at_s, probes.calls.count("backlog")
        probes.meanwhile = lambda: pass_time(took_s)
        monitor.check()
        return probes.calls.count("backlog") > before

    assert counted_at(100.0, took_s=0.1)
    assert not counted_at(114.9)
    assert counted_at(115.0, took_s=2.0)
    assert not counted_at(154.9)
    assert counted_at(155.0)


class Clock:
    """Two seconds pass between two looks, of which there are so many."""

    def __init__(self, looks: int) -> None:
        self.now_s = 0.0
        self._left = looks

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, timeout_s: float) -> bool:
        assert timeout_s == 1
        self.now_s += 2.0
        self._left -= 1
        return self._left < 0


def run(monitor: Monitor, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr(monitor, "_stopping", SimpleNamespace(wait=clock.wait, set=lambda: None))
    monitor._run()


def test_rates_are_those_of_the_last_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    its, read = harvester(), list[MeterRead]()

    def look(meter: MeterRead) -> None:
        read.append(meter)
        its.stats.published += 4

    probes = Probes()
    its.in_flight = 9
    run(monitor_of(probes, its, on_meter=look), Clock(3), monkeypatch)
    assert read == [
        MeterRead(2.0, 0, 0.0, 0, 9),
        MeterRead(2.0, 4, 2.0, 4, 9),
        MeterRead(2.0, 4, 2.0, 8, 9),
    ]
    assert [facts["rows/s"] for facts in probes.shown] == [0, 2, 2]


def test_a_handler_and_a_group_that_fail_do_not_end_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: MeterRead) -> None:
        raise ZeroDivisionError

    probes = Probes()
    probes.failures["publish"] = MarshalError("no heartbeat")
    run(monitor_of(probes, on_meter=fail), Clock(2), monkeypatch)
    assert probes.calls.count("publish") == 2
    assert [record.getMessage() for record in caplog.records] == [
        "what is shown of this harvester is out of date: no heartbeat",
        "the handler of MeterRead failed",
    ] * 2


def test_the_group_is_shown_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    probes = Probes()
    probes.answers |= {
        "slot": SlotHealth(True, lost=False, pinned_bytes=3 << 20, behind_bytes=5),
        "dead_letters": 2,
        "backlog": Backlog(3, 1, 0.26),
    }
    its = harvester(stats=Stats(gaps=4), in_flight=6)
    run(monitor_of(probes, its), Clock(1), monkeypatch)
    assert probes.shown == [
        {
            "rows/s": 0,
            "backlog": 3,
            "oldest s": 0.3,
            "behind bytes": 5,
            "log kept MiB": 3.0,
            "in flight": 6,
            "gaps": 4,
            "set aside": 2,
        }
    ]


def test_who_is_closed_looks_no_more_and_lets_go_of_the_servers() -> None:
    probes, asked = Probes(), threading.Event()
    probes.meanwhile = asked.set
    monitor = monitor_of(probes, interval_s=WAIT_S)
    monitor.start()
    assert asked.wait(WAIT_S)
    monitor.close()
    assert not monitor._thread.is_alive()
    assert probes.calls[-1] == "close"
    never = monitor_of(Probes())
    never.close()
