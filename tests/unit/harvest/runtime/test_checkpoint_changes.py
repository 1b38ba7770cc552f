"""A change of checkpoints that is refused, or that fails, leaves no connection open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harvest.config.load import parse
from harvest.config.model import ReaperConfig
from harvest.errors import HarvestError, StoreUnavailable
from harvest.runtime import checkpoint_changes as changes

CONFIG = parse(
    "database: postgresql://localhost/d\nkafka: {bootstrap.servers: 'localhost:1'}\n"
    "group: g\nmode: range\nshards: 2\n"
)


class Broken:
    """A store that works with nothing; it counts how many are open."""

    opened = 0

    def __init__(self, *_: object) -> None:
        Broken.opened += 1

    def close(self) -> None:
        Broken.opened -= 1

    def __getattr__(self, name: str) -> Any:
        raise StoreUnavailable(f"no {name}")


@pytest.mark.parametrize(
    "change",
    [
        lambda config: changes.change_shards(config, 4),
        lambda config: changes.reset_checkpoints(config, None),
        changes.accept_database,
    ],
)
def test_what_was_opened_is_closed(
    change: Callable[[ReaperConfig], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("make_range_store", "make_any_store"):
        monkeypatch.setattr(changes, name, Broken)
    monkeypatch.setattr(changes, "check_registration", lambda *_: None)
    Broken.opened = 0
    with pytest.raises(HarvestError):
        change(CONFIG)
    assert Broken.opened == 0
