"""Which destination a row goes to, and the key by which the receiver knows it again. Pure.

A route is the name of a destination, a template that gives one (``{topic}``, ``{header.to}``,
``eu-{topic}``), or a function of the row that returns one, and raises `InvalidRecord`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection
from typing import Final

from harvest.core.dispatcher import Message
from harvest.core.row import Row, Unreadable
from harvest.core.templates import Template, header
from harvest.errors import ConfigurationError, InvalidRecord

__all__ = ["DELIVER_AFTER", "Router"]

DELIVER_AFTER: Final = "deliver_after"
"""The header of a row that is not to be sent before a time."""


class Router:
    """Finds the destination of rows among `names`. Raises `ConfigurationError`.

    - `route`: see above; None: the topic's name, or the one destination there is.
    - `unique`: the template of idempotency keys.
    - `clock`: gives milliseconds, of the wall (UTC) and of the scheduler.
    """

    def __init__(
        self,
        names: Collection[str],
        route: str | Callable[[Row], str] | None = None,
        *,
        outbox: str = "",
        unique: str = "{outbox}.{id}",
        clock: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
    ) -> None:
        if not names:
            raise ConfigurationError("destinations is empty: give at least one")
        self._names = frozenset(names)
        self._any = min(names)
        self._outbox = outbox
        self._clock = clock
        if route is None:
            route = "{topic}" if len(names) > 1 else self._any.replace("{", "{{").replace("}", "}}")
        self._find = self._from(route) if isinstance(route, str) else route
        self._unique = Template.parse(unique, outbox)

    def message(self, row: Row) -> Message:
        """Where a row goes, and when; a message with a `problem` if it can go nowhere."""
        try:
            if row.key is None:
                raise InvalidRecord("the key is NULL: it decides the order; it may be empty")
            if isinstance(row.header_keys, Unreadable):
                raise InvalidRecord(row.header_keys.why)
            if len(row.header_keys) != len(row.header_values):
                raise InvalidRecord(
                    f"{len(row.header_keys)} header keys and {len(row.header_values)} header "
                    "values: the two arrays must have one length"
                )
            name = self._find(row)
            if name not in self._names:
                known = ", ".join(sorted(self._names))
                raise InvalidRecord(f"there is no destination {name!r}; configured are {known}")
            self.unique(row)
            return Message(row, name, self._not_before_ms(row))
        except InvalidRecord as error:
            return Message(row, self._any, 0.0, str(error))

    def unique(self, row: Row) -> str:
        """The idempotency key of a row. Raises `InvalidRecord`."""
        return self._unique.render(row)

    def _from(self, route: str) -> Callable[[Row], str]:
        template = Template.parse(route, self._outbox)
        if template.constant:
            name = template.render(Row(0, "", b"", b""))
            if name not in self._names:
                known = ", ".join(sorted(self._names))
                raise ConfigurationError(
                    f"route is {route!r}, and there is no such destination; configured: {known}"
                )
            return lambda _: name
        return template.render

    def _not_before_ms(self, row: Row) -> float:
        if not row.header_keys:
            return 0.0
        value = header(row, DELIVER_AFTER)
        if value is None:
            return 0.0
        try:
            text = value.decode().replace("Z", "+00:00")
            at = dt.datetime.fromisoformat(text)
        except ValueError:
            at = None
        if at is None or at.tzinfo is None:
            raise InvalidRecord(
                f"the header {DELIVER_AFTER} is {value!r}: write a time with its zone, such as "
                "2026-01-31T12:00:00Z"
            )
        wall_ms, now_ms = self._clock()
        return now_ms + at.timestamp() * 1000 - wall_ms
