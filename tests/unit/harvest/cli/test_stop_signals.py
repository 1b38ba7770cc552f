"""SIGTERM at the moments of a process's life that no other test meets: its first and its last."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harvest.cli.stop_signals import StopSignals

AS_IT_IMPORTS = """
import sys, os, signal
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "harvest.config.load":
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Finder())
"""
AS_IT_ENDS = """
import sys, os, signal
class Last:
    def __del__(self, kill=os.kill, me=os.getpid(), number=signal.SIGTERM):
        kill(me, number)
sys.last = Last()
"""
RUN = """
import runpy
sys.argv = ["harvest", "reap", "--config", sys.argv[1]]
runpy.run_module("harvest.cli", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("when", "code", "said"), [(AS_IT_IMPORTS, 0, ""), (AS_IT_ENDS, 2, "no-such.yaml")]
)
def test_a_signal_never_kills(when: str, code: int, said: str, tmp_path: Path) -> None:
    """What a process says by its exit code stays true: here, that the configuration is missing."""
    config = str(tmp_path / "no-such.yaml")
    done = subprocess.run(
        [sys.executable, "-c", when + RUN, config],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "COLUMNS": "300"},  # no line is broken
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert said or not done.stderr


def test_a_signal_whose_exception_was_swallowed_stops_the_harvester_as_soon_as_there_is_one() -> (
    None
):
    signals, stops = StopSignals(), []
    with pytest.raises(SystemExit) as ended:
        signals.received(signal.SIGTERM, None)
    assert ended.value.code == 0
    signals.received(signal.SIGTERM, None)  # it unwinds already
    signals.call(lambda: stops.append("stop"))
    assert stops == ["stop"]


def test_what_comes_later_stops_and_a_second_ctrl_c_does_not_wait() -> None:
    signals, stops = StopSignals(), []
    signals.call(lambda: stops.append("stop"))
    assert stops == []
    signals.received(signal.SIGINT, None)
    signals.received(signal.SIGTERM, None)
    assert stops == ["stop", "stop"]
    with pytest.raises(KeyboardInterrupt):
        signals.received(signal.SIGINT, None)
