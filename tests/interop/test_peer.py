"""`python -m tests.interop.peer`: the command-line contract, without and with a broker."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import HB, Stage
from tests.interop.flags import Flags
from tests.interop.processes import ROOT

DATA = Path(__file__).parent / "data"
VECTORS: dict[str, Any] = json.loads((DATA / "vectors.json").read_text())
HISTORIES: list[dict[str, Any]] = [
    json.loads(line) for line in (DATA / "states.jsonl").read_text().splitlines()
]
FIELDS = {
    "group",
    "topic",
    "partition",
    "marshal_partition",
    "instance_id",
    "client_id",
    "last_release",
    "last_heartbeat",
    "current_offset",
    "claimed",
}


def peer(command: str, lines: list[str], *args: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.interop.peer", command, *args],
        input="".join(line + "\n" for line in lines),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_hash_stdin() -> None:
    found = peer(
        "hash-stdin",
        [
            json.dumps({"topic": v["topic"], "now": v["marshal_partitions"]})
            for v in VECTORS["hash"]
        ],
    )
    assert [json.loads(line)["partition"] for line in found] == [
        v["partition"] for v in VECTORS["hash"]
    ]


def test_encode() -> None:
    found = peer("encode", [json.dumps(v["input"]) for v in VECTORS["encode"]])
    assert found == [v["bytes_utf8"] for v in VECTORS["encode"]]


def test_decode() -> None:
    found = peer(
        "decode",
        [base64.b64encode(bytes.fromhex(v["raw_hex"])).decode() for v in VECTORS["decode"]],
    )
    expected = [
        {"error": v["error"]} if v["go"] is None else {"msg": v["go"]} for v in VECTORS["decode"]
    ]
    assert [json.loads(line) for line in found] == expected


def replayed(histories: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    lines = []
    for history in histories:
        lines.append('{"op":"reset"}')
        lines += [
            json.dumps({"op": "msg", "now": now, "raw": raw}) for now, raw in history["messages"]
        ]
        lines += [json.dumps({"op": "now", "now": history["query_now"]}), '{"op":"state"}']
    return [json.loads(line)["state"] for line in peer("replay", lines)]


def test_replay_shows_the_cells_that_go_shows() -> None:
    states = replayed(HISTORIES)
    assert len(states) == len(HISTORIES)
    equal = 0
    for state, history in zip(states, HISTORIES, strict=True):
        assert all(set(cell) == FIELDS for cell in state)
        expected = [{k: cell[k] for k in FIELDS} for cell in history["expect"]]

        def key(cell: dict[str, Any]) -> tuple[str, str, int]:
            return cell["group"], cell["topic"], cell["partition"]

        assert sorted(map(key, state)) == sorted(map(key, expected))
        same = sorted(state, key=key) == sorted(expected, key=key)
        runs = all(now == int(raw.split("/")[2]) for now, raw in history["messages"])
        assert same or not runs
        equal += same
    assert equal >= 120  # of 150; test_text_fold says what the others are


def test_replay_takes_hostile_records_as_they_come() -> None:
    raws = [
        "Heartbeat/1/1000/i/c/g/t/-1/3",
        "Heartbeat/1/1000/i/c/g/t/50000000/3",
        "banana",
        "",
        "ReleaseGroup/0/1000/i/adm/g//0/2000",
    ]
    lines = [json.dumps({"op": "msg", "now": 1000, "raw": raw}) for raw in raws]
    (line,) = peer("replay", [*lines, '{"op":"state"}'])
    (cell,) = json.loads(line)["state"]
    assert (cell["partition"], cell["current_offset"], cell["claimed"]) == (50_000_000, 3, True)


def test_flags_are_read_as_go_reads_them() -> None:
    flags = Flags(
        ["-a", "x", "--b=y", "-on", "-off=false", "-d", "1m1.5s"],
        {"a": "", "b": "", "on": False, "off": True, "d": "", "z": "7"},
    )
    assert (flags.text("a"), flags.text("b"), flags.number("z")) == ("x", "y", 7)
    assert (flags.flag("on"), flags.flag("off"), flags.seconds("d")) == (True, False, 61.5)
    with pytest.raises(SystemExit):
        Flags(["-nothing"], {})


@pytest.mark.kafka
def test_observe_shows_the_world_that_go_sees(stage: Stage) -> None:
    topic = stage.topic(partitions=2, messages=3)
    go = stage.go("go", topic, "-quiet", "-greedy")
    go.expect("claim", count=2)
    go.expect("first_message")
    time.sleep(HB)  # a heartbeat of each claim
    args = ["-brokers", stage.brokers, "-log", stage.log, "-once", "-only-group", stage.group]
    (line,) = peer("observe", [], *args)
    world = json.loads(line)
    assert world["ev"] == "world"
    assert [(c["topic"], c["partition"], c["client_id"]) for c in world["cells"]] == [
        (topic, 0, "go"),
        (topic, 1, "go"),
    ]
    for cell in world["cells"]:
        assert set(cell) == FIELDS
        assert cell["claimed"]
        assert cell["current_offset"] == 3
        assert abs(time.time() - cell["last_heartbeat"]) < 3 * HB
