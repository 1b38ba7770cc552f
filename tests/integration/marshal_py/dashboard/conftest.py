"""What the tests of the dashboard share: `marshal dashboard` in a process, and a browser."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from marshal_py.embedded import EmbeddedKafka
from tests.support.chromium import Page, chromium


class Served:
    """`marshal dashboard` in a process of its own."""

    def __init__(self, servers: str, topic: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "marshal_py.cli", "dashboard", "--port", "0", "--json",
                "-b", servers, "--topic", topic, "--lag-every", "0.5", *arguments,
            ],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr and self.process.stderr.read()
        self.url = json.loads(line)["url"]

    def ask(
        self, path: str, method: str = "GET", body: str | None = None, **headers: str
    ) -> tuple[int, Any]:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection("127.0.0.1", parts.port or 0, timeout=120)
        connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        said = answer.read()
        connection.close()
        if (again_s := answer.getheader("retry-after")) is not None:  # the log is being read
            time.sleep(float(again_s))
            return self.ask(path, method, body, **headers)
        try:
            return answer.status, json.loads(said)
        except ValueError:
            return answer.status, said

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
def serve(kafka: EmbeddedKafka, made: str) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(*arguments: str) -> Served:
        started.append(Served(kafka.bootstrap_servers, made, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with chromium(tmp_path / "profile") as found:
        found.emulate()
        yield found
