"""Processes of `multiprocessing`: each makes a client of its own; what is held stays where it is.

What is forked by the program itself: tests/integration/marshal_py/client/test_fork.py.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marshal_py import Consumer, Marshal
from marshal_py.errors import InvalidArgument
from marshal_py.testing import TestBroker

SETTINGS: dict[str, Any] = {"group_id": "g", "interval_ms": 500}

PROGRAM = """
import multiprocessing, sys
from confluent_kafka import Producer
from marshal_py import Consumer, Forked, Marshal

method, servers = sys.argv[1:]
config = {"bootstrap.servers": servers, "fetch.wait.max.ms": 10}
settings = {"group_id": "g", "interval_ms": 500}

def claims():
    with Marshal(config, **settings) as own:
        assert own.try_claim("x", 0) is None  # the parent's
        assert own.claim("x", 2, ephemeral=True).held
        if method == "forkserver":
            import preloaded
            assert not preloaded.claim.held and not preloaded.claim.remaining_ms
            assert preloaded.marshal.claims() == []
            try:
                preloaded.claim.commit(5, wait=True)
            except Forked:
                pass
            else:
                raise AssertionError("committed to the claim of another process")
            assert own.try_claim("x", 1) is None  # still held where it was made

def consumes(client_id, shares, got):
    with Consumer(config, topics="orders", client_id=client_id, settle_ms=0, **settings) as own:
        while len(own.claims()) < 2 and own.poll(0.01) is None:
            pass
        shares.put(client_id)
        for message in own:
            got.put((client_id, message.partition(), message.value()))

if __name__ == "__main__":
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["preloaded"])
    with Marshal(config, **settings) as marshal:
        claim = marshal.claim("x", 0)
        child = context.Process(target=claims)
        child.start()
        child.join()
        assert child.exitcode == 0, child.exitcode
        assert claim.held
    shares, got = context.Queue(), context.Queue()
    members = [context.Process(target=consumes, args=(c, shares, got)) for c in ("a", "b")]
    for member in members:
        member.start()
    assert {shares.get(timeout=60) for _ in members} == {"a", "b"}
    producer = Producer(config)
    for number in range(40):
        producer.produce("orders", str(number), partition=number % 4)
    producer.flush(60)
    came = [got.get(timeout=60) for _ in range(40)]
    assert sorted(int(value) for _, _, value in came) == list(range(40))
    by_member = {c: {p for m, p, _ in came if m == c} for c in ("a", "b")}
    assert [len(partitions) for partitions in by_member.values()] == [2, 2], by_member
    for member in members:
        member.terminate()  # SIGTERM: the loop ends, and everything is released
        member.join()
    print("done")
"""

PRELOADED = """
import os
from marshal_py import Marshal

marshal = Marshal(
    {"bootstrap.servers": os.environ["SERVERS"], "fetch.wait.max.ms": 10},
    group_id="g", interval_ms=500, client_id="preloaded",
).start()
claim = marshal.claim("x", 1)
assert claim.held
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_hold_what_they_claim_and_nothing_of_anyone_else(
    mock_kafka: TestBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setenv("SERVERS", mock_kafka.bootstrap_servers)
    mock_kafka.create_topic("orders")
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "preloaded.py").write_text(PRELOADED)
    argv = [sys.executable, "program.py", method, mock_kafka.bootstrap_servers]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "done\n", done.stdout + done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "made",
    [
        lambda broker: Marshal(broker.config, **SETTINGS),
        lambda broker: Consumer(broker.config, topics="orders", **SETTINGS),
    ],
    ids=["marshal", "consumer"],
)
def test_a_client_is_not_sent_to_another_process(
    mock_kafka: TestBroker, made: Callable[[TestBroker], Any]
) -> None:
    with pytest.raises(InvalidArgument, match=r"in g.* cannot be sent to another process"):
        pickle.dumps(made(mock_kafka))


def test_nor_is_a_claim(mock_kafka: TestBroker) -> None:
    with (
        Marshal(mock_kafka.config, **SETTINGS) as marshal,
        marshal.claim("x", 0) as claim,
        pytest.raises(InvalidArgument, match=r"<Claim x/0 held .*make a client there"),
    ):
        pickle.dumps(claim)
