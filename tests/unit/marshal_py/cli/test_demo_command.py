"""`marshal demo`: what is asked for, and how it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marshal_py.cli.demo import run as running
from marshal_py.cli.demo.environment import Options
from marshal_py.cli.demo.processes import DemoFailed
from tests.support.marshal_command import without_brokers


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Options, bool]]:
    """With which options it was run, and whether as JSON. It finds nothing wrong."""
    found: list[tuple[Options, bool]] = []

    def run(options: Options, *, as_json: bool) -> bool:
        found.append((options, as_json))
        return True

    monkeypatch.setattr(running, "run", run)
    return found


def test_logs_that_cannot_be_kept_are_told_before_anything_starts(
    asked: list[tuple[Options, bool]], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    done = without_brokers("demo", "--kafka", "k:1", "--log-dir", str(tmp_path / "file"))
    assert (done.exit_code, asked) == (2, [])
    assert "--log-dir" in done.stderr


def test_it_is_run_with_what_was_asked_for(
    asked: list[tuple[Options, bool]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = without_brokers(
        *("demo", "--seconds", "20", "--rate", "50", "--seed", "7", "--interval-ms", "500"),
        *("--kafka", "k:1", "-X", "security.protocol=ssl", "--json"),
        *("--drain-limit", "9", "--no-audit", "--log-dir", "logs"),
    )
    assert (done.exit_code, done.stderr) == (0, "")
    ((options, as_json),) = asked
    assert (options.seconds, options.rate, options.seed, options.interval_ms) == (20, 50, 7, 500)
    assert (options.kafka, options.postgres) == ("k:1", None)
    assert options.kafka_settings == {"security.protocol": "ssl"}
    assert (options.drain_limit_s, options.audit) == (9, False)
    assert options.log_dir == Path("logs").absolute(), "processes have folders of their own"
    assert as_json


def test_what_was_lost_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "run", lambda *_, **__: False)
    assert without_brokers("demo").exit_code == 1


def test_a_demo_that_could_not_be_carried_out_ends_with_the_lines_that_were_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> bool:
        raise DemoFailed("consumer-1 ended with code 3; the end of its log:\none\n\x1b[2Jtwo")

    monkeypatch.setattr(running, "run", fail)
    done = without_brokers("demo")
    assert done.exit_code == 3
    assert done.stderr.splitlines() == [
        "error: consumer-1 ended with code 3; the end of its log:",
        "one",
        "\\x1b[2Jtwo",
    ]
