"""The fixtures for Kafka and PostgreSQL come from the package's own pytest plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

WITH_SERVERS = ("tests/integration/", "tests/interop/", "tests/contract_harvest/")
WITH_SPARK = ("tests/spark/",)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n 2`, one worker runs the tests with servers, one by one, and the other the rest.

    Beside each other they would take the processor from their leases. They are the largest share,
    which pytest-xdist hands out first. One worker starts Spark, once.
    """
    from xdist.scheduler import LoadFileScheduling

    class OneWithServers(LoadFileScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(WITH_SERVERS):
                return "servers"
            return "spark" if nodeid.startswith(WITH_SPARK) else super()._split_scope(nodeid)

    return OneWithServers(config, log)
