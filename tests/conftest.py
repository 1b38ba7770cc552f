"""The fixtures for Kafka and PostgreSQL come from the package's own pytest plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

WITH_SERVERS = (
    "tests/integration/",
    "tests/interop/",
    "tests/contract_harvest/",
    "tests/spark/",
    "tests/chaos/test_chaos.py",
)
_SERVERS = "servers"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n 2`, one worker runs the tests with servers, one by one, and the other the rest.

    Beside each other they would take the processor from their leases. The first is the largest
    share, which pytest-xdist hands out first.
    """
    from xdist.scheduler import LoadFileScheduling

    class OneWithServers(LoadFileScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            return _SERVERS if nodeid.startswith(WITH_SERVERS) else super()._split_scope(nodeid)

    return OneWithServers(config, log)
