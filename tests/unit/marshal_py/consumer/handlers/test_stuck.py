"""Handlers that do not return: when they are reported, how often, and to whom."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from marshal_py.client.structured_logs import Fields
from marshal_py.consumer.handlers.options import HandlerOptions, Stuck
from marshal_py.consumer.handlers.stuck import StuckHandlers


def task(since_s: float, *offsets: int) -> Any:
    items = [
        SimpleNamespace(
            payload=SimpleNamespace(
                topic=lambda: "orders", partition=lambda: 3, offset=lambda at=at: at
            )
        )
        for at in offsets or (7,)
    ]
    part = SimpleNamespace(log_fields={"epoch": 5})
    return SimpleNamespace(items=items, part=part, since_s=since_s, reported_s=0.0, worker="w")


class Tasks:
    def __init__(self, *running: Any) -> None:
        self.lock = threading.Lock()
        self.running = list(running)
        self.stuck: list[Any] = []

    def set_stuck(self, tasks: list[Any]) -> None:
        assert self.lock.locked()
        self.stuck = tasks


def looking(tasks: Tasks, **options: Any) -> StuckHandlers:
    fakes: Any = tasks
    workers: Any = SimpleNamespace(describe=lambda worker: (f"thread {worker}", "in sleep()\n"))
    chosen = HandlerOptions(lambda _: None, **options)
    log = Fields(logging.getLogger("marshal_py.consumer"), {})
    return StuckHandlers(fakes, workers, chosen, log, "me")


def test_what_runs_for_too_long_is_told_and_again_when_it_has_taken_twice_as_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[Stuck] = []
    tasks = Tasks(task(100.0, 7, 8))
    handlers = looking(tasks, stuck_after_s=10.0, on_stuck=told.append)
    after_s = []
    for now_s in (109.0, 110.0, 110.5, 112.0, 120.9, 121.0, 130.0, 141.9, 142.0):
        count = len(told)
        handlers.look(now_s)
        if len(told) > count:
            after_s.append(now_s - 100)
    assert after_s == [10.5, 21.0, 42.0]
    assert [report.running_s for report in told] == after_s
    assert [message.offset() for message in told[0].messages] == [7, 8]
    assert (told[0].worker, told[0].stack) == ("thread w", "in sleep()\n")
    assert len(caplog.records) == 3
    text = caplog.records[0].getMessage()
    assert "the handler of orders/3 at offset 7 and 1 more has been running for 10.5 s" in text
    assert text.endswith("in sleep()")
    assert caplog.records[0].epoch == 5  # type: ignore[attr-defined]


def test_what_is_stuck_is_counted_until_it_returns() -> None:
    slow = task(100.0)
    tasks = Tasks(slow, task(150.0))
    handlers = looking(tasks, stuck_after_s=10.0)
    handlers.look(155.0)
    handlers.look(156.0)
    assert tasks.stuck == [slow]
    tasks.running = []
    handlers.look(157.0)
    assert tasks.stuck == []


def test_whoever_is_told_may_fail_and_the_others_are_told_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[Stuck] = []

    def fail(stuck: Stuck) -> None:
        told.append(stuck)
        raise RuntimeError("the pager is down")

    looking(Tasks(task(0.0), task(0.0)), stuck_after_s=10.0, on_stuck=fail).look(11.0)
    assert len(told) == 2
    assert "me: on_stuck raised" in caplog.text
    assert "the pager is down" in caplog.text


def test_without_a_limit_nothing_is_stuck(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks(task(0.0))
    looking(tasks, stuck_after_s=None).look(1e9)
    assert tasks.stuck == []
    assert caplog.records == []
