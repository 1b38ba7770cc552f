"""The commands against a real broker, as processes of their own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from marshal_py import Marshal
from marshal_py.admin.connection import Connection
from marshal_py.admin.world_reader import read_world
from marshal_py.embedded import EmbeddedKafka
from tests.support.marshal_command import Cli
from tests.support.marshal_command import cli_environment as _environment

pytestmark = pytest.mark.kafka


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# Topics


def test_topic_create_says_what_it_chose_and_why(cli: Cli, topic: str) -> None:
    first = cli("topic", "create", "--partitions", "3")
    assert first.returncode == 0, first.stderr
    assert f"created {topic}\n" in first.stdout
    assert "retention.ms" in first.stdout
    assert "marshal topic trim" in first.stdout
    again = cli("topic", "create", "--json")
    assert again.returncode == 0, again.stdout
    found = json.loads(again.stdout)
    assert [(t["created"], t["partitions"], t["differences"]) for t in found] == [
        (False, 3, []),
        (False, 3, []),
    ]


def test_topic_create_shows_in_what_an_existing_topic_is_not_sound(
    cli: Cli, kafka: EmbeddedKafka, topic: str
) -> None:
    admin = kafka.admin()
    admin.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "1000"})])[topic].result()
    found = cli("topic", "create", "--json")
    assert found.returncode == 1, found.stderr
    coordination, snapshots = json.loads(found.stdout)
    differences = {d["setting"]: (d["found"], d["sound"]) for d in coordination["differences"]}
    assert differences == {
        "retention.ms": ("1000", "-1"),
        "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    }
    assert snapshots["created"]
    assert snapshots["partitions"] == 2, "as many as the coordination topic has"
    text = cli("topic", "create").stdout
    assert "LogAppendTime" in text
    assert "left as it is" in text


def test_topic_option_names_the_coordination_topic(cli: Cli, topic: str) -> None:
    name = f"{topic}.other"
    assert cli("topic", "create", "--topic", name, "-p", "1").returncode == 0
    status = json.loads(cli("--topic", name, "status", "--json").stdout)
    assert (status["topic"], status["partitions"]) == (name, 1)


# Looking


def test_a_missing_topic_is_one_line_and_says_what_to_run(cli: Cli) -> None:
    found = cli("status")
    assert found.returncode == 3
    assert "marshal topic create" in found.stderr
    assert len(found.stderr.splitlines()) == 1
    assert found.stdout == ""


def test_claims_and_status(cli: Cli, client: Callable[..., Marshal]) -> None:
    a, b = client("a/1"), client("b", group_id="h")
    claims = a.claim_many([("orders", p) for p in range(3)], timeout_s=60)
    claims[0].commit(17, wait=True)
    assert claims[1].claim_messages(40)
    claims[2].release()
    leadership = b.leader("night").campaign(10)

    rows = json.loads(cli("claims", "--json").stdout)
    assert [(r["group"], r["topic"], r["partition"], r["holder"]) for r in rows] == [
        ("g", "orders", 0, "a/1"),
        ("g", "orders", 1, "a/1"),
        ("g", "orders", 2, None),
        ("h", "leader:night", 0, "b"),
    ]
    assert [(r["next_offset"], r["claimed_offset"]) for r in rows[:2]] == [(17, -1), (-1, 40)]
    assert rows[0]["epoch"] == claims[0].epoch
    assert rows[0]["liveness"] != "stale"
    assert rows[0]["measured_by"] == "timestamps"
    assert rows[2]["liveness"] is None

    assert len(json.loads(cli("claims", "--json", "--group", "h").stdout)) == 1
    assert len(json.loads(cli("claims", "--json", "--topic", "orders", "--held").stdout)) == 2
    table = cli("claims", "-g", "g").stdout
    assert table.splitlines()[0].split()[:4] == ["GROUP", "TOPIC", "PARTITION", "HOLDER"]
    assert "\x1b" not in table
    assert "(free)" in table

    status = json.loads(cli("status", "--json").stdout)
    assert [(g["group"], g["members"], g["held"], g["free"]) for g in status["groups"]] == [
        ("g", 1, 2, 1),
        ("h", 1, 1, 0),
    ]
    assert [(m["client_id"], m["claims"]) for m in status["members"]] == [("a/1", 2), ("b", 1)]
    assert [(x["name"], x["leader"], x["epoch"]) for x in status["leaders"]] == [
        ("night", "b", leadership.epoch)
    ]
    text = cli("status").stdout
    assert "night" in text
    assert "no snapshots" in text


def test_a_dead_holder_is_stale_by_timestamps_and_by_observing(
    cli: Cli, kafka: EmbeddedKafka, made: str
) -> None:
    code = (
        "import os, sys; from marshal_py import Marshal\n"
        f"m = Marshal({kafka.bootstrap_servers!r}, group_id='g', client_id='dead', "
        f"topic={made!r}, interval_ms=1_000).start()\n"
        "m.claim('t', 0, timeout_s=60); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 9
    connection = Connection.of_servers(kafka.bootstrap_servers, made)
    deadline = time.monotonic() + 120
    while True:  # nobody tells of silence: look until there is enough of it
        found = read_world(connection)
        (coordinator, key, cell) = next(found.world.cells("g"))
        silence = found.cell_silence(coordinator, key, cell)
        assert silence is not None
        if silence.liveness == "stale" or time.monotonic() > deadline:
            break
    assert silence.liveness == "stale"
    assert (silence.basis, silence.at_least) == ("timestamps", False)
    assert cli("status").returncode == 0
    checked = cli("status", "--check", "--json")
    assert checked.returncode == 1
    assert "1 claim held by clients that are silent" in json.loads(checked.stdout)["attention"][0]

    observed = json.loads(cli("claims", "--json", "--observe", "2.2").stdout)
    assert observed[0]["measured_by"] == "observed"
    assert observed[0]["liveness"] == "stale"
    assert observed[0]["silence_at_least"]


def test_a_live_holder_is_fresh_by_observing(client: Callable[..., Marshal], cli: Cli) -> None:
    client("a", interval_ms=60_000).claim("t", 0, timeout_s=60).commit(1, wait=True)
    busy = client("b", group_id="busy", interval_ms=100)
    busy.claim("t", 0, timeout_s=60)
    rows = {r["group"]: r for r in json.loads(cli("claims", "--json", "--observe", "1").stdout)}
    assert rows["busy"]["measured_by"] == "observed"
    assert rows["busy"]["liveness"] != "stale"
    assert rows["g"]["measured_by"] == "timestamps", "it said nothing while it was watched"


def test_a_clock_that_is_behind_is_found_out(
    kafka: EmbeddedKafka, client: Callable[..., Marshal], made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client("a").claim("t", 0, timeout_s=60)
    now_ns = time.time_ns()
    monkeypatch.setattr(
        "marshal_py.admin.world_reader.time.time_ns", lambda: now_ns - 3_600 * 10**9
    )
    found = read_world(Connection.of_servers(kafka.bootstrap_servers, made))
    assert found.behind_ms > 3_500_000
    assert "behind" in found.explain()
    (coordinator, key, cell) = next(found.world.cells("g"))
    silence = found.cell_silence(coordinator, key, cell)
    assert silence is not None
    assert silence.ms < 60_000, "measured against the newest record, not against this clock"


# Tail


def test_tail_shows_what_happened(cli: Cli, client: Callable[..., Marshal]) -> None:
    a = client("a")
    claim = a.claim("orders", 0, timeout_s=60)
    claim.release()
    other = client("b", group_id="h")
    other.claim("orders", 0, timeout_s=60)

    shown = lines(cli("tail", "--json").stdout)
    mine = [(e["event"], e["client_id"]) for e in shown if e["group_id"] == "g"]
    assert sorted(mine) == [("Claimed", "a"), ("MemberJoined", "a"), ("Released", "a")]
    assert [e["timestamp_ms"] for e in shown] == sorted(e["timestamp_ms"] for e in shown)
    assert all(e["time"].endswith("Z") for e in shown)

    everything = lines(cli("tail", "--json", "--all", "--since", "0").stdout)
    assert {"Beat"} < {e["event"] for e in everything}
    assert len(lines(cli("tail", "--json", "-n", "2").stdout)) == 2
    assert lines(cli("tail", "--json", "--group", "g", "--topic", "orders").stdout) == [
        e for e in shown if e["group_id"] == "g" and "topic" in e
    ]
    text = cli("tail").stdout
    assert "claimed   orders/0 by a, epoch" in text
    assert "\x1b" not in text


def test_tail_since(cli: Cli, client: Callable[..., Marshal]) -> None:
    a = client("a")
    first = a.claim("orders", 0, timeout_s=60)
    second = a.claim("orders", 0, timeout_s=60)
    assert second is first
    first.release()
    again = a.claim("orders", 0, timeout_s=60)
    cell = a.cell("orders", 0)
    assert cell is not None
    since = str(cell.version)
    found = lines(cli("tail", "--json", "--since", since, "--topic", "orders").stdout)
    assert [(e["event"], e["offset"]) for e in found] == [("Claimed", cell.version)]
    assert found[0]["epoch"] == again.epoch
    by_time = lines(cli("tail", "--json", "--since", found[0]["time"], "-t", "orders").stdout)
    assert found[0] in by_time
    assert all(e["timestamp_ms"] >= found[0]["timestamp_ms"] for e in by_time)
    nothing = cli("tail", "--since", "2100-01-01")
    assert (nothing.stdout, nothing.returncode) == ("", 0)
    assert "no such events" in nothing.stderr
    assert cli("tail", "--since", "soon").returncode == 2


def test_tail_follow_shows_events_as_they_come_and_ends_with_ctrl_c(
    kafka: EmbeddedKafka, made: str, client: Callable[..., Marshal]
) -> None:
    a = client("a")
    a.claim("t", 0, timeout_s=60)
    with subprocess.Popen(
        [sys.executable, "-m", "marshal_py.cli", "tail", "-f", "--json", "--group", "g"],
        env=_environment(kafka.bootstrap_servers, made),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            before = {json.loads(process.stdout.readline())["event"] for _ in range(2)}
            assert before == {"MemberJoined", "Claimed"}
            a.claim("t", 1, timeout_s=60)
            live = json.loads(process.stdout.readline())
            assert (live["event"], live["partition"]) == ("Claimed", 1)
            assert live["timestamp_ms"] > 0
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            assert process.stderr is not None
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_foreign_records_are_shown_not_stumbled_over(
    cli: Cli, kafka: EmbeddedKafka, made: str
) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in (b"\xff\x00[red]", b"", None):
        producer.produce(made, value, partition=0)
    assert producer.flush(60) == 0
    shown = lines(cli("tail", "--json").stdout)
    assert [e["why"] for e in shown] == ["undecodable"] * 3
    assert cli("status").returncode == 0


# Snapshots and trimming


def test_snapshot_and_trim(cli: Cli, client: Callable[..., Marshal], made: str) -> None:
    a = client("a", interval_ms=60_000)
    a.claim_many([("orders", p) for p in range(8)], timeout_s=60)[3].commit(99, wait=True)
    a.claim("orders", 0).release()
    before = json.loads(cli("claims", "--json").stdout)

    nothing = json.loads(cli("topic", "trim", "--json").stdout)
    assert nothing["records"] == 0
    written = json.loads(cli("snapshot", "--json").stdout)["written"]
    assert written
    assert json.loads(cli("snapshot", "--json").stdout)["written"] == [], "nothing new"

    dry = json.loads(cli("topic", "trim", "--json").stdout)
    assert not dry["deleted"]
    assert dry["records"] == sum(w["next_offset"] - 1 for w in written)
    assert {p["verified"] for p in dry["partitions"]} <= {"verified by replay", "none"}
    assert json.loads(cli("status", "--json").stdout)["first_offsets"] == [0] * 4

    assert json.loads(cli("topic", "trim", "--yes", "--json").stdout)["deleted"]
    status = json.loads(cli("status", "--json").stdout)
    wanted = {w["coordinator"]: w["next_offset"] - 1 for w in written}
    assert status["first_offsets"] == [wanted.get(p, 0) for p in range(4)]
    assert {s["coordinator"]: s["next_offset"] for s in status["snapshots"]} == {
        p: wanted[p] + 1 if p in wanted else None for p in range(4)
    }
    # The state is what it was: silence aside, which goes on.
    after = json.loads(cli("claims", "--json").stdout)
    moving = ("silence_ms", "silence_at_least", "liveness", "measured_by")
    for row in (*before, *after):
        for name in moving:
            row.pop(name)
    assert after == before
    # A client that starts now goes on from the snapshot.
    b = client("b")
    assert b.cell("orders", 3) == a.cell("orders", 3)
    assert b.claim("orders", 0, timeout_s=60).held
    gone = cli("tail", "--since", "0", "--json")
    assert "older records are gone" in gone.stderr


def test_trim_refuses_a_snapshot_that_a_replay_does_not_lead_to(
    cli: Cli, kafka: EmbeddedKafka, client: Callable[..., Marshal], made: str
) -> None:
    from marshal_py.client.log_writer import LogWriter
    from marshal_py.protocol.rationalizer import PartitionState

    a = client("a", interval_ms=60_000)
    a.claim_many([("orders", p) for p in range(8)], timeout_s=60)
    found = read_world(Connection.of_servers(kafka.bootstrap_servers, made))
    due = next(
        d for p in range(4) if (d := found.reader.snapshot_now(p)) is not None and d.next_offset > 2
    )
    wrong = PartitionState(due.coordinator)
    wrong.next_offset = due.next_offset
    writer = LogWriter(
        {"bootstrap.servers": kafka.bootstrap_servers},
        topic=made,
        snapshot_topic=f"{made}.snapshots",
        timeout_ms=10_000,
    )
    writer.write_snapshot(due._replace(state=wrong.encode()), 4, "liar")
    assert writer.flush(60) == 0
    refused = cli("topic", "trim", "--yes")
    assert refused.returncode == 1, "a finding"
    assert "liar" in refused.stderr
    assert "nothing was deleted" in refused.stderr
    assert json.loads(cli("status", "--json").stdout)["first_offsets"] == [0] * 4


# Errors


def test_a_broker_that_is_down_is_one_line_in_bounded_time(topic: str) -> None:
    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{taken.getsockname()[1]}"
        for arguments in (
            ["status"],
            ["claims"],
            ["tail", "-f"],
            ["snapshot"],
            ["topic", "create"],
            ["topic", "trim"],
        ):
            found = subprocess.run(
                [sys.executable, "-m", "marshal_py.cli", *arguments, "--timeout", "1"],
                env=_environment(servers, topic),
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert found.returncode == 3, (arguments, found.stderr)
            assert len(found.stderr.splitlines()) == 1, (arguments, found.stderr)
            assert found.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["status", "--bogus"], "--bogus"),
        (["nonsense"], "nonsense"),
        (["status", "-X", "acks=1"], "acks"),
        (["status", "-X", "no.such.setting=1"], "no.such.setting"),
        (["status", "--config", "/no/such/file"], "/no/such/file"),
        (["topic", "create", "--partitions", "0"], "--partitions"),
        (["topic", "create", "--replication-factor", "9"], "replication_factor"),
    ],
)
def test_wrong_usage_is_exit_code_2(cli: Cli, made: str, arguments: list[str], says: str) -> None:
    found = cli(*arguments)
    assert found.returncode == 2
    assert says in found.stderr
    assert "Traceback" not in found.stderr


def test_no_brokers_given(cli: Cli) -> None:
    found = cli("status", MARSHAL_BOOTSTRAP_SERVERS="")
    assert found.returncode == 2
    assert "-b HOST:PORT" in found.stderr


def test_a_closed_pipe_is_no_error(kafka: EmbeddedKafka, made: str, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        found = subprocess.run(
            [sys.executable, "-m", "marshal_py.cli", "claims", "--json"],
            env=_environment(kafka.bootstrap_servers, made),
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    finally:
        os.close(write)
    assert (found.returncode, found.stderr) == (0, "")


def test_names_are_shown_as_they_are_even_where_the_terminal_lacks_characters(
    cli: Cli, client: Callable[..., Marshal]
) -> None:
    client("[red]é/\x1b[2J", group_id="[bold]").claim("t", 0, timeout_s=60)
    for command in (["claims"], ["status"], ["tail"]):
        found = cli(*command, PYTHONIOENCODING="ascii")
        assert found.returncode == 0, found.stderr
        assert "[red]\\xe9/\\x1b[2J" in found.stdout
        assert "[bold]" in found.stdout
        assert "\x1b" not in found.stdout


def test_every_command_has_help_with_an_example(cli: Cli) -> None:
    for command in (
        ["status"],
        ["claims"],
        ["tail"],
        ["snapshot"],
        ["demo"],
        ["topic", "create"],
        ["topic", "trim"],
    ):
        found = cli(*command, "--help")
        assert found.returncode == 0
        assert "Examples" in found.stdout
        assert f"marshal {' '.join(command)}" in found.stdout
