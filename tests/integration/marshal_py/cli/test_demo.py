"""`marshal demo`, short, as a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from marshal_py.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

DEMO = [sys.executable, "-m", "marshal_py.cli", "demo"]


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment whose temporary folder is this test's; nothing may be left in it."""
    folder = tmp_path / "t"
    folder.mkdir()
    folder.chmod(0o777)
    yield os.environ | {"TMPDIR": str(folder)}
    assert not list(folder.glob("marshal-demo-*"))
    assert not demo_processes(str(folder))


def demo_processes(folder: str) -> list[str]:
    """The command lines that name a demo folder of this test."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if f"{folder}/marshal-demo-" in words:
            found.append(words)
    return found


def test_a_short_demo_on_embedded_servers(temporary: dict[str, str]) -> None:
    found = subprocess.run(
        [*DEMO, "--json", "--seconds", "15", "--interval-ms", "1000", "--seed", "7"],
        env=temporary,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert found.returncode == 0, found.stderr
    (line,) = found.stdout.splitlines()
    report = json.loads(line)
    assert report["ok"]
    assert report["committed"] > 500
    assert report["rolled_back"] > 20
    assert report["delivered"] == report["committed"]
    assert report["missing"] == 0
    assert report["order_violations"] == 0
    assert report["from_rolled_back"] == 0
    assert report["duplicates"] == 0, "the harvesters publish in transactions"
    assert len(report["takeovers_s"]) == 4
    assert all(seconds > 0 for seconds in report["takeovers_s"])
    faults = [(t["fault"], t["process"].split("-")[0]) for t in report["takeovers"]]
    assert faults == [(k, p) for k in ("killed", "paused") for p in ("harvester", "consumer")]
    claims = [claim for takeover in report["takeovers"] for claim in takeover["claims"]]
    assert all(claim["to_epoch"] > claim["from_epoch"] for claim in claims)
    held = {hold["claim"] for hold in report["holds"]}
    assert held == {"leadership", *(f"partition {p}" for p in range(6))}
    assert all(hold["end"] != "held" for hold in report["holds"]), "all was released in the end"
    assert "killed" in found.stderr
    proof = report["proof"]
    assert proof["clean"]
    assert proof["rows"] == proof["published"] == report["committed"]
    assert proof["claims"] >= len(report["holds"])
    assert proof["takeovers"] >= len(claims)
    for path in proof["reports"].values():
        assert Path(path).read_text().startswith("<!doctype html>")
    shutil.rmtree(proof["folder"])


@pytest.fixture
def own_servers(kafka: EmbeddedKafka, postgres_database: str) -> list[str]:
    kafka.start()
    return ["--kafka", kafka.bootstrap_servers, "--postgres", postgres_database]


def schemas(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        query = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'marshal_demo_%'"
        return [name for (name,) in connection.execute(query)]


def demo_topics(kafka: EmbeddedKafka) -> list[str]:
    return [name for name in kafka.admin().list_topics().topics if name.startswith("marshal-demo")]


def await_schema(dsn: str, process: subprocess.Popen[str]) -> str:
    """Wait until the demo's writer has committed something; return its schema."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and process.poll() is None:
        for schema in schemas(dsn):
            with psycopg.connect(dsn) as connection:
                there = connection.execute("SELECT to_regclass(%s)", (f"{schema}.ledger",))
                if there.fetchone() == (None,):
                    continue
                row = connection.execute(f"SELECT count(*) FROM {schema}.ledger").fetchone()
            if row is not None and row[0] > 0:
                return schema
    raise AssertionError("the demo did not begin to write")


@pytest.mark.campaign
def test_a_row_that_never_reaches_kafka_is_found_out(
    temporary: dict[str, str],
    kafka: EmbeddedKafka,
    postgres_database: str,
    own_servers: list[str],
) -> None:
    with subprocess.Popen(
        [*DEMO, *own_servers, "--json", "--seconds", "10", "--interval-ms", "1000"],
        env=temporary,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            schema = await_schema(postgres_database, process)
            with psycopg.connect(postgres_database) as connection:
                connection.execute(
                    f"INSERT INTO {schema}.ledger VALUES ('lost', 'account-1', 1000000)"
                )
                columns = "kafka_topic, kafka_key, kafka_header_keys, kafka_header_values"
                archive = f"{schema}.outbox_archive"
                connection.execute(
                    f"INSERT INTO {archive} (id, create_time, kafka_value, {columns}) "
                    f"SELECT id, create_time - interval '1 hour', 'lost', {columns} "
                    f"FROM {archive} LIMIT 1"
                )
            out, err = process.communicate(timeout=500)
        finally:
            process.kill()
    assert process.returncode == 1, err
    report = json.loads(out)
    assert not report["ok"]
    assert report["missing"] == 1
    assert report["comparison"]["business_mismatches"] == 1
    assert report["delivered"] == report["committed"] - 1
    assert report["proof"]["findings"] == {"missing": 1}
    shutil.rmtree(report["proof"]["folder"])
    assert schemas(postgres_database) == []
    assert demo_topics(kafka) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_demo_that_is_interrupted_leaves_nothing_behind(
    temporary: dict[str, str],
    kafka: EmbeddedKafka,
    postgres_database: str,
    own_servers: list[str],
    number: signal.Signals,
    code: int,
) -> None:
    with subprocess.Popen(
        [*DEMO, *own_servers, "--seconds", "60"],
        env=temporary,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            await_schema(postgres_database, process)
            while len(demo_processes(temporary["TMPDIR"])) < 7 and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(number)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == code
    assert out == ""
    assert "Traceback" not in err
    assert schemas(postgres_database) == []
    assert demo_topics(kafka) == []


def test_servers_that_are_down_are_one_line(kafka: EmbeddedKafka, postgres_database: str) -> None:
    kafka.start()
    for arguments, says in (
        (["--kafka", "127.0.0.1:1", "--postgres", postgres_database], "Kafka"),
        (
            [
                "--kafka",
                kafka.bootstrap_servers,
                "--postgres",
                "postgresql://u:hunter2@127.0.0.1:1/",
            ],
            "PostgreSQL",
        ),
    ):
        found = subprocess.run([*DEMO, *arguments], capture_output=True, text=True, timeout=120)
        assert found.returncode == 3, found.stderr
        assert says in found.stderr.splitlines()[-1]
        assert "hunter2" not in found.stderr
        assert "Traceback" not in found.stderr
    assert demo_topics(kafka) == []


def test_a_missing_package_is_one_line_that_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None; sys.argv = ['marshal', 'demo']\n"
        "from marshal_py.cli.app import main; main()"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 3
    (line,) = found.stderr.splitlines()
    assert "psycopg" in line
    assert "pip install 'marshal-py[embedded,harvest]'" in line
