"""Who writes over the checkpoints shuts out whoever led first."""

from __future__ import annotations

import contextlib
import time
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from harvest.config.load import parse
from harvest.core.range_checkpoint import Position
from harvest.errors import ConfigurationError, SinkUnavailable
from harvest.runtime import checkpoints as module
from harvest.runtime.checkpoints import Checkpoints, alone

CONFIG = parse(
    "database: postgresql://localhost/d\nkafka: {bootstrap.servers: 'localhost:1'}\n"
    "group: g\nmode: range\nshards: 3\n"
)


class Client:
    """A producer or a consumer; it notes what is called, in a list that all have."""

    calls: ClassVar[list[str]] = []

    def __init__(self, kind: Any, settings: dict[str, Any]) -> None:
        assert kind in (Consumer, Producer)
        self.name = settings.get("transactional.id") or settings["group.id"]

    def __getattr__(self, method: str) -> Any:
        return lambda *_: self.calls.append(f"{method} {self.name}")


@pytest.mark.parametrize("fence", [1, 3, 5])
def test_all_leaders_are_shut_out_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, fence: int
) -> None:
    monkeypatch.setattr(Client, "calls", [])
    monkeypatch.setattr(module, "make_client", Client)
    new = [Position(0, shard, 3, 9) for shard in range(3)]
    Checkpoints(CONFIG).write(new, fence=fence)
    names = [f"harvest.{CONFIG.shard_sink_name(shard)}" for shard in range(max(3, fence))]
    done = [call for call in Client.calls if not call.startswith(("close", "consumer_group"))]
    assert done == [
        *[f"init_transactions {name}" for name in names],
        f"begin_transaction {names[0]}",
        *[f"send_offsets_to_transaction {names[0]}"] * 3,
        f"commit_transaction {names[0]}",
    ]
    closed = [call for call in Client.calls if call.startswith("close")]
    assert sorted(closed) == sorted([f"close {name}" for name in names[:3]])


@pytest.mark.parametrize(("mode", "shards"), [("range", 1), ("range", 3), ("mark", 1), ("wal", 1)])
def test_who_switches_shuts_out_the_leaders_of_all_shards(
    monkeypatch: pytest.MonkeyPatch, mode: str, shards: int
) -> None:
    """One that was paused meanwhile would publish what the next configuration has published."""
    monkeypatch.setattr(Client, "calls", [])
    monkeypatch.setattr(module, "make_client", Client)
    Checkpoints(CONFIG.model_copy(update={"mode": mode, "shards": shards})).fence()
    names = [f".{shard}" for shard in range(shards)] if mode == "range" else [""]
    assert Client.calls == [f"init_transactions harvest.g.outbox{name}" for name in names]


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("init_transactions", "the checkpoints were not written: no answer"),
        ("send_offsets_to_transaction", "the checkpoints were not written: no answer"),
        (
            "commit_transaction",
            "whether the checkpoints were written, all or none, is not known; run it again: no an",
        ),
    ],
)
def test_of_a_commit_without_an_answer_is_said_that_it_is_not_known(
    monkeypatch: pytest.MonkeyPatch, at: str, said: str
) -> None:
    class Silent(Client):
        def __getattr__(self, method: str) -> Any:
            if method == at:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))
            return super().__getattr__(method)

    monkeypatch.setattr(Client, "calls", [])
    monkeypatch.setattr(module, "make_client", Silent)
    with pytest.raises(SinkUnavailable, match=f"^{said}"):
        Checkpoints(CONFIG).write([Position(0, 0, 1, 9)], fence=1)
    assert any(call.startswith("close") for call in Client.calls)


def test_who_reads_one_lets_go_of_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "calls", [])
    monkeypatch.setattr(module, "make_client", Client)
    monkeypatch.setattr(module, "newest_checkpoint", lambda *_: None)
    assert Checkpoints(CONFIG).read(1) is None
    assert Client.calls == [f"close harvest.{CONFIG.shard_sink_name(1)}"]


@pytest.mark.parametrize("refusals", [0, 3])
def test_a_claim_that_is_let_go_of_in_time_is_had(
    monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    asked: list[tuple[str, int]] = []

    class Claims(contextlib.nullcontext[Any]):
        def __init__(self, *_: Any, **settings: Any) -> None:
            super().__init__(self)
            assert settings["group_id"] == "g"
            its = CONFIG.coordination
            assert (settings["interval_ms"], settings["topic"]) == (its.interval_ms, its.topic)

        def try_claim(self, topic: str, partition: int) -> object | None:
            asked.append((topic, partition))
            return None if len(asked) <= refusals else object()

    monkeypatch.setattr(module, "Marshal", Claims)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with alone(CONFIG, 2):
        units = CONFIG.shard_units(2)
    assert asked == [*units[:1] * refusals, *units]


def test_who_has_the_claim_and_stays_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    claims = SimpleNamespace(try_claim=lambda *_: None)
    monkeypatch.setattr(module, "Marshal", lambda *_, **__: contextlib.nullcontext(claims))
    monkeypatch.setattr(module, "_ALONE_S", 0.0)
    with (
        pytest.raises(ConfigurationError, match="a harvester of outbox is running"),
        alone(CONFIG, 1),
    ):
        raise AssertionError("it is not alone")
