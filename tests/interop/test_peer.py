"""`python -m tests.interop.peer`: the command-line contract, without and with a broker."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.interop.conftest import HB, Stage
from tests.interop.flags import Flags
from tests.support.paths import INTEROP_DATA, ROOT

DATA = INTEROP_DATA
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


def run(
    command: str, lines: list[str], *args: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.interop.peer", command, *args],
        input="".join(line + "\n" for line in lines),
        capture_output=True,
        encoding="utf-8",
        cwd=ROOT,
        timeout=120,
        env=env,
    )


def peer(
    command: str, lines: list[str], *args: str, env: dict[str, str] | None = None
) -> list[str]:
    done = run(command, lines, *args, env=env)
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


@pytest.mark.parametrize("env", [{}, {"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_text_that_is_not_ascii_needs_no_environment(env: dict[str, str]) -> None:
    (vector,) = [v for v in VECTORS["encode"] if "é" in v["bytes_utf8"]][:1]
    line = json.dumps(vector["input"], ensure_ascii=False)
    assert peer("encode", [line], env=env) == [vector["bytes_utf8"]]
    hashes = [v for v in VECTORS["hash"] if not v["topic"].isascii()][:20]
    asked = [{"topic": v["topic"], "now": v["marshal_partitions"]} for v in hashes]
    found = peer("hash-stdin", [json.dumps(a, ensure_ascii=False) for a in asked], env=env)
    assert [json.loads(line)["partition"] for line in found] == [v["partition"] for v in hashes]


def test_input_that_is_none_is_answered_line_by_line() -> None:
    good = base64.b64encode(b"Heartbeat/1/2/i/c/g/t/1/2").decode()
    found = [json.loads(line) for line in peer("decode", ["a", "", good])]
    assert "error" in found[0]
    assert "length" in found[1]["error"]
    assert found[2]["msg"]["offset"] == 2
    # Half a surrogate pair is what JSON can say and UTF-8 cannot: Go reads it as U+FFFD.
    raw = "Heartbeat/1/1000/i/\ud800/g/t/0/3"
    lines = [json.dumps({"op": "msg", "now": 1000, "raw": raw}), '{"op":"state"}']
    (line,) = peer("replay", lines)
    assert json.loads(line)["state"][0]["client_id"] == "\ufffd"


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["nonsense"], "usage"),
        (["consume", "-nothing"], "-nothing"),
        (["consume", "-term", "softly"], "softly"),
        (["observe", "-brokers"], "-brokers"),
    ],
)
def test_wrong_arguments_end_with_a_word_and_a_code(args: list[str], word: str) -> None:
    done = run(args[0], [], *args[1:])
    assert done.returncode != 0
    assert word in done.stderr
    assert "Traceback" not in done.stderr


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


@pytest.mark.kafka
def test_a_missing_topic_ends_the_peer_with_a_word_and_a_code(stage: Stage) -> None:
    args = ["-brokers", stage.brokers, "-log", "no-such-log"]
    for command, more in (
        ("observe", ["-once"]),
        ("consume", ["-client", "c", "-group", "g", "-topics", stage.topic()]),
    ):
        done = run(command, [], *args, *more)
        assert done.returncode == 1
        assert "TopicMissing" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.kafka
def test_signals_are_taken_at_any_time(stage: Stage) -> None:
    topic = stage.topic(partitions=2, messages=30_000)
    peer = stage.py("py", topic, "-greedy")
    peer.expect("start")
    peer.process.send_signal(signal.SIGUSR1)  # while it dials
    peer.expect("claims")
    peer.expect("claim", count=2)
    for n in range(2, 22):  # and while it prints
        peer.process.send_signal(signal.SIGUSR1)
        peer.expect("claims", count=n)
    assert peer.said("claims")[-1]["claims"] == [[topic, 0], [topic, 1]]
    assert peer.terminate() == 0
    assert peer.errors() == ""

    early = stage.py("early", topic)
    early.expect("start")
    assert early.terminate() == 0
    assert [e["ev"] for e in early.events] == ["start", "dialed", "stopping", "stopped"]
