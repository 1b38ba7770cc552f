"""What `harvest reconcile --state` costs when no row has arrived, so that all are carried over.

Each job is two runs with one state: the first tells and carries all rows, the second reads them.
Processes and memory as in `spark_scale`; each job runs once, however many repeats are asked for.
"""

from __future__ import annotations

from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.embedded.postgres import EmbeddedPostgres
from tests.benchmarks.harness import Figure, Options, run
from tests.benchmarks.spark_scale import FilledOutbox, growth


def measure(options: Options) -> list[Figure]:
    rows = 20_000 if options.quick else 500_000
    with EmbeddedKafka() as kafka, EmbeddedPostgres() as postgres:
        pair = [FilledOutbox(kafka, postgres, count).carry() for count in (rows, 4 * rows)]
    return growth(f"{4 * rows:,} rows carried over", *pair)


if __name__ == "__main__":
    run(measure, __doc__)
