"""`marshal metrics …`: rules and dashboard as files, and where the exporter may listen."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from marshal_py.cli import metrics as module
from marshal_py.client.log_reader import Hangs, Truncated
from marshal_py.errors import AccessDenied, BrokerUnavailable, ConfigurationError
from tests.support.marshal_command import without_brokers


@pytest.fixture(autouse=True)
def sigterm() -> Iterator[None]:
    """The exporter has a handler of its own, which is not for the other tests."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_the_rules_lead_to_the_runbooks_where_they_are_served() -> None:
    text = without_brokers("metrics", "alerts", "--runbooks", "https://wiki.example/m/").stdout
    rules = [rule for each in yaml.safe_load(text)["groups"] for rule in each["rules"]]
    found = {rule["annotations"]["runbook_url"].rpartition("/")[0] for rule in rules}
    assert found == {"https://wiki.example/m"}


def test_the_dashboard_is_json_and_nothing_else() -> None:
    assert json.loads(without_brokers("metrics", "dashboard").stdout)["panels"]


@pytest.mark.parametrize("listen", ["9464", ":9464", "localhost:", "localhost:http", "h:65536"])
def test_what_is_no_address_is_refused_before_a_broker_is_asked(listen: str) -> None:
    done = without_brokers("metrics", "serve", "--listen", listen)
    assert done.exit_code == 2
    assert f"--listen {listen!r} must be HOST:PORT" in done.stderr


def test_brokers_that_do_not_answer_at_first_are_an_error_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[int] = []

    def fail(*_: object) -> None:
        raise BrokerUnavailable("nobody answers")

    reader = SimpleNamespace(close=lambda: closed.append(1))
    monkeypatch.setattr(module, "open_reader", lambda _: reader)
    monkeypatch.setattr(module, "catch_up", fail)
    done = without_brokers("metrics", "serve")
    assert done.exit_code == 3
    assert "nobody answers" in done.stderr
    assert closed == [1]


class Nothing(Collector):
    """Has no metrics."""

    def __init__(self, *_: object) -> None:
        pass

    def ask(self) -> None:
        pass

    def start(self) -> None:
        pass

    def ask_until(self, _: object) -> None:
        pass

    def collect(self) -> Iterator[Metric]:
        return iter(())


@pytest.mark.parametrize(("error", "restarts"), [(Truncated("cut"), 1), (Hangs("hangs"), 0)])
def test_a_client_that_hangs_is_no_log_that_was_made_anew(
    monkeypatch: pytest.MonkeyPatch, error: Truncated, restarts: int
) -> None:
    """Who is told that it was stops all clients, to recover it."""
    made: list[Counting] = []

    class Counting(Nothing):
        restarts = 0
        view: object = None

        def __init__(self, *_: object) -> None:
            made.append(self)

    polls = iter([error, BrokenPipeError()])

    def poll(_: float) -> None:
        raise next(polls)

    reader = SimpleNamespace(close=lambda: None, poll=poll, partition_count_error=None)
    views = [SimpleNamespace(limit_timestamps=lambda _: None) for _ in range(2)]
    unread = iter(views)
    monkeypatch.setattr(module, "open_reader", lambda _: reader)
    monkeypatch.setattr(module, "catch_up", lambda *_: next(unread))
    monkeypatch.setattr("marshal_py.telemetry.group_metrics.GroupMetrics", Counting)
    without_brokers("metrics", "serve", "--listen", "127.0.0.1:0")
    assert next(polls, None) is None, "it has begun again"
    assert [each.restarts for each in made] == [restarts]
    assert made[0].view is views[1], "what is told is what was read then"


def test_what_the_log_brings_is_read_and_counted_while_nobody_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever scrapes meanwhile would find a world that is half changed."""
    counted: list[object] = []
    kept: list[int] = []
    locks: list[Any] = []

    class Counting(Nothing):
        def __init__(self, _connection: object, _view: object, lock: Any) -> None:
            locks.append(lock)

        def count(self, event: object) -> None:
            assert locks[0].locked()
            counted.append(event)

    def fold(messages: list[str]) -> list[tuple[None, int, str]]:
        assert locks[0].locked()
        return [(None, 0, message) for message in messages]

    polls = iter([["a", "b"], [], ["c"]])

    def poll(_: float) -> list[str]:
        for messages in polls:
            return messages
        signal.raise_signal(signal.SIGTERM)
        return []

    reader = SimpleNamespace(close=lambda: None, poll=poll, partition_count_error=None)
    view = SimpleNamespace(limit_timestamps=kept.append, fold=fold)
    monkeypatch.setattr(module, "open_reader", lambda _: reader)
    monkeypatch.setattr(module, "catch_up", lambda *_: view)
    monkeypatch.setattr("marshal_py.telemetry.group_metrics.GroupMetrics", Counting)
    done = without_brokers("metrics", "serve", "--listen", "127.0.0.1:0")
    assert done.exit_code == 0, done.stderr
    assert counted == ["a", "b", "c"]
    assert kept == [100_000], "an exporter that runs for months would keep all times"


def test_brokers_that_are_gone_are_asked_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor is a core busy with that; the address may be one of IPv6."""
    waited_s: list[float] = []
    served: list[tuple[int, str]] = []
    outages = iter([BrokerUnavailable("nobody answers")] * 2)

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited_s.append(timeout or 0.0)
            return super().wait(0)

    def poll(_: float) -> list[object]:
        for outage in outages:
            raise outage
        signal.raise_signal(signal.SIGTERM)
        return []

    def serve(port: int, *, addr: str, registry: object) -> tuple[Any, None]:
        served.append((port, addr))
        return SimpleNamespace(server_port=port, shutdown=lambda: None), None

    reader = SimpleNamespace(close=lambda: None, poll=poll, partition_count_error=None)
    view = SimpleNamespace(limit_timestamps=lambda _: None, fold=lambda _: [])
    threads = SimpleNamespace(Event=Event, Lock=threading.Lock, Thread=lambda **_: Nothing())
    monkeypatch.setattr(module, "threading", threads)
    monkeypatch.setattr(module, "open_reader", lambda _: reader)
    monkeypatch.setattr(module, "catch_up", lambda *_: view)
    monkeypatch.setattr("marshal_py.telemetry.group_metrics.GroupMetrics", Nothing)
    monkeypatch.setattr("prometheus_client.start_http_server", serve)
    done = without_brokers("metrics", "serve", "--listen", "[::1]:9464")
    assert done.exit_code == 0, done.stderr
    assert done.stderr.count("nobody answers; trying on") == 2
    assert (served, waited_s) == ([(9_464, "::1")], [2.0, 2.0])


def test_a_client_that_cannot_be_made_for_a_moment_is_made_later_and_is_an_error_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the exporter reads the log anew while a certificate and its key are being replaced."""
    torn = ConfigurationError("ssl.key.location failed")
    rereads: list[object] = []

    def poll(_: float) -> list[object]:
        if len(rereads) < 3:
            raise Hangs("hangs")
        signal.raise_signal(signal.SIGTERM)
        return []

    reader = SimpleNamespace(close=lambda: None, poll=poll, partition_count_error=None)
    view = SimpleNamespace(limit_timestamps=lambda _: None, fold=lambda _: [])

    def open_reader(_: object) -> object:
        rereads.append(answer := answers.pop(0))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(module, "TRY_AGAIN_S", 0.0)
    monkeypatch.setattr(module, "open_reader", open_reader)
    monkeypatch.setattr(module, "catch_up", lambda *_: view)
    monkeypatch.setattr("marshal_py.telemetry.group_metrics.GroupMetrics", Nothing)
    answers: list[object] = [reader, torn, reader]
    done = without_brokers("metrics", "serve", "--listen", "127.0.0.1:0")
    assert done.exit_code == 0, done.stderr
    assert "ssl.key.location failed; trying on" in done.stderr
    answers = [torn]
    assert without_brokers("metrics", "serve").exit_code == 2
    answers = [reader, AccessDenied("lacks Read"), reader]
    rereads.clear()
    assert without_brokers("metrics", "serve", "--listen", "127.0.0.1:0").exit_code == 2


def test_an_address_that_is_taken_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = SimpleNamespace(close=lambda: None)
    view = SimpleNamespace(limit_timestamps=lambda _: None)
    monkeypatch.setattr(module, "open_reader", lambda _: reader)
    monkeypatch.setattr(module, "catch_up", lambda *_: view)
    monkeypatch.setattr("marshal_py.telemetry.group_metrics.GroupMetrics", Nothing)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = without_brokers("metrics", "serve", "--listen", address)
    assert done.exit_code == 3
    assert f"--listen {address}: Address already in use" in done.stderr
