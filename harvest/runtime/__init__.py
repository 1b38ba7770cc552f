"""The harvesting process: elected by a claim, it carries out what an algorithm asks for.

In: a configuration. Out: published rows, health, metrics. Read `process` (how it is put together of
`parts`), then `harvester` (which leads shards, one or many, as its `candidacy` is elected), then
`leadership` (carries out actions while a lease is held) and the leader of a mode (`mark_leader`,
`range_leader`, `relay_leader`, and what they share: `marked_rows`, `publisher`). `embedding` is
`harvest.Harvest`, which runs it inside another program.
"""

from marshal_py.printable import escape_logs

escape_logs(("harvest", "harvest.kafka", "harvest.rdkafka"))
