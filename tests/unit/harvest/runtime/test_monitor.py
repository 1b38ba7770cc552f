"""What the monitor shows is what it knows now."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from harvest.core.interfaces.mark_store import Backlog
from harvest.errors import StoreUnavailable
from harvest.runtime.monitor import Monitor


class Probes:
    """A database that is taken away."""

    fails = False

    def backlog(self) -> Backlog | None:
        if self.fails:
            raise StoreUnavailable("permission denied for table outbox")
        return Backlog(3, 1, 0.2)

    def __getattr__(self, _: str) -> Any:
        return lambda: None


def test_a_backlog_that_cannot_be_counted_any_more_is_not_shown() -> None:
    probes = Probes()
    harvester = SimpleNamespace(state="leading", refusal=None, stuck_s=0.0)
    monitor = Monitor(cast(Any, harvester), cast(Any, probes), interval_s=1)
    monitor.check()
    assert monitor.backlog == Backlog(3, 1, 0.2)
    probes.fails = True
    monitor._count_at_s = 0.0
    monitor.check()
    assert monitor.backlog is None, "an old age of the oldest row would be taken for a small one"
    assert monitor.health().problems == ("table: permission denied for table outbox",)
