"""Alerts: the same one goes on, comes again or is another; what ended stays for a while."""

from __future__ import annotations

from marshal_py.dashboard.alerts import KEPT_MS, MAX_ALERTS, Alert, Alerts

KEY = ("stale", "g")


def raised(alerts: Alerts, at_ms: int, text: str = "look", *, again: bool = False) -> Alert:
    alerts.raise_(KEY, "stale", "high", text, at_ms, again=again)
    return alerts.all()[-1]


def test_what_goes_on_is_one_alert_and_told_again_only_when_it_reads_otherwise() -> None:
    alerts = Alerts()
    raised(alerts, 1_000)
    assert [a.number for a in alerts.take_changes()[0]] == [0]
    assert raised(alerts, 2_000).last_ms == 1_000
    assert alerts.take_changes() == ([], [])
    alert = raised(alerts, 3_000, "look there")
    assert (alert.number, alert.count, alert.since_ms, alert.last_ms) == (0, 1, 1_000, 3_000)
    assert alerts.take_changes()[0] == [alert]


def test_what_happens_once_more_counts_even_after_its_end() -> None:
    alerts = Alerts()
    raised(alerts, 1_000, again=True)
    alerts.end(KEY, 2_000)
    alert = raised(alerts, 3_000, again=True)
    assert (alert.number, alert.count, alert.until_ms, alert.since_ms) == (0, 2, None, 1_000)


def test_what_begins_anew_after_its_end_is_another_alert_and_the_old_one_is_gone() -> None:
    alerts = Alerts()
    raised(alerts, 1_000)
    alerts.end(KEY, 2_000)
    alerts.take_changes()
    alert = raised(alerts, 3_000)
    assert (alert.number, alert.since_ms) == (1, 3_000)
    assert alerts.take_changes() == ([alert], [0])
    assert alerts.all() == [alert]


def test_what_ended_is_shown_for_an_hour_from_its_end_on() -> None:
    alerts = Alerts()
    raised(alerts, 0)
    alerts.expire(10 * KEPT_MS)
    assert len(alerts.all()) == 1, "it has not ended"
    alerts.end(KEY, 10 * KEPT_MS)
    alerts.take_changes()
    alerts.expire(11 * KEPT_MS)
    assert len(alerts.all()) == 1
    alerts.expire(11 * KEPT_MS + 1)
    assert alerts.all() == []
    assert alerts.take_changes() == ([], [0]), "pages are told"


def test_an_end_is_told_once() -> None:
    alerts = Alerts()
    raised(alerts, 1_000)
    alerts.take_changes()
    alerts.end(KEY, 2_000)
    alerts.end(KEY, 3_000)
    ((alert,), _) = alerts.take_changes()
    assert alert.until_ms == 2_000
    assert alerts.raised("stale") == []
    alerts.end(("never raised",), 4_000)


def test_what_has_not_come_again_ends_when_it_came_last() -> None:
    alerts = Alerts()
    raised(alerts, 1_000, again=True)
    alerts.end_if_old(KEY, 1_000)
    assert alerts.raised("stale") == [KEY]
    alerts.end_if_old(KEY, 1_001)
    assert alerts.all()[0].until_ms == 1_000


def test_of_too_many_the_one_that_came_last_the_longest_ago_goes() -> None:
    alerts = Alerts()
    for n in range(MAX_ALERTS):
        alerts.raise_((n,), "flapping", "low", "text", 1_000 + n)
    alerts.raise_((0,), "flapping", "low", "again", 9_000, again=True)
    alerts.raise_(("one more",), "flapping", "low", "text", 9_500)
    numbers = {alert.number for alert in alerts.all()}
    assert len(numbers) == MAX_ALERTS
    assert {0, 2, MAX_ALERTS} <= numbers
    assert 1 not in numbers
