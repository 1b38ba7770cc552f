"""What happened, out of the log: claims, takeovers, rejections, anomalies, broken rules. Pure.

In: every record of a coordination partition, in order. Out: rows (specs/AUDIT.md) and findings.
The command line, the dashboard and Spark's audit stand on it. Read `partition_history` first: it
puts `tracks` (what is remembered), `anomaly_checks`, `snapshot_checks` and `rows` together;
`text_history` does so for version 1. `verifier` adds `invariants`; `text_verifier` is version 1's.
"""
