"""Members that share one partition by ranges or by keys, killed, suspended, ended and added.

`python -m tests.chaos.sharing --sharing ranges --mode at_most_once --seconds 30 --seed 1`: exit
code 0 when everything held. Each member is a process that writes down each delivery before it goes
on (`tests.chaos.sharing_member`). They are judged by what Kafka has of the messages and of the
log, with the second fold; nothing of the product judges.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mmh3
from confluent_kafka import Producer

from marshal_py.admin.group_admin import GroupAdmin
from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from tests.chaos.rawlog import Record, read_topic
from tests.chaos.recorder import now_ns, read
from tests.support import reference_fold as reference
from tests.support.paths import ROOT

__all__ = ["Result", "judge", "run"]

TOPIC, LOG, GROUP = "work", "__marshal", "g"
INTERVAL_MS = 1_000
MEMBERS = 4
SLOTS = 8
MESSAGES_PER_S = 150
FAULTS = ("kill", "stop", "end", "add", "pause")
PATIENCE_S = 120.0


@dataclass
class Result:
    """What was found. No anomaly means that everything held."""

    anomalies: list[str] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)


class Member:
    """One process, over all its starts."""

    def __init__(self, folder: Path, name: str, settings: dict[str, Any]) -> None:
        self.name = name
        self.history = folder / f"{name}.history"
        self._log = folder / f"{name}.log"
        self._settings = settings | {"client_id": name}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        settings = json.dumps(self._settings)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.sharing_member", str(self.history), settings],
                cwd=ROOT,
                stderr=log,
            )

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> str | None:
        """Wait until it has ended; what was wrong with that."""
        assert self.process is not None
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return f"{self.name} did not end"
        return None if code in (0, -signal.SIGKILL) else f"{self.name} ended with {code}"


class Writer:
    """Writes numbered messages of 20 keys and of none, at a steady rate, until it is stopped."""

    def __init__(self, servers: str) -> None:
        self.acknowledged: set[int] = set()
        self._stopped = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 2}
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for n in itertools.count():
            if self._stopped.wait(1 / MESSAGES_PER_S):
                break
            key = None if n % 7 == 0 else b"k%d" % (n % 20)
            self._producer.produce(
                TOPIC, b"%d" % n, key=key, partition=0, on_delivery=self._delivered
            )
            self._producer.poll(0)
        self._producer.flush(60)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.add(message.offset())

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(90)


class Stage:
    """The members, and what is done to them."""

    def __init__(self, folder: Path, servers: str, sharing: str, mode: str, seed: int) -> None:
        self.fired: Counter[str] = Counter()
        self.hurt: list[tuple[int, int, str]] = []
        """(from, to, member): it was killed, suspended or ended; the group was paused: ""."""
        self.anomalies: list[str] = []
        self.members: list[Member] = []
        self._dice = random.Random(seed)
        self._folder = folder
        self._servers = servers
        self._settings = {"servers": servers, "sharing": sharing, "mode": mode, "seed": seed}

    def add(self) -> Member:
        self.members.append(Member(self._folder, f"m{len(self.members)}", self._settings))
        self.members[-1].start()
        return self.members[-1]

    def hurt_somebody(self) -> None:
        """Make one fault, and heal it."""
        dice, interval_s = self._dice, INTERVAL_MS / 1_000
        least = min(self.fired[fault] for fault in FAULTS)
        fault = dice.choice([fault for fault in FAULTS if self.fired[fault] == least])
        self.fired[fault] += 1
        began, member = now_ns(), dice.choice(self.members)
        if fault == "add":
            self.add()
            return
        if fault == "pause":
            with GroupAdmin(self._servers, GROUP, topic=LOG) as admin:
                admin.pause(60)
                time.sleep(interval_s * dice.uniform(0.5, 2))
                admin.resume()
            self.hurt.append((began, now_ns(), ""))
            return
        if fault == "stop":
            member.signal(signal.SIGSTOP)
            time.sleep(interval_s * dice.uniform(2.2, 4))
            member.signal(signal.SIGCONT)
        else:
            member.signal(signal.SIGKILL if fault == "kill" else signal.SIGTERM)
            self._end(member)
            time.sleep(interval_s * dice.choice((0, 0.3, 3)))
            member.start()
        self.hurt.append((began, now_ns(), member.name))

    def _end(self, member: Member) -> None:
        if (wrong := member.wait()) is not None:
            self.anomalies.append(wrong)

    def close(self) -> None:
        began = now_ns()
        for member in self.members:
            member.signal(signal.SIGTERM)
        for member in self.members:
            self._end(member)
            self.hurt.append((began, now_ns(), member.name))


def run(
    *, sharing: str, mode: str, seconds: float, seed: int, folder: Path | None = None
) -> Result:
    """Make faults for so long, each kind once at least; let everything be done; judge."""
    here = folder or Path(tempfile.mkdtemp(prefix="marshal-sharing-"))
    here.mkdir(parents=True, exist_ok=True)
    with EmbeddedKafka(progress=None) as kafka:
        servers = kafka.bootstrap_servers
        create_topics(servers, topic=LOG, partitions=1)
        kafka.create_topic(TOPIC, 1)
        stage = Stage(here, servers, sharing, mode, seed)
        writer = Writer(servers)
        try:
            for _ in range(MEMBERS):
                stage.add()
            _await(lambda: all(len(read(m.history)) > 20 for m in stage.members), "all work")
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s or any(not stage.fired[fault] for fault in FAULTS):
                stage.hurt_somebody()
                time.sleep(random.Random(seed).uniform(0.2, 1.5))
            writer.stop()
            _await(lambda: not _left(servers, here, sharing, mode), "all is done")
        finally:
            writer.stop()
            stage.close()
        messages = read_topic(servers, TOPIC)[0]
        log = read_topic(servers, LOG)[0]
    histories = {member.name: read(member.history) for member in stage.members}
    result = judge(sharing, mode, histories, log, messages, writer.acknowledged, stage.hurt)
    result.anomalies += stage.anomalies
    result.figures |= {f"fault: {fault}": count for fault, count in stage.fired.items()}
    if folder is None:
        shutil.rmtree(here, ignore_errors=True)
    return result


def _await(condition: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"within {PATIENCE_S:g} s it did not come to this: {what}")
        time.sleep(0.2)


def _left(servers: str, folder: Path, sharing: str, mode: str) -> bool:
    """Whether messages were not delivered yet; at most once, whether any are not claimed."""
    messages = {record.offset: record.key for record in read_topic(servers, TOPIC)[0]}
    if mode == "at_least_once":
        lines = itertools.chain.from_iterable(map(read, folder.glob("*.history")))
        return bool(messages.keys() - {line[2] for line in lines if line[0] == "done"})
    log = _Log(read_topic(servers, LOG)[0])
    if sharing == "ranges":
        claimed: set[int] = set()
        claimed.update(*(range(a, b) for spans in log.claimed.values() for a, b in spans))
        return bool(messages.keys() - claimed)
    reached = {cell: 0 for _, cell in log.claims.values()}
    for epoch, spans in log.claimed.items():
        cell = log.claims[epoch][1]
        reached[cell] = max(reached[cell], *(b for _, b in spans))
    return any(
        offset >= reached.get((f"{TOPIC}/0#{SLOTS}", _slot(key, offset)), 0)
        for offset, key in messages.items()
    )


def _slot(key: bytes | None, offset: int) -> int:
    """The slot of a message (§5.17)."""
    return (offset if key is None else int(mmh3.hash(key, 0, signed=False))) % SLOTS


class _Log:
    """What the log says of claims, by their epochs."""

    def __init__(self, log: list[Record]) -> None:
        self.claims: dict[int, tuple[str, tuple[str, int]]] = {}
        """Of whom, on which cell."""
        self.spans: dict[int, tuple[int, int]] = {}
        """Of ranges, their messages: from the position that they were granted at."""
        self.claimed: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        """Messages that were claimed, at most once."""
        self.kinds: Counter[str] = Counter()
        self.takeovers = 0
        epoch_of: dict[tuple[str, int], int] = {}
        span: tuple[int, int] | None = None
        for event in _events(log):
            kind = event["event"]
            self.kinds[kind] += 1
            if kind == "RangeGranted":
                span = event["start"], event["end"]
            elif kind == "Claimed":
                cell, epoch = (event["topic"], event["partition"]), event["epoch"]
                self.claims[epoch] = event["client_id"], cell
                epoch_of[cell] = epoch
                if span is not None:
                    self.spans[epoch] = span
                span = None
                self.takeovers += event["previous_holder"] is not None
            elif kind == "RangeSplit":
                epoch = epoch_of[f"{event['topic']}/{event['partition']}@{event['start']}", 0]
                first, end = self.spans[epoch]
                self.spans[epoch] = first, min(end, event["at"])
            elif kind == "MessagesClaimed":
                first, _ = self.spans.get(event["epoch"], (0, 0))
                claimed = max(first, event["from_offset"]), event["to_offset"]
                self.claimed[event["epoch"]].append(claimed)


def _events(log: list[Record]) -> list[dict[str, Any]]:
    state = reference.new_state()
    return [
        event for record in log for event in reference.apply(state, record.offset, record.value)
    ]


@dataclass
class _Delivery:
    member: str
    epoch: int
    cell: tuple[str, int]
    offset: int
    before: int
    """When it asked whether it may act."""
    after: int
    """When it had been told so."""
    done: bool = False


def judge(
    sharing: str,
    mode: str,
    histories: dict[str, list[list[Any]]],
    log: list[Record],
    messages: list[Record],
    acknowledged: set[int],
    hurt: list[tuple[int, int, str]],
) -> Result:
    """Compare what the members wrote down with what Kafka has."""
    result = Result()
    wrong = result.anomalies.append
    told = _Log(log)
    by_offset: defaultdict[int, list[_Delivery]] = defaultdict(list)
    for delivery in _deliveries(histories):
        by_offset[delivery.offset].append(delivery)
    existing = {record.offset: record.key for record in messages}
    for offset in sorted(acknowledged - existing.keys()):
        wrong(f"message {offset} was acknowledged to its producer and is not there")
    _entitled(told, existing, by_offset, mode, wrong)
    done = {offset for offset, found in by_offset.items() if any(d.done for d in found)}
    if mode == "at_least_once":
        for offset in sorted(existing.keys() - done):
            wrong(f"message {offset} is lost")
        _exclusive(by_offset, wrong)
        _explained(by_offset, hurt, wrong)
        if sharing == "keys":
            _in_order(by_offset, existing, wrong)
    else:
        for offset, found in by_offset.items():
            if len(found) > 1:
                wrong(f"message {offset} came twice: to {found[0].member} and {found[1].member}")
    result.figures |= {
        "messages": len(existing),
        "delivered": len(by_offset),
        "came again": sum(len(found) - 1 for found in by_offset.values()),
        "not delivered": len(existing.keys() - by_offset.keys()),
        "claims": told.kinds["Claimed"],
        "ranges": told.kinds["RangeGranted"],
        "splits": told.kinds["RangeSplit"],
        "takeovers": told.takeovers,
    }
    return result


def _deliveries(histories: dict[str, list[list[Any]]]) -> list[_Delivery]:
    found = []
    for member, lines in histories.items():
        in_hand: dict[tuple[int, int], _Delivery] = {}
        for line in lines:
            if line[0] == "deliver":
                _, before, after, topic, partition, epoch, offset = line
                delivery = _Delivery(member, epoch, (topic, partition), offset, before, after)
                in_hand[epoch, offset] = delivery
                found.append(delivery)
            elif line[0] == "done":
                in_hand[line[1], line[2]].done = True
    return found


def _entitled(
    log: _Log,
    keys: dict[int, bytes | None],
    by_offset: dict[int, list[_Delivery]],
    mode: str,
    wrong: Any,
) -> None:
    """Each message came under a claim of its holder, within its part; and was claimed, if so."""
    for offset, found in by_offset.items():
        for each in found:
            text = f"{each.member} had message {offset} under epoch {each.epoch}"
            claims = log.claims.get(each.epoch)
            if claims != (each.member, each.cell):
                wrong(f"{text}, which is {claims}")
            first, end = log.spans.get(each.epoch, (0, 1 << 62))
            if not first <= offset < end:
                wrong(f"{text}, which had {first} to {end}")
            if "#" in each.cell[0] and each.cell[1] != _slot(keys.get(offset), offset):
                wrong(f"{text}, of another slot: {each.cell}")
            claimed = log.claimed[each.epoch]
            if mode == "at_most_once" and not any(a <= offset < b for a, b in claimed):
                wrong(f"{text}, which had claimed {claimed}")


def _exclusive(by_offset: dict[int, list[_Delivery]], wrong: Any) -> None:
    """Nobody is told that it may act once somebody with a higher epoch was told so."""
    for offset, found in by_offset.items():
        for early, late in itertools.permutations(found, 2):
            if early.epoch < late.epoch and early.before > late.after:
                wrong(f"message {offset}: {early.member} acted after {late.member}, who came later")


def _explained(
    by_offset: dict[int, list[_Delivery]], hurt: list[tuple[int, int, str]], wrong: Any
) -> None:
    """What comes again was in the hands of somebody to whom something happened."""
    slack_ns = 3 * INTERVAL_MS * 1_000_000
    for offset, found in by_offset.items():
        for each in sorted(found, key=lambda d: d.epoch)[:-1]:
            if not any(
                who in ("", each.member) and began - slack_ns <= each.after <= ended + slack_ns
                for began, ended, who in hurt
            ):
                wrong(f"message {offset} came again, and nothing had happened to {each.member}")


def _in_order(
    by_offset: dict[int, list[_Delivery]], keys: dict[int, bytes | None], wrong: Any
) -> None:
    """By keys: what comes for the first time is the next one of its key."""
    deliveries = sorted(itertools.chain(*by_offset.values()), key=lambda d: (d.epoch, d.before))
    due = {key: sorted(at for at in keys if keys[at] == key) for key in {*keys.values()} - {None}}
    seen: set[int] = set()
    for each in deliveries:
        key = keys.get(each.offset)
        if key is None or each.offset in seen:
            continue
        before = [at for at in due[key] if at < each.offset and at not in seen]
        if before:
            wrong(f"message {each.offset} of {key!r} came before {before[0]}")
        seen.add(each.offset)


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.sharing", description=__doc__)
    parser.add_argument("--sharing", choices=("ranges", "keys"), default="ranges")
    parser.add_argument(
        "--mode", choices=("at_least_once", "at_most_once"), default="at_least_once"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="how long faults are made")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep the histories and logs here")
    options = parser.parse_args()
    result = run(**vars(options))
    print(json.dumps({"anomalies": result.anomalies[:50], **result.figures}, indent=1))
    return 1 if result.anomalies else 0


if __name__ == "__main__":
    sys.exit(main())
