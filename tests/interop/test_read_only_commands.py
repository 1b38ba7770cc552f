"""The commands that only look, on a log that is shared with Go: `--wire text`."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from marshal_py import InvalidArgument, Marshal
from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import iso_utc
from marshal_py.protocol.text.codec import coordinating_partition
from marshal_py.protocol.wire import text_wire
from tests.interop.conftest import HB, Stage
from tests.support.paths import ROOT

pytestmark = pytest.mark.kafka


def marshal(stage: Stage, *args: str, text: bool = True, code: int = 0) -> str:
    wire = ["--wire", "text", "--interval", str(HB)] if text else []
    done = subprocess.run(
        [
            *(sys.executable, "-m", "marshal_py.cli"),
            *("--topic", stage.log, "-b", stage.brokers, *args, *wire),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def test_what_both_kinds_hold_is_shown_with_its_age(stage: Stage) -> None:
    topic = stage.topic(partitions=2, messages=5)
    go = stage.go("go", topic, "-quiet", "-max-claims", 1)
    theirs = go.expect("claim")["partition"]
    ours = stage.ours("py")
    ours.claim(topic, 1 - theirs, timeout_s=60).commit(3, wait=True)
    leadership = ours.leader("job").campaign(timeout_s=60)

    rows: list[dict[str, Any]] = json.loads(marshal(stage, "claims", "--json"))
    assert [(r["topic"], r["partition"], r["holder"]) for r in rows] == sorted(
        [(topic, theirs, "go"), (topic, 1 - theirs, "py"), ("leader:job", 0, "py")]
    )
    for row in rows:
        assert row["epoch"] == -1  # version 1 has none
        assert (row["liveness"], row["measured_by"]) == ("fresh", "timestamps")
        assert row["silence_ms"] < HB * 1000

    status = json.loads(marshal(stage, "status", "--json"))
    (group,) = status["groups"]
    assert (group["held"], group["stale"], group["members"]) == (3, 0, 0)
    (leader,) = status["leaders"]
    assert (leader["name"], leader["leader"], leader["epoch"]) == ("job", "py", -1)
    assert (status["attention"], status["snapshots"]) == ([], [])
    assert status["newest_record_ms_ago"] < 2 * HB * 1000
    assert "job" in marshal(stage, "status")

    events = [json.loads(line) for line in marshal(stage, "tail", "--json").splitlines()]
    claimed = {e["client_id"]: e for e in events if e["event"] == "Claimed"}
    assert claimed.keys() == {"go", "py"}
    for event in claimed.values():
        assert event["epoch"] == -1
        assert abs(event["timestamp_ms"] - time.time() * 1000) < 60_000
    assert "claimed" in marshal(stage, "tail")
    assert "epoch" not in marshal(stage, "tail", "--all")

    go.crash()
    leadership.resign()
    rows = json.loads(marshal(stage, "claims", "--json", "--observe", str(2.5 * HB)))
    found = {row["holder"]: row["liveness"] for row in rows}
    assert found == {"go": "stale", "py": "fresh", None: None}


def test_every_command_that_looks_reads_version_1(stage: Stage) -> None:
    topic = stage.topic(partitions=2, messages=5)
    now, g = int(time.time()), stage.group
    log = coordinating_partition(topic, 3)
    stage.append(
        f"Heartbeat/1/{now - 300}/i-a/a/{g}/{topic}/0/2".encode(),
        f"ReleasingPartition/1/{now - 200}/i-a/a/{g}/{topic}/0/3".encode(),
        f"ClaimingPartition/1/{now - 100}/i-b/b/{g}/{topic}/0".encode(),
        f"Heartbeat/1/{now - 99}/i-b/b/{g}/{topic}/0/4".encode(),
        f"Heartbeat/1/{now - 98}/i-c/c/{g}/{topic}/0/4".encode(),
        partition=log,
    )

    (group,) = json.loads(marshal(stage, "groups", "--json"))
    assert (group["group"], group["held"], group["members"]) == (g, 1, 0)
    assert json.loads(marshal(stage, "members", "--json")) == []
    lag = json.loads(marshal(stage, "lag", "--json"))
    assert [(r["partition"], r["lag"], r["holder"]) for r in lag] == [(0, 1, "c"), (1, None, None)]

    for ago_s, holder, position in ((250, "a", 2), (150, None, 3), (99, "b", 4)):
        at = iso_utc((now - ago_s) * 1000 + 500)
        (row,) = json.loads(marshal(stage, "claims", "--at", at, "--json"))
        assert (row["holder"], row["next_offset"], row["epoch"]) == (holder, position, -1)
        told = json.loads(marshal(stage, "explain", g, topic, "0", "--at", at, "--json"))
        assert (told["standing"]["holder"], told["standing"]["position"]) == (holder, position)
        assert told["standing"]["epoch"] is None
    assert "epoch" not in marshal(stage, "explain", g, topic, "0")

    (frame,) = marshal(stage, "top", "--count", "1", "--json").splitlines()
    assert json.loads(frame)["groups"][0]["held"] == 1
    verdict = json.loads(marshal(stage, "verify", "--json", code=1))
    assert [(f["level"], f["kind"], f["offset"]) for f in verdict["findings"]] == [
        *(("warning", "clock", 0), ("warning", "clock", 2), ("warning", "clock", 4)),
        ("error", "early_takeover", 4),
    ], "they were written long after what they say"
    assert "snapshot" not in marshal(stage, "verify", code=1)


def test_the_dashboard_shows_a_log_of_version_1(stage: Stage) -> None:
    pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")
    from marshal_py.dashboard.app import create_app
    from marshal_py.dashboard.details import cell_document
    from marshal_py.dashboard.log_follower import LogFollower

    topic = stage.topic(partitions=2, messages=5)
    stage.ours("py").claim(topic, 1, timeout_s=60).commit(3, wait=True)
    connection = Connection.of_servers(stage.brokers, stage.log)
    follower = LogFollower(connection, wire=text_wire(HB), lag_every_s=0.2)
    follower.start()
    try:
        with pytest.raises(InvalidArgument, match="--write is for version 2"):
            create_app(follower, write=True)
        deadline = time.monotonic() + 120
        found: dict[str, Any] = {}
        while found.get("lag") is None:
            assert time.monotonic() < deadline, (follower.phase, follower.trouble, found)
            with follower.lock:
                found = cell_document(follower, key=(stage.group, topic, 1))
            threading.Event().wait(0.05)
        assert (found["holder"], found["epoch"], found["next_offset"]) == ("py", -1, 3)
        (claim,) = found["claims"]
        assert (claim["client_id"], claim["epoch"]) == ("py", -1)
        with follower.lock:
            document = follower._document()
        assert (document["wire"], document["phase"], document["members"]) == ("text", "live", [])
        assert document["alerts"] == []
    finally:
        follower.close()


def test_without_the_flag_one_is_told_of_it(stage: Stage) -> None:
    stage.ours("py").claim("x", 0, timeout_s=60)
    (told,) = [
        text
        for text in json.loads(marshal(stage, "status", "--json", text=False))["attention"]
        if "version 1" in text
    ]
    assert "`--wire text`" in told


def test_a_pause_is_shown_until_it_is_over(stage: Stage) -> None:
    now = int(time.time())
    for partition in range(3):
        stage.append(
            f"ReleaseGroup/0/{now}/abc/adm/{stage.group}//0/{now + 600}".encode(),
            f"ReleaseGroup/0/{now - 60}/abc/adm/other//0/{now - 30}".encode(),
            f"Heartbeat/1/{now - 90}/ia/a/other/t/0/1".encode(),
            f"Heartbeat/1/{now + 90}/ia/a/other/t/1/1".encode(),
            partition=partition,
        )
    status = json.loads(marshal(stage, "status", "--json"))
    (pause,) = status["pauses"]
    assert (pause["group"], pause["expired"]) == (stage.group, False)
    rows = json.loads(marshal(stage, "claims", "--json", "--group", "other"))
    assert {row["partition"]: row["liveness"] for row in rows} == {0: "stale", 1: "unknown"}


def test_a_reader_takes_no_part(stage: Stage) -> None:
    with Marshal(stage.brokers, group_id="g", client_id="c", topic=stage.log, wire="text"):
        marshal(stage, "claims")
        marshal(stage, "status")
    assert stage.records() == []
