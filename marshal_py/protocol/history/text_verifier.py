"""Replaying a version 1 log and saying what is wrong with it (specs/INTEROP.md §3, §5). No I/O.

Its records carry no epochs, and there are no snapshots, so less can be checked than in version 2.
What can: bytes that are no record, records in a coordination partition that nobody reads for their
topic, owners that were replaced before they had been silent for two intervals, claims whose sender
may have taken them for granted, and clocks that do not agree.
"""

from __future__ import annotations

from typing import Final

from marshal_py.errors import MalformedRecord
from marshal_py.protocol import events as ev
from marshal_py.protocol.history.verifier import Finding
from marshal_py.protocol.messages import decode as decode_msgpack
from marshal_py.protocol.text.codec import TextRecord, coordinating_partition, decode_any
from marshal_py.protocol.text.rationalizer import TextCell, TextState, apply, slack_s

__all__ = ["MEANING", "TextVerifier"]

MEANING: Final = {
    "foreign_record": "bytes that are no record of version 1; Go clients skip them",
    "other_version": "records of version 2 on a topic of version 1: the two kinds of clients do "
    "not see each other, and may hold the same partition",
    "wrong_partition": "a record in a coordination partition that does not decide about its topic",
    "early_takeover": "a heartbeat took a cell whose owner had not been silent for two intervals: "
    "version 1 does not fence, so both may have been at work",
    "in_doubt": "a claim was refused that its sender, by its own clock, may have read as granted",
    "clock": "a sender's clock differs from the others' by more than version 1 can stand",
}
"""What each kind of finding means, in a few words."""

_WARNINGS: Final = frozenset({"foreign_record", "in_doubt", "clock"})
_SHOWN_BYTES: Final = 300


class TextVerifier:
    """Judges one coordination partition of `partitions`, from the first record that is left.

    Feed the records in offset order, then `finish`; `findings` grows as it goes.
    """

    snapshots = 0

    def __init__(self, partition: int, partitions: int, interval_s: int) -> None:
        self.findings: list[Finding] = []
        self.records = 0
        self._partition, self._partitions = partition, partitions
        self._state = TextState(partition, interval_s)
        self._span_s = 2 * interval_s
        self._slack_s = slack_s(interval_s)
        self._latest_s = 0
        """The latest time that any record has carried."""
        self._told: set[tuple[str, ...]] = set()
        """What is reported once: kind and sender, or kind alone."""

    def feed(
        self, offset: int, value: bytes | None, stamp_ms: int, *, create_time: bool = False
    ) -> None:
        """Take the next record. `stamp_ms` is the broker's time, or the record's own."""
        del create_time  # Go's records have no time that the broker knows of
        self.records += 1
        try:
            record = decode_any(value)
        except MalformedRecord:
            self._foreign(offset, value, stamp_ms)
            record = None
        before: TextCell | None = None
        if record is not None:
            self._check_clock(offset, record, stamp_ms, value)
            self._check_place(offset, record, stamp_ms, value)
            key = (record.group_id, record.topic, record.partition)
            before = self._state.cells.get(key)  # type: ignore[assignment]
        heard_s = 0 if before is None else before.heartbeat_s
        events: list[ev.Event] = []
        apply(self._state, offset, value, events)
        for event in events:
            if isinstance(event, ev.Claimed) and record is not None:
                self._check_wait(event, record, heard_s, stamp_ms, value)
            elif isinstance(event, ev.Rejected) and event.reason == "in_doubt":
                what = f"the claim of {event.client_id} on what {event.holder} holds is in doubt"
                self._report("in_doubt", offset, stamp_ms, what, record, value)

    def finish(self) -> list[Finding]:
        """Return all findings in the log's order."""
        self.findings.sort(key=lambda f: f.offset)
        return self.findings

    def _foreign(self, offset: int, value: bytes | None, stamp_ms: int) -> None:
        try:
            decode_msgpack(value)
        except MalformedRecord:
            what = f"{len(value or b'')} bytes that are no record"
            self._report("foreign_record", offset, stamp_ms, what, None, value)
            return
        if self._once("other_version"):
            what = "a record of version 2 (msgpack), the first of its kind in this partition"
            self._report("other_version", offset, stamp_ms, what, None, None)

    def _check_wait(
        self,
        event: ev.Claimed,
        record: TextRecord,
        heard_s: int,
        stamp_ms: int,
        value: bytes | None,
    ) -> None:
        """A record of somebody else makes the sender the owner; was the old one gone by then?"""
        if event.previous_holder in (None, event.client_id) or not heard_s:
            return
        silence_s = record.time_s - heard_s
        if abs(silence_s) < self._span_s:
            what = (
                f"{event.client_id} took it from {event.previous_holder}, whose last heartbeat was "
                f"{silence_s} s old; nobody may before {self._span_s} s"
            )
            self._report("early_takeover", event.offset, stamp_ms, what, record, value)

    def _check_place(
        self, offset: int, record: TextRecord, stamp_ms: int, value: bytes | None
    ) -> None:
        if not record.topic:  # a pause is written everywhere, and names none
            return
        place = coordinating_partition(record.topic, self._partitions)
        if place != self._partition and self._once("wrong_partition", record.topic):
            what = f"coordination partition {place} decides about {record.topic}"
            self._report("wrong_partition", offset, stamp_ms, what, record, value)

    def _check_clock(
        self, offset: int, record: TextRecord, stamp_ms: int, value: bytes | None
    ) -> None:
        """Compare the sender's clock with the broker's, else with those of the others."""
        sender = (record.client_id, record.instance_id)
        own_s, told = record.time_s, ""
        broker_s = stamp_ms // 1000
        if broker_s and abs(own_s - broker_s) > self._slack_s:
            told = f"its record says {own_s - broker_s:+} s against the broker's clock"
        elif self._latest_s - own_s > self._slack_s:
            told = f"its record is {self._latest_s - own_s} s behind what others wrote before"
        self._latest_s = max(self._latest_s, own_s)
        if told and self._once("clock", *sender):
            self._report("clock", offset, stamp_ms, told, record, value)

    def _once(self, *what: str) -> bool:
        if what in self._told:
            return False
        self._told.add(what)
        return True

    def _report(
        self,
        kind: str,
        offset: int,
        stamp_ms: int,
        what: str,
        record: TextRecord | None,
        value: bytes | None,
    ) -> None:
        finding = Finding(
            "warning" if kind in _WARNINGS else "error",
            kind,
            self._partition,
            offset,
            stamp_ms,
            what,
            MEANING[kind],
            record=(value or b"")[:_SHOWN_BYTES].decode(errors="backslashreplace"),
        )
        if record is not None:
            finding.group, finding.client_id = record.group_id, record.client_id
            finding.topic, finding.partition = record.topic or None, record.partition
        self.findings.append(finding)
