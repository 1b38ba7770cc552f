"""The harvesting process: elected by a claim, it carries out what an algorithm asks for.

In: a configuration. Out: published rows, health, metrics. Read `process` (how it is put together),
then `harvester` (election after election), then `leadership` and the leader of a mode
(`mark_leader`, `range_leader`, `relay_leader`). `embedding` runs it inside another program;
`replay` publishes rows once more.
"""
