"""Spark pipelines over the coordination log: the audit, and the claim-gated sources.

In: a SparkSession (`session` gives one) and Kafka. Out: the audit's tables (`audit`, with
`audit_store`, `audit_tables`, `audit_report`), and records of topics that are read under claims,
as a stream (`source`) or in batches (`batch`). What is where, and what holds: specs/AUDIT.md. They
need the extra `spark`: ``pip install 'marshal-py[spark]'``. Nothing here is imported unless it is
asked for. Read `audit` first.
"""

from __future__ import annotations
