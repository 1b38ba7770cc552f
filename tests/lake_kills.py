"""Runs of `marshal lake` that are killed, or overlap; in the end the tables are compared.

    python -m tests.lake_kills [--kills 20] [--seed 1] [--s3] [--executors]

Before each run the log, the published topic and the outbox's archive grow; some rows are lost,
come twice or late, or have no row in the archive, or late. A run is killed (SIGKILL, the JVM with
it) at a random moment of its work; of three, one has another run beside it, and every other one a
`harvest lake`. In the end one of each lives, and every table must have the rows of a lake that was
written by one alone, and say of the outbox what was done to it. Exits with 1 if one has not. With
`--s3` the lake is in a store that speaks S3 (moto, which `nox -s object_store` installs). With
`--executors` each run has two executors in processes of their own, one of which is killed at a
random moment as well; half of the runs must then come to their end without it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Collection
from pathlib import Path
from typing import Any

from harvest.spark.lake import add_archive
from marshal_py.cli.exit_codes import FINDING
from marshal_py.embedded import EmbeddedKafka
from marshal_py.spark.lake.run import run_lake
from marshal_py.spark.lake.tables import LAKE_TABLES, Lake
from marshal_py.spark.session import spark_session
from tests.spark.lake_world import DAY, OUTBOX, Traffic, World
from tests.support.s3 import BUCKET, s3_settings
from tests.support.spark_commands import EXECUTOR, QUICK, environment_for_spark
from tests.unit.marshal_py.protocol.history.test_partition_history import Script, life

PATIENCE_S = 600.0
BEGIN = "reading"
"""How the first line begins that a run says when it works."""
_EXECUTORS = ["--master", "local-cluster[2,1,1024]"]
_NOT_COMPARED = {"gold.runs", "bronze.outbox_looks", "silver.fold"}
"""Each run has its row; the fold's state has the order in which it learned of things."""
_MOMENTS = {"gold.findings": ("found_at", "expires_on")}
_TOMORROW = 8_640_000
"""The id of a row of the day after: all rows of the day have been looked for."""


class Run:
    """A command as a process of its own. `working`: `lake run` has begun to work, or has ended."""

    def __init__(
        self, command: list[str], environment: dict[str, str], program: str = "marshal_py"
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{program}.cli", *command],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.working = threading.Event()
        self.said: deque[str] = deque(maxlen=30)
        """The last lines of its standard error."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said.append(line)
            if line.startswith(BEGIN):
                self.working.set()
        self.working.set()

    def wait(self, timeout_s: float) -> int:
        """Return its exit code. Raises `subprocess.TimeoutExpired`."""
        return self._process.wait(timeout_s)

    def kill_executor(self, choose: random.Random) -> bool:
        """Kill one of its executors. Return whether there was one."""
        executors = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                ours = os.getpgid(int(process.name)) == self._process.pid
                if ours and EXECUTOR in (process / "cmdline").read_bytes():
                    executors.append(int(process.name))
        if not executors:
            return False
        try:
            os.kill(choose.choice(sorted(executors)), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> int:
        """Kill it, and the JVM that it started, and return its exit code."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        self._reader.join()
        return code


class Outbox:
    """Rows, and what becomes of them."""

    def __init__(self, traffic: Traffic, choose: random.Random) -> None:
        self._traffic, self._choose = traffic, choose
        self._next = 0
        self._unpublished: list[int] = []
        self._unarchived = [_TOMORROW]
        self._archived: set[int] = set()
        self._published: Counter[int] = Counter()
        self.late: set[int] = set()
        """Ids of those whose record, or row, came later: they may have been a finding."""

    def command(self) -> list[str]:
        """The words of `harvest` for a look for rows."""
        archive = str(self._traffic.at / "archive")
        words = ["lake", "--lake", self._traffic.lake.place, "--outbox", OUTBOX]
        return [*words, "--parquet", archive]

    def grow(self) -> None:
        """More rows, and those that were late."""
        late, self._unpublished = self._unpublished, []
        archive, self._unarchived = self._unarchived, []
        publish: list[int] = []
        count = self._choose.randrange(1, 50)
        for id in range(self._next, self._next + count):
            fate = self._choose.choices(
                ("arrives", "lost", "twice", "late", "archived late", "not archived"),
                (10, 1, 1, 1, 1, 1),
            )[0]
            if fate == "late":
                self._unpublished.append(id)
            elif fate != "lost":
                publish += [id] * (2 if fate == "twice" else 1)
            if fate == "archived late":
                self._unarchived.append(id)
            elif fate != "not archived":
                archive.append(id)
        self._next += count
        self.late |= {*self._unpublished, *self._unarchived}
        self._traffic.publish(*publish)
        self._traffic.publish(*late, days_later=self._choose.randrange(2))
        if archive:
            self._traffic.archive(archive)
        self._published.update(publish + late)
        self._archived |= {*archive} - {_TOMORROW}

    def counts(self) -> tuple[int, ...]:
        """What gold has to say of the day: `COUNTS`."""
        published, archived = self._published.keys(), self._archived
        records = self._published.total()
        return (
            *(len(archived), len(archived & published), records, len(archived - published), 0),
            *(len(published - archived), records - len(published), 0),
        )


COUNTS = ("rows", "delivered", "records", "lost", "pending", "unexpected", "duplicated", "altered")


def grow(traffic: Traffic, script: Script) -> None:
    """More of the log."""
    since = len(script.records)
    life(script)
    script.wait(2_500)
    traffic.coordinate(script, since=since)


def tables(world: World, place: str, late: Collection[int]) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of a lake, without the moments at which it came to them, nor what held for a while:
    findings of rows whose other half came `late`."""
    lake, found = Lake.at(place), {}
    for table in LAKE_TABLES.keys() - _NOT_COMPARED:
        frame = lake.frame(world.spark, table).drop(*_MOMENTS.get(table, ()))
        rows = [row for row in frame.collect() if table != "gold.findings" or row["id"] not in late]
        found[table] = sorted((tuple(row) for row in rows), key=repr)
    return found


def main() -> int:
    """Kill as often as is asked for, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--executors", action="store_true")
    asked = parser.parse_args()
    choose = random.Random(asked.seed)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        kafka = stack.enter_context(EmbeddedKafka())
        settings = stack.enter_context(s3_settings()) if asked.s3 else {}
        environment = environment_for_spark(settings, Path(folder))
        forever = {"retention.ms": "-1"}
        kafka.create_topic("log", 1, config=forever)
        kafka.create_topic("log.snapshots", 1)
        kafka.create_topic("t", 1, config=forever)
        # The session of the comparison is started last: it would take the memory of the runs.
        where = (kafka.bootstrap_servers, "log", "t", Path(folder))
        traffic = Traffic(*where)
        if asked.s3:
            traffic.lake = Lake.at(f"s3a://{BUCKET}/lake")
        command = traffic.command() + (_EXECUTORS if asked.executors else [])
        outbox = Outbox(traffic, choose)
        script, longest_s = Script(), 60.0
        killed = executors = 0
        for number in range(asked.kills):
            grow(traffic, script)
            outbox.grow()
            runs = [Run(command, environment)]
            if choose.random() < 0.33:
                runs.append(Run(command, environment))
            if choose.random() < 0.5:
                runs.append(Run(outbox.command(), environment, "harvest"))
            runs[0].working.wait()
            began, patience_s = time.monotonic(), choose.uniform(0.0, 1.2 * longest_s)
            goes_on = False
            if asked.executors:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    runs[0].wait(choose.uniform(0.0, longest_s))
                executors += runs[0].kill_executor(choose)
                goes_on = choose.random() < 0.5
            with contextlib.suppress(subprocess.TimeoutExpired):
                runs[0].wait(PATIENCE_S if goes_on else patience_s)
                longest_s = time.monotonic() - began
            worked_s = time.monotonic() - began
            codes = [each.kill() for each in runs]
            killed += codes.count(-signal.SIGKILL)
            print(f"run {number + 1}: after {worked_s:.1f} s of work: {codes}", flush=True)
            if goes_on and len(runs) == 1 and codes[0] not in (0, FINDING):
                print(f"it did not outlive an executor:\n{''.join(runs[0].said)}", flush=True)
                return 1
        for words, program, wanted_codes in (
            (outbox.command(), "harvest", (0,)),
            (command, "marshal_py", (0, FINDING)),
        ):
            last = Run(words, environment, program)
            code = last.wait(PATIENCE_S)
            if code not in wanted_codes:
                print(f"the last {program} ended with {code}:\n{''.join(last.said)}", flush=True)
                return 1
        spark = spark_session(
            "lake kills", master="local[2]", delta=True, s3=asked.s3, settings=QUICK | settings
        )
        world = World(spark, *where)
        oracle = str(Path(folder) / "oracle")
        add_archive(world.spark, oracle, OUTBOX, str(traffic.at / "archive"))
        run_lake(world.spark, world.servers, oracle, [DAY], world.settings)
        found, wanted = (
            tables(world, place, outbox.late) for place in (traffic.lake.place, oracle)
        )
        of_day = Lake.at(oracle).frame(spark, "gold.outboxes").filter(f"day = DATE '{DAY}'")
        said = [tuple(row) for row in of_day.select(*COUNTS).collect()]
        if said != [outbox.counts()]:
            print(f"of the outbox gold says {said} ({COUNTS}), not {outbox.counts()}", flush=True)
            return 1
        wrong = 0
        for table in sorted(wanted):
            different = len(set(map(repr, found[table])) ^ set(map(repr, wanted[table])))
            different += abs(len(found[table]) - len(wanted[table]))
            wrong += different
            print(f"{table}: {len(wanted[table])} rows, {different} different", flush=True)
    print(f"{killed} processes killed, {executors} executors, {wrong} rows different", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
