"""Leaders in wal mode killed again and again, under load, on real servers.

    python -m tests.wal_kills [--kills 200] [--seed 1] [--source table|message] [--at-least-once]

Two processes of `harvest reap`; the one that leads is killed at a random moment, and another is
started. In the end every committed row is there once, in the order of its key, and none that was
rolled back; at least once, the last of each is. Says how long nobody harvested, in heartbeat
intervals: from a kill until the successor reads the log; and the most memory that a leader had.
Exits with 1 if a row was lost, doubled or out of order.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from harvest.core.wal_options import WalOptions
from harvest.databases.postgres.wal import PostgresWalSource
from marshal_py.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.support.harvest_world import INTERVAL_MS, World, wait_until

_ELECTED = "leader acquired"
_LEADS = "harvesting as leader"
_WANTED = 2.5
"""Intervals; of a takeover that took longer, the successor's log is shown."""


def most_memory_mb(pid: int) -> float:
    """The most memory that a process has had, since it began."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def kill(world: World, kills: int, seed: int) -> tuple[list[float], float]:
    """How long nobody harvested after each kill, in intervals; the most memory of a leader."""
    choose = random.Random(seed)
    gaps, memory_mb = [], 0.0
    living = [world.harvester(), world.harvester()]
    for number in range(kills):
        wait_until(lambda: any(h.said(_LEADS) for h in living), "a leader that reads the log")
        leader = world.leader()
        wait_until(lambda: all(h.said("standing by") or h.said(_LEADS) for h in living), "two")
        time.sleep(choose.uniform(0.0, 2 * INTERVAL_MS / 1000))
        living.remove(leader)
        (successor,) = living
        memory_mb = max(memory_mb, most_memory_mb(leader.process.pid))
        leader.kill()
        killed_s = time.monotonic()
        successor.wait_said(_ELECTED)
        elected = (time.monotonic() - killed_s) * 1000 / INTERVAL_MS
        successor.wait_said(_LEADS)
        gaps.append((time.monotonic() - killed_s) * 1000 / INTERVAL_MS)
        living.append(world.harvester())
        said = f"nobody for {gaps[-1]:.2f} intervals, elected after {elected:.2f}"
        print(f"kill {number + 1}: {said}", flush=True)
        if gaps[-1] > _WANTED:
            print(successor.log.read_text(), flush=True)
    return gaps, memory_mb


def assert_last_in_order(world: World) -> int:
    """At least once: the last of each committed row is in order; how many came again."""
    world.wait_drained()
    repeated = 0
    published = world.published()
    assert published.keys() == world.committed.keys()
    for key, values in published.items():
        last = {value: at for at, value in enumerate(values)}
        repeated += len(values) - len(last)
        in_order = [value for at, value in enumerate(values) if last[value] == at]
        assert in_order == world.committed[key], key
    return repeated


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--source", choices=["table", "message"], default="table")
    parser.add_argument("--at-least-once", action="store_true")
    given = parser.parse_args()
    delivery = "idempotent" if given.at_least_once else "transactional"
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedKafka() as kafka,
        EmbeddedPostgres() as postgres,
    ):
        kafka.create_topic("kills", 3)
        more = f"wal: {{source: {given.source}}}\n"
        servers, database = kafka.bootstrap_servers, postgres.create_database()
        world = World(Path(folder), servers, database, "kills", delivery, mode="wal", more=more)
        with world.opened(kafka, PostgresWalSource(database, "outbox", WalOptions(given.source))):
            with world.writing(pause_s=0.02):
                gaps, memory_mb = kill(world, given.kills, given.seed)
            repeated = 0
            try:
                if given.at_least_once:
                    repeated = assert_last_in_order(world)
                else:
                    world.assert_exactly_once()
            except AssertionError as error:
                print(f"rows were lost, doubled or out of order: {str(error)[:2000]}")
                return 1
            rows = sum(len(values) for values in world.committed.values())
    print(
        f"{given.kills} kills, {rows} rows: 0 lost, 0 out of order, {repeated} doubled; nobody "
        f"harvested for {statistics.median(gaps):.2f} intervals (median), {max(gaps):.2f} at most; "
        f"a leader's memory: {memory_mb:.0f} MB at most"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
