"""What a client and a consumer cost that have nothing to do: processor, threads, fetches.

The share of a core is processor time, so that it may be measured on a machine that has other work.
Beside them, as confluent-kafka comes and without us: one consumer, and the four clients of which a
consumer of ours consists (of the log and of the messages, a producer, an admin client).
"""

from __future__ import annotations

import json
import subprocess
import sys

from confluent_kafka.admin import AdminClient, NewTopic

from marshal_py.embedded.kafka import EmbeddedKafka
from tests.benchmarks._idle_process import DATA
from tests.benchmarks._servers import new_topic
from tests.benchmarks.harness import Figure, Options, run, say

KINDS = ("bare consumer", "four bare clients", "client", "iterating consumer", "running consumer")


def measure(options: Options) -> list[Figure]:
    seconds = 5 if options.quick else 30
    figures = []
    with EmbeddedKafka() as kafka:
        topic, servers = new_topic(kafka), kafka.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        for made in admin.create_topics([NewTopic(DATA, 4, 1)]).values():
            made.result()
        for kind in KINDS:
            told = _of(kind, servers, topic, seconds)
            fetches = _of(kind, servers, topic, min(seconds, 10), "--fetches")["fetches"]
            share = 100 * told["share"]
            say(f"{kind}: {share:.2f} %, {told['threads']} threads, {fetches:.1f} fetches/s")
            ours = "bare" not in kind
            figures += [
                Figure(f"{kind}, idle", share, "% of a core", None,
                       "≤ 0.3 %" if ours else "", share <= 0.3 if ours else None),
                Figure(f"{kind}, idle, threads", told["threads"], "threads"),
            ]  # fmt: skip
            if ours:
                figures.append(
                    Figure(f"{kind}, idle, fetches", fetches, "1/s", None, "≤ 2", fetches <= 2.2)
                )
    return figures


def _of(kind: str, servers: str, topic: str, seconds: float, *options: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks._idle_process", kind, servers, topic]
    done = subprocess.run([*command, str(seconds), *options], capture_output=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    run(measure, __doc__)
