"""The harvesting algorithms and what they are made of. Pure: no I/O, thread, clock or randomness.

In: events (rows were read, a delivery was settled). Out: actions (read, mark, send, purge). Read
`mark`, `range` or `relay` (specs/HARVEST.md, specs/RELAYER.md); `interfaces` says what a database
and a sink must be able to do. `harvest.runtime` carries the actions out.
"""
