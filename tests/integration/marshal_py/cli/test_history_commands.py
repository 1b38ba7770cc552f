"""Commands that look back, and at lag, against a real broker: what they say is what was done."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from marshal_py import Consumer, Marshal
from marshal_py.embedded import EmbeddedKafka
from tests.support.marshal_command import Cli, cli_environment

pytestmark = pytest.mark.kafka


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def claimed_and_killed(kafka: EmbeddedKafka, topic: str, client_id: str) -> None:
    code = (
        "import os; from marshal_py import Marshal\n"
        f"m = Marshal({kafka.bootstrap_servers!r}, group_id='g', client_id={client_id!r}, "
        f"topic={topic!r}, interval_ms=1_000).start()\n"
        "m.claim('orders', 7, timeout_s=60).commit(41, wait=True); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 9


def test_who_held_partition_7_at_a_moment_and_why_it_changed(
    run: Cli, kafka: EmbeddedKafka, made: str, client: Callable[..., Marshal]
) -> None:
    claimed_and_killed(kafka, made, "victim")
    claim = client("heir").claim("orders", 7, timeout_s=60)
    claim.release()

    told = json.loads(run("explain", "g", "orders", "7", "--json").stdout)
    assert [e["kind"] for e in told["history"]] == [
        *("claimed", "held", "taken_over", "held", "released")
    ]
    taken = told["history"][2]
    assert (taken["client_id"], taken["epoch"]) == ("heir", claim.epoch)
    assert taken["silence_ms"] >= 570
    assert "victim (instance" in taken["sentence"]
    assert "has not been heard of again" in taken["sentence"]
    assert told["standing"]["holder"] is None

    between_ms = (told["history"][0]["at_ms"] + taken["at_ms"]) // 2
    then = json.loads(run("explain", "g", "orders", "7", "--at", iso(between_ms), "--json").stdout)[
        "standing"
    ]
    assert (then["holder"], then["position"]) == ("victim", 41)
    text = run("explain", "g", "orders", "7", "--at", iso(between_ms))
    assert text.returncode == 0
    assert "victim held orders/7 of g" in text.stdout
    assert "After that:" in text.stdout
    assert "\x1b" not in text.stdout

    rows = json.loads(run("claims", "--json", "--at", iso(between_ms)).stdout)
    assert [(r["holder"], r["next_offset"]) for r in rows] == [("victim", 41)]
    assert [g["held"] for g in json.loads(run("groups", "--json", "--at", iso(between_ms)).stdout)]
    before = iso(told["history"][0]["at_ms"] - 1)
    assert json.loads(run("claims", "--json", "--at", before).stdout) == []
    assert "nobody has ever claimed it" in run("explain", "g", "orders", "7", "--at", before).stdout

    nobody = run("explain", "g", "orders", "8")
    assert nobody.returncode == 1
    assert "has never claimed orders/8" in nobody.stderr
    assert run("explain", "g", "orders", "7", "--at", "2100-01-01").returncode == 2
    assert run("claims", "--at", "02:13", "--observe", "1").returncode == 2


def iso(ms: int) -> str:
    from marshal_py.admin.formatting import iso_utc

    return iso_utc(ms)


def test_a_trimmed_log_tells_what_is_left(
    run: Cli, kafka: EmbeddedKafka, made: str, client: Callable[..., Marshal]
) -> None:
    a = client("a", interval_ms=60_000)
    claim = a.claim("orders", 7, timeout_s=60)
    began = iso(time.time_ns() // 1_000_000 - 5_000)
    assert run("snapshot").returncode == 0
    assert run("topic", "trim", "--yes").returncode == 0
    claim.release()
    told = json.loads(run("explain", "g", "orders", "7", "--json").stdout)
    assert [e["kind"] for e in told["history"]] == ["held", "released"]
    assert "before the log begins" in told["history"][0]["sentence"]
    gone = run("claims", "--at", began)
    assert gone.returncode == 2
    assert "does not reach back" in gone.stderr


def test_groups_members_and_lag(
    run: Cli,
    kafka: EmbeddedKafka,
    made: str,
    client: Callable[..., Marshal],
    kafka_topic: Callable[..., str],
) -> None:
    orders = kafka_topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for i in range(10):
        producer.produce(orders, str(i), partition=i % 2)
    assert producer.flush(60) == 0
    client("other", group_id="h").claim("elsewhere", 3, timeout_s=60)
    with Consumer(
        kafka.bootstrap_servers,
        group_id="g",
        client_id="c",
        topics=[orders],
        topic=made,
        max_claims=1,
        interval_ms=500,
    ) as consumer:
        messages = [message for message, _ in zip(consumer, range(3), strict=False)]
        held = messages[0].partition()
        assert held is not None
        consumer.commit()
        members = json.loads(run("members", "--json", "-g", "g").stdout)
        assert [(m["client_id"], m["claims"], m["wants"]) for m in members] == [("c", 1, [orders])]
        groups = json.loads(run("groups", "--json").stdout)
        assert [(g["group"], g["members"], g["topics"], g["held"]) for g in groups] == [
            ("g", 1, 1, 1),
            ("h", 1, 1, 1),
        ]
        rows = json.loads(run("lag", "--json").stdout)
        assert [(r["topic"], r["partition"], r["next_offset"]) for r in rows] == [
            (orders, 0, 5),
            (orders, 1, 5),
        ]
        mine, other = rows[held], rows[1 - held]
        assert (mine["holder"], mine["lag"]) == ("c", 5 - mine["position"])
        assert mine["position"] >= 2
        assert (other["holder"], other["claimed"], other["lag"]) == (None, False, None)
        shown = run("lag")
        assert "(never claimed)" in shown.stdout
        assert "held by nobody" in shown.stderr
        assert run("lag", "--max", "100").returncode == 0
        assert run("lag", "--max", "0", "-t", orders).returncode == 1
        assert run("lag", "--max", "4", "-g", "g").returncode == 1, "never claimed: all is behind"
        assert json.loads(run("lag", "--json", "-g", "h").stdout) == []
        for command in (["lag", "--max", "10"], ["claims"], ["members"], ["group", "describe"]):
            unknown = run(*command, *(["-g"] if command[0] != "group" else []), "gg")
            assert unknown.returncode == 2, command
            assert "knows no group 'gg'; did you mean 'g'" in unknown.stderr
            assert unknown.stdout == ""
        nobody = run("lag", "--max", "10", "-t", "nonsense")
        assert (nobody.returncode, "'nonsense'" in nobody.stderr) == (2, True)


def test_verify_finds_nothing_wrong_then_foreign_bytes_then_a_liar(
    run: Cli, kafka: EmbeddedKafka, made: str, client: Callable[..., Marshal]
) -> None:
    from marshal_py.admin.connection import Connection
    from marshal_py.admin.world_reader import read_world
    from marshal_py.client.log_writer import LogWriter

    a = client("a", interval_ms=60_000)
    a.claim_many([("orders", p) for p in range(8)], timeout_s=60)[3].commit(99, wait=True)
    assert run("snapshot").returncode == 0
    done = run("verify", "--json")
    verdict = json.loads(done.stdout)
    assert (done.returncode, verdict["ok"], verdict["findings"]) == (0, True, [])
    assert verdict["records"] > 8
    assert verdict["snapshots"] >= 1
    assert "nothing is wrong" in run("verify").stdout

    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(made, b"\xff", partition=0)
    assert producer.flush(60) == 0
    foreign = run("verify")
    assert foreign.returncode == 0
    assert "foreign_record" in foreign.stdout
    assert run("verify", "--strict").returncode == 1

    found = read_world(Connection.of_servers(kafka.bootstrap_servers, made))
    due = next(
        d for p in range(4) if (d := found.reader.snapshot_now(p)) is not None and d.next_offset > 2
    )
    wrong = found.world.states[due.coordinator]
    next(iter(wrong.cells.values())).next_offset = 4_711
    servers = {"bootstrap.servers": kafka.bootstrap_servers}
    writer = LogWriter(servers, topic=made, snapshot_topic=f"{made}.snapshots", timeout_ms=10_000)
    writer.write_snapshot(due._replace(state=wrong.encode()), 4, "liar")
    assert writer.flush(60) == 0
    lied = run("verify", "--json")
    assert lied.returncode == 1
    findings = {f["kind"]: f for f in json.loads(lied.stdout)["findings"]}
    assert findings["snapshot_differs"]["client_id"] == "liar"
    assert "next_offset is 4711 in it and" in findings["snapshot_differs"]["what"]
    assert findings["snapshot_differs"]["coordinator"] == due.coordinator


def test_tail_around_a_moment_and_by_kind(run: Cli, client: Callable[..., Marshal]) -> None:
    a, b = client("a"), client("b")
    for marshal in (a, b):
        claim = marshal.claim("orders", 0, timeout_s=60)
        marshal.claim("orders", 1, timeout_s=60).release()
        claim.release()
    shown = lines(run("tail", "--json", "-e", "claimed", "-e", "released").stdout)
    assert [e["event"] for e in shown].count("Claimed") == 4
    assert {e["event"] for e in shown} == {"Claimed", "Released"}
    assert lines(run("tail", "--json", "-e", "takeover").stdout) == []
    assert {e["client_id"] for e in lines(run("tail", "--json", "-c", "a").stdout)} == {"a"}
    assert {e["partition"] for e in lines(run("tail", "--json", "-p", "1").stdout)} == {1}

    middle = shown[3]
    around = lines(run("tail", "--json", "--at", middle["time"], "--around", "0ms").stdout)
    assert middle in around
    assert {e["timestamp_ms"] for e in around} == {middle["timestamp_ms"]}
    until = lines(run("tail", "--json", "--since", "0", "--until", middle["time"]).stdout)
    assert middle in until
    assert max(e["timestamp_ms"] for e in until) == middle["timestamp_ms"]
    for wrong in (
        ["--at", "1m", "--since", "2m"],
        ["--since", "1m", "--until", "2m"],
        ["-f", "--until", "1m"],
        ["-e", "nonsense"],
        ["--at", "1m", "--around", "soon"],
    ):
        assert run("tail", *wrong).returncode == 2, wrong


def test_top_shows_what_is_there_and_that_it_moves(
    run: Cli, client: Callable[..., Marshal]
) -> None:
    a = client("a", interval_ms=100)
    a.claim("orders", 0, timeout_s=60).commit(5, wait=True)
    a.leader("night").campaign(10)
    frames = lines(run("top", "--json", "--count", "2", "--every", "0.5").stdout)
    assert [f["members"][0]["client_id"] for f in frames] == ["a", "a"]
    assert frames[0]["records_per_s"] is None
    assert frames[1]["records_per_s"] > 0
    assert [(x["name"], x["leader"]) for x in frames[1]["leaders"]] == [("night", "a")]
    text = run("top", "--count", "1").stdout
    assert "night: a" in text
    assert "no stale claim" in text
    assert "\x1b" not in text


def test_top_on_a_terminal_fits_it_and_leaves_with_ctrl_c(
    kafka: EmbeddedKafka, made: str, client: Callable[..., Marshal]
) -> None:
    a = client("a", interval_ms=100)
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "marshal_py.cli", "top", "--every", "0.2"],
        env=cli_environment(kafka.bootstrap_servers, made) | {"TERM": "xterm-256color"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
    ) as process:
        os.close(follower)
        seen = b""

        def read_until(text: bytes) -> None:
            nonlocal seen
            while text not in seen:
                seen += os.read(leader, 4096)  # raises once the command has ended

        read_until(b"MEMBER")
        a.claim("orders", 1, timeout_s=60)
        read_until(b"orders/1")
        process.send_signal(signal.SIGINT)
        read_until(b"\x1b[?1049l")
        assert process.wait(60) == 0
    assert b"\x1b[?1049h" in seen, "an alternate screen: what was there comes back"
    assert b"Traceback" not in seen
    os.close(leader)
