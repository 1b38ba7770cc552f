"""`marshal run`: a handler of some module runs, is begun again after a change, and ends well."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from marshal_py.cli.run import load_handler
from marshal_py.errors import ConfigurationError
from marshal_py.testing import TestBroker

HANDLER = """\
def handle(message):
    print("VERSION", message.value().decode(), flush=True)
"""


@contextmanager
def running(folder: Path, broker: TestBroker, *more: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "marshal_py.cli", "run", "service:handle"]
    command += ["-b", broker.bootstrap_servers, "-t", "orders", "-g", "g", *more]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_handler_runs_until_it_is_told_to_end(
    tmp_path: Path, mock_kafka: TestBroker, number: signal.Signals
) -> None:
    (tmp_path / "service.py").write_text(HANDLER.replace("VERSION", "handled"))
    mock_kafka.send("orders", "7")
    with running(tmp_path, mock_kafka, "--workers", "2") as process:
        assert line_of(process) == "handled 7\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert "handled 1, failed 0" in said


def test_a_change_begins_it_again(tmp_path: Path, mock_kafka: TestBroker) -> None:
    (tmp_path / "service.py").write_text(HANDLER.replace("VERSION", "old"))
    mock_kafka.send("orders", "1")
    with running(tmp_path, mock_kafka, "--reload") as process:
        assert line_of(process) == "old 1\n"
        (tmp_path / "service.py").write_text(HANDLER.replace("VERSION", "another"))
        mock_kafka.send("orders", "2")
        while (line := line_of(process)).startswith("old"):
            mock_kafka.send("orders", "3")  # the old one was quicker
        assert line.startswith("another")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)


def test_what_is_no_handler_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "some_service.py").write_text("def handle(message): ...\nlimit = 3\n")
    assert load_handler("some_service:handle").__name__ == "handle"
    for wrong, why in (
        ("some_service", "must be MODULE:HANDLER"),
        ("no_such_service:handle", "there is no module 'no_such_service'"),
        ("some_service:handel", "did you mean 'handle'"),
        ("some_service:limit", "is a int, not a function"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            load_handler(wrong)
