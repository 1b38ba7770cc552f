"""What is made of the partitions that PostgreSQL lists, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from harvest.databases.postgres.partitions import PostgresPartitions
from harvest.maintenance.partitions import Inventory, Partition


class Server(PostgresPartitions):
    """Lists partitions in the order in which they were made."""

    def _execute(self, statement: Any, parameters: Any = (), *, binary: bool = False) -> Any:
        text = statement.as_string(None)
        rows: list[Any] = []  # of the age of an empty partition
        if "pg_get_partkeydef" in text:
            rows = [(True,)]
        elif "pg_sequence_last_value" in text:
            rows = [(250,)]
        elif "pg_inherits" in text:
            rows = [
                ("public", f"outbox_p{low}", f"FOR VALUES FROM ('{low}') TO ('{low + 100}')")
                for low in (200, 0, 100)
            ]
            rows.insert(1, ("public", "outbox_default", "DEFAULT"))
        elif "count(*)" in text:
            rows = [(3,)]
        return SimpleNamespace(fetchall=lambda: rows)


def test_partitions_are_in_the_order_of_their_ids() -> None:
    """Which is next, and which is still being filled, the last one says."""
    found = Server("", "outbox").inventory()
    names = [(f"public.outbox_p{low}", low) for low in (0, 100, 200)]
    assert found == Inventory([Partition(n, low, low + 100) for n, low in names], 250, 3)
