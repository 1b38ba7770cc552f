"""What somebody on call should look at: raised, counted, ended. No I/O.

An alert has a key; the same key again is the same alert. What has ended stays for a while, so that
a glance an hour later still shows it, and then goes.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

__all__ = ["Alert", "Alerts", "Kind", "Severity"]

Severity: TypeAlias = Literal["high", "low"]
Kind: TypeAlias = str
"""stale, flapping, duplicate_client_id, snapshot_mismatch, growing_lag, stuck, pause_expired,
topic_hidden, or one of `marshal_py.protocol.history.anomalies.KINDS`."""

MAX_ALERTS: Final = 500
KEPT_MS: Final = 3_600_000
"""How long an alert that ended is shown."""

AlertKey: TypeAlias = tuple[str | int | None, ...]


class Alert(Struct):
    """One thing that is, or was, wrong. Times in ms since 1970; `until_ms` None: it still is."""

    number: int
    kind: Kind
    severity: Severity
    text: str
    since_ms: int
    last_ms: int
    until_ms: int | None = None
    count: int = 1
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    client_id: str | None = None


class Alerts:
    """All alerts, by key."""

    def __init__(self) -> None:
        self._alerts: dict[AlertKey, Alert] = {}
        self._next = 0
        self._changed: dict[int, Alert] = {}
        self._gone: list[int] = []

    def raised(self, kind: str) -> list[AlertKey]:
        """Return the keys of the alerts of one kind that have not ended."""
        return [key for key, a in self._alerts.items() if a.kind == kind and a.until_ms is None]

    def raise_(
        self,
        key: AlertKey,
        kind: Kind,
        severity: Severity,
        text: str,
        at_ms: int,
        *,
        group: str | None = None,
        topic: str | None = None,
        partition: int | None = None,
        client_id: str | None = None,
        since_ms: int | None = None,
        again: bool = False,
    ) -> None:
        """Raise an alert, or bring the one with this key up to date.

        `again`: it happened once more, and counts; otherwise it goes on.
        """
        alert = self._alerts.get(key)
        if alert is None or (alert.until_ms is not None and not again):
            if alert is not None:
                self._drop(key)
            alert = self._alerts[key] = Alert(
                self._next,
                kind,
                severity,
                text,
                at_ms if since_ms is None else since_ms,
                at_ms,
                group=group,
                topic=topic,
                partition=partition,
                client_id=client_id,
            )
            self._next += 1
            if len(self._alerts) > MAX_ALERTS:
                self._drop(min(self._alerts, key=lambda k: self._alerts[k].last_ms))
        else:
            if alert.text == text and not again and alert.until_ms is None:
                return
            alert.text, alert.last_ms = text, at_ms
            alert.count += again
            alert.until_ms = None
        self._changed[alert.number] = alert

    def end(self, key: AlertKey, at_ms: int) -> None:
        """End the alert with this key, if there is one."""
        alert = self._alerts.get(key)
        if alert is not None and alert.until_ms is None:
            alert.until_ms = alert.last_ms = at_ms
            self._changed[alert.number] = alert

    def end_if_old(self, key: AlertKey, before_ms: int) -> None:
        """End the alert with this key if it has not come again since `before_ms`."""
        if self._alerts[key].last_ms < before_ms:
            self.end(key, self._alerts[key].last_ms)

    def expire(self, now_ms: int) -> None:
        """Forget what ended long ago."""
        for key in [
            key
            for key, alert in self._alerts.items()
            if alert.until_ms is not None and now_ms - alert.until_ms > KEPT_MS
        ]:
            self._drop(key)

    def _drop(self, key: AlertKey) -> None:
        alert = self._alerts.pop(key)
        self._changed.pop(alert.number, None)
        self._gone.append(alert.number)

    def all(self) -> list[Alert]:
        """Return all alerts, oldest first."""
        return list(self._alerts.values())

    def take_changes(self) -> tuple[list[Alert], list[int]]:
        """Return (changed, numbers of those that are gone) since the last call."""
        changed, self._changed = list(self._changed.values()), {}
        gone, self._gone = self._gone, []
        return changed, gone
