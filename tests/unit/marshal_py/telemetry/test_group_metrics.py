"""What the exporter says of partitions, as the brokers' answers come."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

from prometheus_client.core import GaugeMetricFamily

from marshal_py.admin.lag import PartitionLag
from marshal_py.telemetry import group_metrics
from marshal_py.telemetry.group_metrics import GroupMetrics

ROWS = [PartitionLag("g", "t", p, 5, 0, 9, 4, "c", "live", claimed=True) for p in range(2)]


def lags(metrics: GroupMetrics) -> dict[str, float]:
    """The lag in messages by partition."""
    (family,) = [m for m in metrics._lag() if m.name == "marshal_group_lag_messages"]
    return {sample.labels["partition"]: sample.value for sample in family.samples}


def test_a_partition_that_is_gone_is_shown_no_more_and_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that comes back under its name has not waited since then."""
    nothing: Any = None
    metrics = GroupMetrics(nothing, nothing, threading.Lock())
    monkeypatch.setattr(group_metrics, "measure_lag", lambda *_, **__: ROWS)
    metrics.ask()
    assert lags(metrics) == {"0": 4, "1": 4}
    monkeypatch.setattr(group_metrics, "measure_lag", lambda *_, **__: ROWS[:1])
    metrics.ask()
    assert lags(metrics) == {"0": 4}
    assert metrics._clocks.keys() == {("g", "t", 0)}


def test_brokers_that_do_not_answer_change_nothing_but_whether_they_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing: Any = None
    metrics = GroupMetrics(nothing, nothing, threading.Lock())
    monkeypatch.setattr(group_metrics, "measure_lag", lambda *_, **__: ROWS)
    metrics.ask()
    assert metrics.reachable()

    def fail(*_: object, **__: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(group_metrics, "measure_lag", fail)
    metrics.ask()
    assert not metrics.reachable()
    assert lags(metrics) == {"0": 4, "1": 4}


def test_while_the_brokers_do_not_answer_nothing_is_said_of_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An outage is no death of everybody."""
    view: Any = SimpleNamespace(
        world=SimpleNamespace(states=[], cells=lambda _: ()),
        reader=SimpleNamespace(mismatches=[]),
        newest_ms=None,
        behind_ms=0,
    )
    nothing: Any = None
    metrics = GroupMetrics(nothing, view, threading.Lock())
    live = GaugeMetricFamily("marshal_group_members_live", "Live.", value=0)
    monkeypatch.setattr(group_metrics, "summarize", lambda _: None)
    monkeypatch.setattr(group_metrics, "_groups", lambda *_: iter([live]))
    monkeypatch.setattr(metrics, "reachable", lambda: True)
    assert live in list(metrics.collect())
    monkeypatch.setattr(metrics, "reachable", lambda: False)
    found = {metric.name: metric for metric in metrics.collect()}
    assert live.name not in found
    assert "marshal_group_lag_messages" not in found
    assert found["marshal_exporter_kafka_reachable"].samples[0].value == 0
