"""Whole clients in virtual time: the real `Marshal`, `Consumer` and `Harvester`, threads and all.

`tests.simulation` drives the protocol's pure parts, a hundred histories a second and more. Here the
product runs as its users run it: driver, assignment, topics, lanes, the loop over messages and
`close`. Only the ground is simulated: threads and locks are of one scheduler (`green`), clocks
are virtual, and confluent-kafka's clients talk to a simulated cluster (`cluster`).

- `consumers`: members that share topics, at least once and at most once;
- `keys`: the same, where they share each partition by the keys of its messages;
- `logs`: the same, where the coordination log is truncated, made anew, read twice, or long;
- `harvesters`: reapers of an outbox, in a simulated database, in mark mode;
- `ranges`: the same in range mode;
- `shards`: several at a time, each with its share of the shards;
- `dead_letters`: in either mode, with rows that cannot be published;
- `sinks`: the same with the real sinks, over a simulated producer (`kafka`).

``python -m tests.simulation.whole --histories 200 --seed 1 --json``.
"""
