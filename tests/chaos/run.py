"""One run: start, break, heal, collect, judge."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.checker import MESSAGES, Case, Era, judge, left_to_handle
from tests.chaos.faults import (
    CLOCK_FAULTS,
    DISK_FAULTS,
    FAULTS,
    MARIA_FAULTS,
    TRACKS,
    kill,
    kill_one,
    rest_s,
)
from tests.chaos.rawlog import read_topic
from tests.chaos.recorder import now_ns, read
from tests.chaos.stage import Stage, open_stage, wait_until, watch_for_stalls
from tests.support.paths import ROOT

__all__ = ["Result", "run"]

QUIET_BOUND_S = 30.0
DRAIN_BOUND_S = 90.0


@dataclass
class Result:
    """The outcome of a run."""

    seed: int
    not_possible: list[str] = field(default_factory=list)
    """Faults that this machine does not let us make."""
    left_out: list[str] = field(default_factory=list)
    """Faults that were not asked for."""
    fired: Counter[str] = field(default_factory=Counter)
    figures: dict[str, Any] = field(default_factory=dict)
    anomalies: list[str] = field(default_factory=list)
    seconds: float = 0.0
    stalls: int = 0
    restarts: int = 0
    """Harvesters that found a server down when they started, and were started again."""

    @property
    def passed(self) -> bool:
        """Whether everything held, and every fault fired."""
        return not self.anomalies

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "seed": self.seed,
            "passed": self.passed,
            "faults": dict(sorted(self.fired.items())),
            "not_possible": self.not_possible,
            "injections": self.fired.total(),
            "figures": self.figures,
            "anomalies": self.anomalies,
            "seconds": round(self.seconds, 1),
        }

    def as_text(self) -> str:
        """For people."""
        lines = [f"{'fault':<24}fired"]
        lines += [f"{name:<24}{self.fired[name]:>5}" for name in FAULTS]
        lines += [f"{'all':<24}{self.fired.total():>5}", ""]
        lines += [f"{name:<36}{value}" for name, value in self.figures.items()]
        lines += [f"not possible here: {name}" for name in self.not_possible]
        lines += ["", *(f"ANOMALY {text}" for text in self.anomalies)]
        end = "everything held" if self.passed else f"{len(self.anomalies)} anomalies"
        return "\n".join([*lines, f"seed {self.seed}: {end}, {self.seconds:.0f} s"])


def run(
    *,
    seconds: float,
    seed: int,
    folder: Path | None = None,
    sabotage: str = "",
    interval_ms: int = 1_000,
    only: Collection[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Result:
    """Make faults for `seconds` (longer if some fault has not had its turn), then judge.

    `only`: make no other faults than these.
    """
    began_s = time.monotonic()
    result = Result(seed)
    here = folder or Path(tempfile.mkdtemp(prefix="marshal-chaos-"))
    try:
        with open_stage(seed, folder=here, sabotage=sabotage, interval_ms=interval_ms) as stage:
            if not stage.disks:
                result.not_possible += DISK_FAULTS
            if stage.clocks is None:
                result.not_possible += CLOCK_FAULTS
            if stage.maria is None:
                result.not_possible += MARIA_FAULTS
            result.left_out = [name for name in FAULTS if only and name not in only]
            say(f"servers are up after {time.monotonic() - began_s:.0f} s")
            stage.record.write("clock", now_ns(), time.time_ns())
            ended = threading.Event()
            pulse = threading.Thread(target=watch_for_stalls, args=(stage, ended), daemon=True)
            pulse.start()
            for name in stage.names:
                stage.start(name)
            if not wait_until(lambda: _all_act(stage), 60):
                result.anomalies.append("the processes did not begin to work within 60 s")
            say(f"all work after {time.monotonic() - began_s:.0f} s; faults for {seconds:.0f} s")
            _break(stage, seconds, seed, result, say)
            for error in result.anomalies:
                say(error)
            _settle(stage, result, say)
            ended.set()
            pulse.join()
            case = _collect(stage)
            _keep_logs(stage, case)
            result.stalls = stage.stalls
            snapshots = stage.snapshots, stage.started_from_snapshots()
            receiver = stage.receiver
            say("judging")
            verdict = judge(case)
            result.anomalies += verdict.anomalies
            if result.anomalies and folder is not None:
                _keep_data(stage)
        result.figures = {
            **verdict.figures,
            "snapshots": snapshots[0],
            "starts_from_a_snapshot": snapshots[1],
            "harvesters_started_again": result.restarts,
            "stalls_of_the_machine": result.stalls,
            "refused_by_the_destination": receiver.refused,
            "turned_away_by_the_destination": receiver.turned_away,
        }
        if not only:
            _worth(result, sabotage)
    finally:
        if folder is None:
            shutil.rmtree(here, ignore_errors=True)
    result.seconds = time.monotonic() - began_s
    return result


def _all_act(stage: Stage) -> bool:
    config = stage.config
    names = [*config.claimer_names, *config.alo_names, *config.amo_names, *config.runner_names]
    names += config.text_names
    ready = all(any(li[0] == "ready" for li in read(config.history(n))) for n in names)
    with stage.database() as connection:
        (rows,) = connection.execute("SELECT count(*) FROM truth").fetchone() or (0,)
    return ready and rows > 0


def _break(
    stage: Stage, seconds: float, seed: int, result: Result, say: Callable[[str], None]
) -> None:
    end_s = time.monotonic() + seconds
    errors: list[str] = []

    def track(name: str) -> None:
        dice = random.Random(f"{seed}-{name}")
        rounds = 0
        while rounds == 0 or time.monotonic() < end_s:
            not_now = {*result.not_possible, *result.left_out}
            faults = [f for f in TRACKS[name] if f.__name__ not in not_now]
            if not faults:
                return
            dice.shuffle(faults)
            for fault in faults:
                if errors or (rounds and time.monotonic() >= end_s):
                    return
                began = now_ns()
                try:
                    with stage.links_lock if name == "network" else contextlib.nullcontext():
                        whom = fault(stage, dice)
                except Exception as error:
                    errors.append(f"{fault.__name__} could not be made: {error!r}")
                    say(f"  {errors[-1]}")
                    return
                stage.record.write("fault", fault.__name__, began, now_ns(), whom)
                result.fired[fault.__name__] += 1
                say(f"  {fault.__name__}: {whom}")
                stage.wait(rest_s(name, dice))
            rounds += 1

    threads = [threading.Thread(target=track, args=(name,), daemon=True) for name in TRACKS]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            result.restarts += stage.supervise()
            thread.join(0.5)
    if not result.left_out:  # whoever was killed by chance: some begin from a snapshot
        # Those of the clients may have met a link that was cut: an operator has some written, too.
        _ask(stage, "snapshot", stage.config.log)
        dice = random.Random(seed)
        names = stage.config.alo_names, stage.config.amo_names, stage.config.runner_names
        for name in (dice.choice(each) for each in names):
            began = now_ns()
            kill_one(stage, name, dice)
            stage.record.write("fault", kill.__name__, began, now_ns(), name)
    result.anomalies += errors
    result.anomalies += [
        f"{name} never fired"
        for name in FAULTS
        if not result.fired[name] and name not in (*result.not_possible, *result.left_out)
    ]


def _settle(stage: Stage, result: Result, say: Callable[[str], None]) -> None:
    """Heal everything, stop the writers, and wait until all is done that is to be done."""
    config = stage.config
    stage.network.heal()
    for disk in stage.disks.values():
        disk.empty()
    stage.up()
    stage.postgres.start()
    if stage.maria is not None:
        stage.maria.start()
    stage.receiver.mood = "well"
    result.restarts += stage.supervise()
    for name, runs in stage.running().items():
        if name.endswith("~"):
            stage.kill(name)
        elif not runs:
            result.anomalies.append(f"{name} ended by itself\n{stage.said(name)}")
            stage.start(name)
        if not name.endswith("~"):
            stage.resume(name)
    result.anomalies += stage.finish(config.writer_names, 70)
    config.quiet_path.touch()
    cells = {"cells": config.cells, "alo": config.partitions}
    stage.record.write("quiet", now_ns(), cells)
    began_s = time.monotonic()
    # One more message in each partition: what is held can be seen by what is delivered.
    _one_more(config.direct, config.partitions)
    drained = wait_until(lambda: _drained(stage), DRAIN_BOUND_S, 1.0)
    say(f"drained: {drained}, after {time.monotonic() - began_s:.1f} s")
    if not drained:
        result.anomalies.append(f"not all work was done {DRAIN_BOUND_S:.0f} s after the faults")
        for name in stage.names:
            if name.startswith("harvester"):
                stage.tell_threads(name)
    stage.record.write("threads", now_ns(), stage.threads())
    _kill_in_peace(stage)
    rest = [name for name in stage.names if name not in config.writer_names]
    result.anomalies += stage.finish(rest)
    stage.record.write("end", now_ns())


def _kill_in_peace(stage: Stage) -> None:
    """Kill two that hold cells while nothing else is broken: there is a bound for what follows."""
    stage.wait(6)
    for name in stage.config.claimer_names[:2]:
        began = now_ns()
        stage.kill(name)
        stage.wait(4 * stage.interval_s)
        starts = _starts(stage, name)
        stage.start(name)
        # On a busy machine that takes a while; until then SIGTERM would find no handler.
        wait_until(lambda name=name, starts=starts: _starts(stage, name) > starts, 60)
        stage.record.write("fault", "calm_kill", began, now_ns(), name)
        stage.wait(2 * stage.interval_s)


def _starts(stage: Stage, name: str) -> int:
    return sum(line[0] == "ready" for line in read(stage.config.history(name)))


def _one_more(servers: str, partitions: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for topic in MESSAGES:
        for p in range(partitions):
            producer.produce(topic, f"last {p}".encode(), "last", partition=p)
    if producer.flush(30):
        raise RuntimeError("the cluster did not recover")


def _drained(stage: Stage) -> bool:
    """Whether all outboxes are relayed, and the last message of each topic was delivered."""
    config = stage.config
    with stage.database() as connection:
        outboxes = "(SELECT count(*) FROM outbox) + (SELECT count(*) FROM posted)"
        (left,) = connection.execute(f"SELECT {outboxes}").fetchone() or (1,)
        (due,) = connection.execute("SELECT count(*) FROM truth").fetchone() or (0,)
    if left or stage.ask_maria("SELECT 1 FROM outbox LIMIT 1"):
        return False
    for topic in ("ranged", "logged"):
        relayed = read_topic(config.direct, topic, committed=True)
        if sum(map(len, relayed.values())) < due:
            return False
    for topic, names, at in (("alo", config.alo_names, 4), ("text", config.text_names, 3)):
        reached: Counter[int] = Counter()
        for name in names:
            for line in read(config.history(name)):
                if line[0] in ("deliver", "text"):
                    reached[line[at]] = max(reached[line[at]], line[-2] + 1)
        for p, records in read_topic(config.direct, topic).items():
            if reached[p] != records[-1].offset + 1:
                return False
    return not left_to_handle(
        read_topic(config.direct, "run"),
        read_topic(config.direct, "run.dlq"),
        {name: read(config.history(name)) for name in config.runner_names},
    )


def _collect(stage: Stage) -> Case:
    config = stage.config
    with stage.database() as connection:
        truth = connection.execute("SELECT row_id, key, seq FROM truth").fetchall()
    relayed = ["rows", "ranged", "logged", *(["maria"] if stage.maria else [])]
    return Case(
        interval_ms=config.interval_ms,
        histories={name: read(config.history(name)) for name in stage.names},
        director=read(config.history("director")),
        log=read_topic(config.direct, config.log),
        findings=_verify(stage, config.log),
        claims=[*stage.lost, Era("", now_ns(), read_topic(config.direct, config.claims_log))],
        claims_findings=_verify(stage, config.claims_log),
        topics={
            "alo": read_topic(config.direct, "alo"),
            "amo": read_topic(config.direct, "amo"),
            "run": read_topic(config.direct, "run"),
            "run.dlq": read_topic(config.direct, "run.dlq"),
            "text": read_topic(config.direct, "text"),
            **{name: read_topic(config.direct, name, committed=True) for name in relayed},
        },
        truth=[(row, key, seq) for row, key, seq in truth],
        maria_truth=[(row, key, seq) for row, key, seq in stage.ask_maria("SELECT * FROM truth")],
        received=stage.receiver.received,
        text_log=read_topic(config.direct, config.text_log),
        quiet_bound_s=QUIET_BOUND_S,
    )


def _keep_logs(stage: Stage, case: Case) -> None:
    """Write the coordination logs as the brokers have them, for whoever wants to judge them."""
    config = stage.config
    logs = [("marshal", case.log), ("text", case.text_log)]
    logs += [(f"claims-{number}", era.log) for number, era in enumerate(case.claims)]
    for name, log in logs:
        with (Path(config.folder) / f"{name}.log.jsonl").open("w") as file:
            for p, records in sorted(log.items()):
                for r in records:
                    value = r.value.hex() if r.value is not None else None
                    line = {"partition": p, "offset": r.offset, "at_ms": r.at_ms, "value": value}
                    print(json.dumps(line), file=file)


def _keep_data(stage: Stage) -> None:
    """Copy what the brokers have of rows, of transactions and of checkpoints; MariaDB's statements.

    `kafka-dump-log` shows of each record whose it is, and what became of its transaction.
    """
    if (statements := stage.maria_statements) is not None:
        shutil.copy(statements, stage.config.folder)
    wanted = ("rows", "ranged", "logged", "maria", "__consumer_offsets", "__transaction_state")
    for broker in range(3):
        for topic in wanted:
            for part in stage.data_of(broker).glob(f"{topic}-[0-9]*"):
                kept = Path(stage.config.folder) / f"data-of-broker-{broker}" / part.name
                shutil.copytree(part, kept)


def _verify(stage: Stage, topic: str) -> list[dict[str, Any]]:
    """What `marshal verify --strict` says of the log, as an operator would run it."""
    done = _ask(stage, "verify", topic, "--strict")
    found = json.loads(done)
    (Path(stage.config.folder) / f"verify{topic}.json").write_text(done)
    stage.snapshots += found["snapshots"]
    findings: list[dict[str, Any]] = found["findings"]
    return findings


def _ask(stage: Stage, command: str, topic: str, *flags: str) -> str:
    """Run a command of ours as an operator would; return what it printed, findings included."""
    where = ["-b", stage.config.direct, "--topic", topic, "--timeout", "60", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "marshal_py.cli", command, *flags, *where],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode not in (0, 1) or not done.stdout:
        raise RuntimeError(f"marshal {command} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def _worth(result: Result, sabotage: str) -> None:
    """A run in which nothing happened shows nothing."""
    for name in (
        "actions",
        "tenures",
        "alo_delivered",
        "amo_delivered",
        "run_handled",
        "run_retried",
        "run_dead_letters",
        "rows_relayed",
        "ranged_relayed",
        "logged_relayed",
        "posted",
        *([] if set(MARIA_FAULTS) <= set(result.not_possible) else ["maria_relayed"]),
        "text_delivered",
        "commits_failed",
        "takeovers_in_the_log",
        "snapshots",
        "starts_from_a_snapshot",
    ):
        if not result.figures.get(name):
            result.anomalies.append(f"nothing was tested: {name} is 0")
    if not result.figures.get("takeovers_after_kill") and not sabotage:
        result.anomalies.append("nothing was tested: nobody was killed while it held anything")
    bound = result.figures.get("takeovers_with_bound") or result.stalls
    if not bound and not sabotage:
        result.anomalies.append("nothing was tested: no take-over had a bound")
