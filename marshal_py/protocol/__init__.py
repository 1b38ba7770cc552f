"""The protocol: what the records mean, who may claim what, and what happened. Pure.

In: the bytes of the coordination topic with their offsets and times, and what the user wants. Out:
the state of the world, records to append, rows of history. No I/O, no thread, no clock, no
randomness: whoever drives it brings them (specs/PROTOCOL.md).

Read `messages` (the records), then `rationalizer` (the fold), then `claimant` (claims and leases
of one client): `claim_states` is the table of its states, `holding` one claim of it, and `timers`,
`heartbeat_schedule`, `unread_appends` and `cold_start` are its parts. `world` answers questions
about the state; `balance` says who should hold what, of `shares`; `snapshots` shortens replays;
`text` is version 1, as Go Marshal speaks it; `history` turns the log into claims, takeovers and
anomalies.
"""
