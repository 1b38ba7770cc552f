"""What 10,000 claims of one client cost at an interval of one second: records and CPU."""

from __future__ import annotations

import time

from marshal_py import Marshal
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.benchmarks._servers import new_topic
from tests.benchmarks.harness import Figure, Options, median, run, say

PARTITIONS = 8
INTERVAL_MS = 1_000


def measure(options: Options) -> list[Figure]:
    claims = 500 if options.quick else 10_000
    with EmbeddedKafka() as kafka:
        topic = new_topic(kafka, PARTITIONS)
        settings = {"client_id": "a", "topic": topic, "interval_ms": INTERVAL_MS}
        with Marshal(kafka.bootstrap_servers, group_id="g", **settings) as m:  # type: ignore[arg-type]
            started = time.perf_counter()
            m.claim_many([("data", n) for n in range(claims)], timeout_s=120)
            say(f"{claims:,} claims in {time.perf_counter() - started:.1f} s")
            records, cpu = [], []
            for repeat in range(options.repeats):
                with m.world() as world:
                    before = sum(state.next_offset for state in world.states)
                cpu_before, wall = time.process_time(), time.perf_counter()
                time.sleep(2 if options.quick else 10)  # the measured time itself
                with m.world() as world:
                    after = sum(state.next_offset for state in world.states)
                seconds = time.perf_counter() - wall
                records.append((after - before) / (seconds * 1_000 / INTERVAL_MS))
                cpu.append((time.process_time() - cpu_before) / seconds * 100)
                say(f"repeat {repeat + 1}: {records[-1]:.1f} records, {cpu[-1]:.1f} % of a core")
            held = len(m.claims())
    if held != claims:
        raise RuntimeError(f"only {held} of {claims} claims were held at the end")
    return [
        Figure(
            f"records per interval for {claims:,} claims",
            median(records),
            "records",
            PARTITIONS,
            f"≤ {PARTITIONS}",
            # One interval more or less may begin within the measured time.
            median(records) <= PARTITIONS * 1.1,
        ),
        Figure(
            f"CPU for {claims:,} claims at 1 s",
            median(cpu),
            "% of a core",
            None,
            "≤ 5 %",
            median(cpu) <= 5,
        ),
    ]


if __name__ == "__main__":
    run(measure, __doc__)
