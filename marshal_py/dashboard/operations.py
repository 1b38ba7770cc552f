"""What an operator may do from the page, if the dashboard was started with ``--write``.

Nothing is done that was not shown before: `preview` says what an action would come to and hands out
a ticket; `perform` does what the ticket stands for, once. Positions are set to the very offsets
that were shown, and not at all when things have moved so that these mean something else. What was
done, and by whom, is logged. `marshal_py.admin.group_admin` does the work.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from dataclasses import asdict
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import age, count, iso_utc
from marshal_py.admin.group_admin import Change, GroupAdmin
from marshal_py.errors import GroupPausedError, InvalidArgument
from marshal_py.protocol.rationalizer import Pause

__all__ = ["Action", "Operations", "decode_action", "has_moved"]

logger = logging.getLogger("marshal_py.dashboard.actions")

TICKET_S: Final = 300.0
MAX_TICKETS: Final = 100
SET_TIMEOUT_S: Final = 60.0
CLIENT_ID: Final = "marshal-dashboard"

Text = Annotated[str, Meta(min_length=1, max_length=255)]


class Action(Struct, forbid_unknown_fields=True):
    """What is to be done to a group. `partition` None: all of the topic.

    `to` is an offset, ``+n`` or ``-n`` messages from where the group is, ``earliest``, ``latest``.
    """

    what: Literal["pause", "resume", "set_position"]
    group: Text
    for_s: Annotated[float, Meta(gt=0, le=86_400 * 30)] = 900.0
    topic: Text | None = None
    partition: Annotated[int, Meta(ge=0)] | None = None
    to: Annotated[str, Meta(max_length=40)] = ""


def decode_action(body: bytes) -> Action:
    """Return the action in a request's body. Raises `InvalidArgument`."""
    try:
        action = msgspec.json.decode(body, type=Action)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"no action: {error}") from None
    if action.what == "set_position" and (action.topic is None or not action.to.strip()):
        raise InvalidArgument("set_position needs a topic, and where to go: an offset, -100, …")
    return action


class Operations:
    """Previews actions, and performs them one at a time. For any thread.

    Nobody's preview waits for what somebody else does.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._performing = threading.Lock()
        self._lock = threading.Lock()
        """Of the tickets."""
        self._tickets: dict[str, tuple[float, Action, int | None, list[Change]]] = {}
        """When it was issued, for what, which pause is meant by a resume, what was shown."""

    def preview(self, action: Action) -> dict[str, Any]:
        """Say what an action would come to now; write nothing.

        Raises `InvalidArgument`, `TopicMissing`, `BrokerUnavailable`.
        """
        pause: Pause | None = None
        with self._admin(action.group) as admin:
            admin.require()
            held = admin.held()
            changes: list[Change] = []
            if action.what == "pause":
                until_ms = time.time_ns() // 1_000_000 + int(action.for_s * 1000)
                text = (
                    f"The group's members stop, and release the {count(len(held), 'partition')} "
                    f"that they hold. Nobody claims any until {iso_utc(until_ms)}, in "
                    f"{age(action.for_s * 1000)}, or until somebody resumes the group."
                )
            elif action.what == "resume":
                pause = admin.standing_pause
                if pause is None:
                    raise InvalidArgument(f"group {action.group!r} is not paused")
                text = (
                    f"The pause until {iso_utc(pause.expires_at_ms)} ends. The group's members "
                    "claim again."
                )
            else:
                changes = admin.plan(self._positions(admin, action))
                text = (
                    "The group is paused until this is done, and then goes on from there. A "
                    "partition that is held is waited for until its holder has let it go."
                )
        ticket = self._ticket(action, None if pause is None else pause.version, changes)
        return {"text": text, "changes": _rows(changes), "ticket": ticket}

    def perform(self, ticket: str, who: str = "somebody") -> dict[str, Any]:
        """Do what a preview has shown, for `who`. A ticket is good for once, for five minutes.

        Raises `InvalidArgument` for a ticket that is not, and as `GroupAdmin` does.
        """
        with self._lock:
            found = self._tickets.pop(ticket, None)
        if found is None or time.monotonic() - found[0] > TICKET_S:
            raise InvalidArgument("this preview is too old, or was used: look again first")
        _, action, pause, shown = found
        try:
            with self._performing, self._admin(action.group) as admin:
                done = self._perform(admin, action, pause, shown)
        except Exception as error:
            logger.warning("%s: %s was asked for, and failed: %s", who, _told(action), error)
            raise
        logger.warning("%s: %s: %s", who, _told(action), done["text"])
        return done

    def _perform(
        self, admin: GroupAdmin, action: Action, pause: int | None, shown: list[Change]
    ) -> dict[str, Any]:
        if action.what == "pause":
            until_ms = admin.pause(action.for_s)
            return {"text": f"{action.group} is paused until {iso_utc(until_ms)}.", "changes": []}
        if action.what == "resume":
            if not admin.resume(pause):
                raise GroupPausedError(f"group {action.group!r} was not paused any more")
            return {"text": f"{action.group} goes on.", "changes": []}
        wanted = {change.key: change.after for change in shown}
        moved = has_moved(
            shown, admin.plan(dict.fromkeys(self._positions(admin, action), 0) | wanted)
        )
        if moved is not None:
            raise InvalidArgument(f"{moved}; nothing was set: look again first")
        changes = admin.set_positions(wanted, timeout_s=SET_TIMEOUT_S)
        text = f"{count(len(changes), 'position')} of {action.topic} set."
        return {"text": text, "changes": _rows(changes)}

    def _positions(self, admin: GroupAdmin, action: Action) -> dict[tuple[str, int], str | int]:
        topic = action.topic or ""
        wanted = None if action.partition is None else [action.partition]
        text = action.to.strip()
        to: str | int = int(text) if text.isdecimal() else text
        return dict.fromkeys(admin.keys_of(topic, wanted), to)

    def _admin(self, group: str) -> GroupAdmin:
        connection = self._connection
        return GroupAdmin(
            connection.kafka,
            group,
            topic=connection.topic,
            client_id=CLIENT_ID,
            connect_timeout_s=connection.timeout_s,
        )

    def _ticket(self, action: Action, pause: int | None, shown: list[Change]) -> str:
        now = time.monotonic()
        with self._lock:
            for old in [t for t, (at, *_) in self._tickets.items() if now - at > TICKET_S]:
                del self._tickets[old]
            while len(self._tickets) >= MAX_TICKETS:
                del self._tickets[next(iter(self._tickets))]
            ticket = secrets.token_urlsafe(16)
            self._tickets[ticket] = (now, action, pause, shown)
        return ticket


def has_moved(shown: list[Change], now: list[Change]) -> str | None:
    """Say in what the changes that were `shown` mean something else `now`; None: in nothing.

    That a group went on a little is nothing; that it passed the target is: what would have been
    delivered again would be left out then, or the other way round.
    """
    before = {change.key: change for change in shown}
    if before.keys() != {change.key for change in now}:
        return "the partitions are others by now"
    for change in now:
        was = before[change.key]
        where = f"{change.topic}/{change.partition}"
        if change.after != was.after:
            return f"{where} has no message at offset {was.after} any more"
        if _direction(change) != _direction(was):
            return f"{where} was at {was.before}, and is at {change.before} by now"
    return None


def _direction(change: Change) -> int:
    return (change.after > change.before) - (change.after < change.before)


def _told(action: Action) -> str:
    where = "" if action.topic is None else f" of {action.topic}"
    if action.partition is not None:
        where += f"/{action.partition}"
    to = f" to {action.to}" if action.what == "set_position" else ""
    return f"{action.what}{where} for group {action.group}{to}"


def _rows(changes: list[Change]) -> list[dict[str, Any]]:
    return [asdict(change) for change in changes]
