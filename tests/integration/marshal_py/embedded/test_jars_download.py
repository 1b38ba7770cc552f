"""The cache of Kafka's jars, when processes that fill it are killed or come at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marshal_py.embedded import kafka_home
from tests.support.paths import ROOT
from tests.unit.marshal_py.embedded.test_jars import Registry, registry

__all__ = ["registry"]  # a fixture

OTHER_PROCESS = """
import sys
from pathlib import Path
from marshal_py.embedded import jars
from tests.unit.marshal_py.embedded.test_jars import put_jars

def fetch(libs, coordinates):
    (libs / "kafka-clients-4.1.0.jar").write_bytes(b"half")
    print("fetching", flush=True)
    if sys.stdin.readline():
        put_jars(libs)

jars._FETCH["python"] = fetch
jars.check_jars = lambda *_: None  # these are none that were ever published
jars.kafka_home(way="python", progress=lambda line: print(line, flush=True))
print("done", flush=True)
"""


def other_process(cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def read_until(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return
    pytest.fail(f"the process ended without {word!r}")


def test_a_killed_download_leaves_nothing_that_counts(registry: Registry, tmp_path: Path) -> None:
    with other_process(tmp_path) as process:
        read_until(process, "fetching")
        process.send_signal(signal.SIGKILL)
    left = [path.name for path in (tmp_path / "marshal-py").iterdir() if path.is_dir()]
    assert len(left) == 1
    home = kafka_home()
    assert registry.calls == ["python"]
    assert [path for path in home.parent.iterdir() if path.is_dir()] == [home]


def test_two_processes_at_once_download_once(tmp_path: Path) -> None:
    with other_process(tmp_path) as first, other_process(tmp_path) as second:
        processes = (first, second)
        # the one with the lock downloads until it is told to go on, the other one waits
        said = [next(iter(process.stdout or ())) for process in processes]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go on\n")
            process.stdin.flush()
        rest = [process.stdout.read() for process in processes if process.stdout]
    assert sorted(line.split()[0] for line in said) == ["downloading", "waiting"]
    assert "".join(rest).count("fetching") == 1
    assert "".join(rest).count("done") == 2
