"""What an operator may do from the page, if the dashboard was started with ``--write``.

Nothing is done that was not shown before: `preview` says what an action would come to and hands out
a ticket; `perform` does what the ticket stands for, once. Positions are set to the very offsets
that were shown, and not at all when things have moved so that these mean something else; dead
letters are put back if they, and where they go, are as shown. What is done, and by whom, is in the
audit trail before it is done, and in the log. `marshal_py.admin.group_admin` and
`marshal_py.dashboard.dead_letters` do the work.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from dataclasses import asdict
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import age, count, iso_utc
from marshal_py.admin.group_admin import Change, GroupAdmin
from marshal_py.dashboard.audit_trail import AuditTrail, Entry
from marshal_py.dashboard.dead_letters import (
    MAX_SHOWN,
    DeadLetterTopics,
    LetterId,
    Replayed,
    Target,
)
from marshal_py.errors import GroupPausedError, InvalidArgument, MarshalError
from marshal_py.protocol.rationalizer import Pause

__all__ = ["Action", "Operations", "decode_action", "has_moved"]

logger = logging.getLogger("marshal_py.dashboard.actions")

TICKET_S: Final = 300.0
MAX_TICKETS: Final = 100
SET_TIMEOUT_S: Final = 60.0
CLIENT_ID: Final = "marshal-dashboard"

Text = Annotated[str, Meta(min_length=1, max_length=255)]
Natural = Annotated[int, Meta(ge=0)]


class Action(Struct, forbid_unknown_fields=True):
    """What is to be done to a group. `partition` None: all of the topic.

    `to` is an offset, ``+n`` or ``-n`` messages from where the group is, ``earliest``, ``latest``.
    ``replay`` is of no group: `letters` of the dead-letter topic `topic` go back to where they
    came from.
    """

    what: Literal["pause", "resume", "set_position", "replay"]
    group: Text | None = None
    for_s: Annotated[float, Meta(gt=0, le=86_400 * 30)] = 900.0
    topic: Text | None = None
    partition: Natural | None = None
    to: Annotated[str, Meta(max_length=40)] = ""
    letters: Annotated[list[tuple[Natural, Natural]], Meta(max_length=MAX_SHOWN)] = []


class Ticket(NamedTuple):
    """What a preview has shown."""

    at_s: float
    action: Action
    pause: int | None
    """Which pause is meant by a resume."""
    changes: list[Change]
    targets: list[Target]
    replayed: frozenset[LetterId]
    """Letters of these that had been replayed before."""


def decode_action(body: bytes) -> Action:
    """Return the action in a request's body. Raises `InvalidArgument`."""
    try:
        action = msgspec.json.decode(body, type=Action)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"no action: {error}") from None
    if action.what == "set_position" and (action.topic is None or not action.to.strip()):
        raise InvalidArgument("set_position needs a topic, and where to go: an offset, -100, …")
    if action.what == "replay":
        if action.topic is None or not action.letters:
            raise InvalidArgument(
                "replay needs a topic, and letters: pairs of partition and offset"
            )
    elif action.group is None:
        raise InvalidArgument(f"{action.what} needs a group")
    return action


class Operations:
    """Previews actions, and performs them one at a time. For any thread.

    Nobody's preview waits for what somebody else does.
    """

    def __init__(
        self, connection: Connection, letters: DeadLetterTopics, trail: AuditTrail
    ) -> None:
        self._connection = connection
        self._letters = letters
        self._trail = trail
        self._performing = threading.Lock()
        self._lock = threading.Lock()
        """Of the tickets."""
        self._tickets: dict[str, Ticket] = {}

    def preview(self, action: Action) -> dict[str, Any]:
        """Say what an action would come to now; write nothing.

        Raises `InvalidArgument`, `TopicMissing`, `BrokerUnavailable`.
        """
        if action.what == "replay":
            return self._preview_replay(action)
        pause: Pause | None = None
        with self._admin(action) as admin:
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
        version = None if pause is None else pause.version
        ticket = self._issue(Ticket(time.monotonic(), action, version, changes, [], frozenset()))
        return {"text": text, "changes": _rows(changes), "ticket": ticket}

    def _preview_replay(self, action: Action) -> dict[str, Any]:
        topic = action.topic or ""
        targets = self._letters.targets(topic, action.letters)
        replayed = self._replayed(topic, targets)
        to = ", ".join(sorted({target.topic for target in targets}))
        text = (
            f"{count(len(targets), 'message')} of {topic} {'is' if len(targets) == 1 else 'are'} "
            f"appended to {to} once more, each to the partition that it came from. All who read "
            "there get them, not only the group that gave them up. The dead letters stay."
        )
        if replayed:
            text += f" {len(replayed)} of them were replayed before."
        now_s = time.monotonic()
        ticket = self._issue(Ticket(now_s, action, None, [], targets, replayed))
        rows = [
            {
                "letter": target.letter,
                "topic": target.topic,
                "partition": target.partition,
                "end": target.end,
                "key": target.key,
                "replayed": target.letter in replayed,
            }
            for target in targets
        ]
        return {"text": text, "letters": rows, "ticket": ticket}

    def _replayed(
        self, topic: str, targets: list[Target], but: Entry | None = None
    ) -> frozenset[LetterId]:
        """Return those of the letters that were replayed, or may have been."""
        before = {
            letter
            for entry in self._trail.entries()
            if entry.topic == topic and (but is None or entry.id != but.id)
            for letter in entry.letters
        }
        return frozenset(target.letter for target in targets if target.letter in before)

    def perform(self, ticket: str, who: str = "somebody") -> dict[str, Any]:
        """Do what a preview has shown, for `who`. A ticket is good for once, for five minutes.

        What cannot be written into the audit trail is not done. Raises `InvalidArgument` for a
        ticket that is not good, and as `GroupAdmin`, `DeadLetterTopics` and `AuditTrail` do.
        """
        with self._lock:
            found = self._tickets.pop(ticket, None)
        if found is None or time.monotonic() - found.at_s > TICKET_S:
            raise InvalidArgument("this preview is too old, or was used: look again first")
        action = found.action
        letters = [target.letter for target in found.targets]
        with self._performing:
            try:
                begun = self._trail.begin(
                    who, _told(action), topic=action.topic or "", letters=letters
                )
            except MarshalError as error:
                logger.warning("%s: %s was asked for, not done: %s", who, _told(action), error)
                raise
            try:
                if action.what == "replay":
                    replayed = self._replay(found, who, begun)
                    done: dict[str, Any] = {"text": replayed.text, "changes": []}
                    letters, failed = replayed.done, replayed.failed
                else:
                    with self._admin(action) as admin:
                        done = self._perform(admin, action, found.pause, found.changes)
                    failed = False
            except Exception as error:
                logger.warning("%s: %s was asked for, and failed: %s", who, _told(action), error)
                self._note_end(begun, str(error), failed=True)
                raise
            logger.warning("%s: %s: %s", who, _told(action), done["text"])
            self._note_end(begun, done["text"], failed=failed, letters=letters)
        return done

    def _note_end(
        self, begun: Entry, text: str, *, failed: bool, letters: list[LetterId] | None = None
    ) -> None:
        """Write down how an action ended; if that fails, the trail says that it is not known."""
        try:
            self._trail.end(begun, text, failed=failed, letters=letters)
        except MarshalError as error:
            logger.error("the audit trail does not know how %s ended: %s", begun.what, error)

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

        def check(now: list[Change]) -> None:
            moved = has_moved(shown, now)
            if moved is not None:
                raise InvalidArgument(f"{moved}; nothing was set: look again first")

        check(admin.plan(dict.fromkeys(self._positions(admin, action), 0) | wanted))
        # Once more when all is let go of: what holders finish may lie beyond the target.
        changes = admin.set_positions(wanted, timeout_s=SET_TIMEOUT_S, check=check)
        text = f"{count(len(changes), 'position')} of {action.topic} set."
        return {"text": text, "changes": _rows(changes)}

    def _replay(self, shown: Ticket, who: str, begun: Entry) -> Replayed:
        """Put letters back. Raises `InvalidArgument`, and does nothing, if things have moved."""
        topic = shown.action.topic or ""
        now = self._letters.targets(topic, [target.letter for target in shown.targets])
        for was, target in zip(shown.targets, now, strict=True):
            where = f"{topic}/{target.letter[0]}@{target.letter[1]}"
            if target.checksum != was.checksum:
                raise InvalidArgument(f"{where} is another record by now; nothing was replayed")
            if (target.topic, target.partition, target.about) != (
                was.topic,
                was.partition,
                was.about,
            ) or target.end < was.end:
                raise InvalidArgument(
                    f"{target.topic} is not the topic that it was; nothing was replayed"
                )
        if others := self._replayed(topic, now, but=begun) - shown.replayed:
            p, offset = min(others)
            raise InvalidArgument(
                f"{topic}/{p}@{offset} was replayed by somebody else meanwhile; nothing was "
                "replayed: look again first"
            )
        return self._letters.replay(topic, now, who)

    def _positions(self, admin: GroupAdmin, action: Action) -> dict[tuple[str, int], str | int]:
        topic = action.topic or ""
        wanted = None if action.partition is None else [action.partition]
        text = action.to.strip()
        to: str | int = int(text) if text.isdecimal() else text
        return dict.fromkeys(admin.keys_of(topic, wanted), to)

    def _admin(self, action: Action) -> GroupAdmin:
        connection = self._connection
        return GroupAdmin(
            connection.kafka,
            action.group or "",
            topic=connection.topic,
            client_id=CLIENT_ID,
            connect_timeout_s=connection.timeout_s,
            say=logger.warning,
        )

    def _issue(self, shown: Ticket) -> str:
        with self._lock:
            for old in [
                t for t, each in self._tickets.items() if shown.at_s - each.at_s > TICKET_S
            ]:
                del self._tickets[old]
            while len(self._tickets) >= MAX_TICKETS:
                del self._tickets[next(iter(self._tickets))]
            ticket = secrets.token_urlsafe(16)
            self._tickets[ticket] = shown
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
    if action.what == "replay":
        return f"replay of {count(len(action.letters), 'letter')} of {action.topic}"
    where = "" if action.topic is None else f" of {action.topic}"
    if action.partition is not None:
        where += f"/{action.partition}"
    to = f" to {action.to}" if action.what == "set_position" else ""
    return f"{action.what}{where} for group {action.group}{to}"


def _rows(changes: list[Change]) -> list[dict[str, Any]]:
    return [asdict(change) for change in changes]
