"""The coordination topic is made anew under commands that watch it: they begin again (§7.4)."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from typer.testing import CliRunner

from marshal_py.cli.app import app
from marshal_py.client.log_reader import LogReader
from marshal_py.client.topics import create_topics
from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.embedded.ports import free_ports
from marshal_py.protocol.messages import ClaimingPartition, encode
from tests.support.remade_topics import create, delete, fill
from tests.support.spec import spec

pytestmark = pytest.mark.kafka


def claim(group: str) -> tuple[int, bytes]:
    return 0, encode(ClaimingPartition(2, "a", "a1", group, 0, "t", 0, 5_000, -1))


@pytest.fixture
def watch(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a command; make its topic anew when it has read it; stop it when it reads the new one.

    `stop` returns whether it has: if not, it is called again.
    """

    def run(*command: str, stop: Callable[[], bool]) -> str:
        topic = f"__marshal.watched.{os.getpid()}.{command[0]}"
        kafka.start()
        create_topics(kafka.bootstrap_servers, topic=topic, partitions=1)
        fill(kafka, topic, [claim("old"), claim("older")])
        opened, is_anew, times, is_stopped = 0, False, 0, False

        class Watched(LogReader):
            def open(self, *arguments: Any, **window: Any) -> None:
                nonlocal opened
                opened += 1
                super().open(*arguments, **window)

            def poll(self, timeout_s: float) -> list[Any]:
                nonlocal is_anew, times, is_stopped
                if not is_anew:
                    is_anew = True
                    delete(kafka, topic, f"{topic}.snapshots")
                    create(kafka, topic, 1)
                    fill(kafka, topic, [claim("new")])
                if opened == 2:
                    times += 1
                    if times >= 3 and not is_stopped:
                        is_stopped = stop()
                return super().poll(timeout_s)

        fast = partial(Watched, look_every_s=0.1)
        monkeypatch.setattr("marshal_py.admin.world_reader.LogReader", fast)
        where = ["-b", kafka.bootstrap_servers, "--coordination-topic", topic]
        done = CliRunner().invoke(app, [*command, *where])
        assert opened == 2, done.output
        assert "made anew" in done.stderr or "deleted" in done.stderr, done.output
        return done.stdout

    return run


def interrupt() -> bool:
    raise KeyboardInterrupt


@spec("L-4")
def test_top_shows_the_new_log(watch: Callable[..., str]) -> None:
    shown = watch("top", "--json", "--every", "0.1", stop=interrupt)
    last = json.loads(shown.splitlines()[-1])
    assert [group["group"] for group in last["groups"]] == ["new"]
    assert last["records"] == 1


@spec("L-4")
def test_tail_tells_the_new_log_from_its_start(watch: Callable[..., str]) -> None:
    shown = watch("tail", "--follow", "--json", stop=interrupt)
    events = [json.loads(line) for line in shown.splitlines()]
    assert [(event["group_id"], event["offset"]) for event in events] == [
        ("old", 0),
        ("older", 1),
        ("new", 0),
    ]


@spec("L-4")
def test_the_exporter_serves_the_new_log(
    watch: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers: list[Callable[[], None]] = []
    monkeypatch.setattr("marshal_py.cli.metrics.signal.signal", lambda _, h: handlers.append(h))
    (port,) = free_ports(1)
    served = ""

    def stop() -> bool:
        nonlocal served
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            served = answer.read().decode()
        is_known = "marshal_exporter_kafka_reachable 1" in served  # not before the brokers answered
        if is_known:
            handlers[0]()
        return is_known

    watch("metrics", "serve", "--listen", f"127.0.0.1:{port}", stop=stop)
    assert 'group_id="new"' in served
    assert 'marshal_group_members{group_id="old"' not in served
