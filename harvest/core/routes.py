"""Which destination a row goes to, and the key by which the receiver knows it again. Pure.

A route is the name of a destination, a template that gives one (``{topic}``, ``{header.to}``,
``eu-{topic}``), or a function of the row that returns one, and raises `InvalidRecord`. Of a list of
routes, a row goes to the destination of each; a route that gives an empty name leaves it out.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeAlias

from harvest.core.dispatcher import Message
from harvest.core.row import Row, Unreadable
from harvest.core.templates import Template, header
from harvest.errors import ConfigurationError, InvalidRecord

__all__ = ["DELIVER_AFTER", "AnyRoute", "Router"]

AnyRoute: TypeAlias = str | Callable[[Row], str]

DELIVER_AFTER: Final = "deliver_after"
"""The header of a row that is not to be sent before a time."""


class Router:
    """Finds the destination of rows among `names`. Raises `ConfigurationError`.

    - `route`: see above; None: the topic's name, or the one destination there is.
      A list: to each, on a lane of its own.
    - `unique`: the template of idempotency keys.
    - `clock`: gives milliseconds, of the wall (UTC) and of the scheduler.
    """

    def __init__(
        self,
        names: Collection[str],
        route: AnyRoute | Sequence[AnyRoute] | None = None,
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
            only = self._any.replace("{", "{{").replace("}", "}}")
            route = "{topic}" if len(names) > 1 else only
        self._several = False
        if isinstance(route, str) or callable(route):
            routes: Sequence[AnyRoute] = (route,)
        else:
            routes, self._several = route, True
        self._routes = [self._from(one) if isinstance(one, str) else one for one in routes]
        self._unique = Template.parse(unique, outbox, "idempotency_key")

    def messages(self, row: Row) -> Sequence[Message]:
        """Where a row goes, and when; messages with a `problem` if it can go nowhere.

        Where rows go to several destinations there is one for each: later rows of the key wait
        behind it everywhere, until it is set aside.
        """
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
            names = self._destinations(row)
            self.unique(row)
            at_ms = self._not_before_ms(row)
            if self._several:
                return [Message(row, name, at_ms, lane=name) for name in names]
            return [Message(row, names[0], at_ms)]
        except InvalidRecord as error:
            if self._several:
                names = sorted(self._names)
                return [Message(row, name, 0.0, str(error), lane=name) for name in names]
            return [Message(row, self._any, 0.0, str(error))]

    def _destinations(self, row: Row) -> list[str]:
        names = [find(row) for find in self._routes]
        if self._several:
            names = list(dict.fromkeys([name for name in names if name]))
            if not names:
                raise InvalidRecord("no route gives a destination for it")
        for name in names:
            if name not in self._names:
                known = ", ".join(sorted(self._names))
                raise InvalidRecord(f"there is no destination {name!r}; configured are {known}")
        return names

    def unique(self, row: Row) -> str:
        """The idempotency key of a row. Raises `InvalidRecord`."""
        return self._unique.render(row)

    def _from(self, route: str) -> Callable[[Row], str]:
        template = Template.parse(route, self._outbox, "route")
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
