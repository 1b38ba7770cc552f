"""The kinds of anomalies that the audit reports, what each means, and the limits that decide.

An anomaly is something that breaks an invariant, that a correct client would not write, or that a
wrong configuration shows. Races that the protocol decides by itself (two claims at once) are none:
they are rejections.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

__all__ = ["KINDS", "MEANING", "Kind"]

Kind: TypeAlias = Literal[
    "foreign_record",
    "offset_repeated",
    "wrong_partition",
    "foreign_sender",
    "sequence",
    "appended_twice",
    "duplicate_client_id",
    "early_takeover",
    "late_heartbeat",
    "clock_drift",
    "flapping",
    "zombie",
    "impossible_epoch",
    "impossible_version",
    "position_went_back",
    "claimed_not_ahead",
    "snapshot_differs",
    "snapshot_damaged",
    "log_hole",
    "create_time",
    "broker_clock",
    "wrong_genesis",
    "second_genesis",
    "level",
]

KINDS: Final[tuple[str, ...]] = get_args(Kind)

MEANING: Final[dict[str, str]] = {
    "foreign_record": "bytes that are no record of this protocol, or of a later version of it",
    "offset_repeated": "an offset that had been read came again",
    "wrong_partition": "a record in a coordination partition that is not that of its group",
    "foreign_sender": "a record was accepted under an epoch that another client had won",
    "sequence": "one instance wrote two records with the same number",
    "appended_twice": "a producer that had given up a record appended the ones around it again",
    "duplicate_client_id": "two live processes use the same client_id in one group",
    "early_takeover": "a claim was taken before its holder had been silent for two intervals",
    "late_heartbeat": "a holder's heartbeat came more than two intervals after the one before",
    "clock_drift": "heartbeats come slower than their declared interval, and steadily so",
    "flapping": "a claim goes from client to client in quick succession",
    "zombie": "a client beats on for a claim that the log said was lost",
    "impossible_epoch": "a record names an epoch that no claim of its cell has had",
    "impossible_version": "a claim expects a version that its cell has not had",
    "position_went_back": "a holder reported a lower position than before",
    "claimed_not_ahead": "a holder claims messages that were claimed, and handed out, before",
    "snapshot_differs": "a snapshot is not the state that the log gives",
    "snapshot_damaged": "a record of the snapshot topic cannot be read",
    "log_hole": "records are gone that no snapshot covers",
    "create_time": "records carry their senders' time instead of the broker's",
    "broker_clock": "broker timestamps go back by more than the allowed skew",
    "wrong_genesis": "the log's genesis speaks of another number of partitions than it has",
    "second_genesis": "somebody took the log for a new one, and would have given it an identity",
    "level": "a client beats in a group whose level it cannot follow",
}
"""What each kind means, in a few words."""

CLOCK_SKEW_MS: Final = 1_000
"""How far broker timestamps may go back between two records (the default skew of §5.3)."""

FLAPPING_CHANGES: Final = 6
FLAPPING_INTERVALS: Final = 12
"""So many changes of client within so many heartbeat intervals are flapping."""

FOUNDING_MS: Final = 10_000
"""Clients that start together on a new log each send a genesis; one so late was not on its way."""

DRIFT_GAPS: Final = 20
"""A window of so many gaps between heartbeats is looked at together."""

DRIFT_RATE: Final = 1.05
"""The default margin, a tenth of the interval, is used up by a clock that is 5 % slow (§5.4)."""

DRIFT_MS: Final = 5
"""What a gap may be longer for other reasons than the clock: scheduling, the network."""

ZOMBIE_BEATS: Final = 3
"""Rejected heartbeats for one lost claim: one or two may have been on their way."""

COPIES: Final = 48
"""So many of an instance's last 63 records may have been appended twice; copies in a row count as
one. A producer that gives up a record sends again what is in flight, however much, in one go; two
processes with one count repeat each record by itself."""

OLDER_RECORDS: Final = 3
"""Records of an instance after the first of a newer one: one or two may have been on their way."""

MANY_INSTANCES: Final = 10_000
"""Beyond so many instances in one coordination partition, silent ones are forgotten."""
