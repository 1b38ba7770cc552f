"""How commands of `harvest` end: as those of `marshal` do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from typer.testing import CliRunner

from harvest.cli import pause
from harvest.cli.app import app
from harvest.errors import ConfigurationError, StoreUnavailable
from marshal_py.errors import BrokerUnavailable, TopicMissing


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigurationError("no such mode"), 2, "error: no such mode"),
        (StoreUnavailable("no database"), 3, "error: no database"),
        (StoreUnavailable("no table 'x'\nall is well"), 3, "error: no table 'x'\\nall is well"),
        (BrokerUnavailable("no broker"), 3, "error: no broker"),
        (TopicMissing("no topic"), 3, "error: no topic"),
        (KafkaException(KafkaError(KafkaError._TRANSPORT, "gone")), 3, "error: Kafka: gone"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_a_line_and_an_exit_code(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def load(_: Path) -> None:
        raise error

    monkeypatch.setattr(pause, "load", load)
    config = tmp_path / "reaper.yaml"
    config.touch()
    done = CliRunner().invoke(app, ["pause", "--config", str(config)])
    assert (done.exit_code, done.stderr.strip()) == (code, said)


PRINTS = """
import sys
from harvest.cli import pause
from harvest.cli.app import main

pause.load = lambda _: print("x" * 100_000, flush=True)
sys.argv = ["harvest", "pause", "--config", sys.argv[1]]
main()
"""


def test_a_reader_that_has_seen_enough_is_no_failure(tmp_path: Path) -> None:
    """As in `harvest … | head`."""
    config = tmp_path / "reaper.yaml"
    config.touch()
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", PRINTS, str(config)],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
