"""Who writes over the checkpoints shuts out whoever led first."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from confluent_kafka import Consumer, Producer

from harvest.config.load import parse
from harvest.core.range_checkpoint import Position
from harvest.runtime import checkpoints as module
from harvest.runtime.checkpoints import Checkpoints

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
