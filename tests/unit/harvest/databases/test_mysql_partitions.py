"""What is made of the partitions that MariaDB lists, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from harvest.databases.mysql.partitions import MysqlPartitions
from harvest.maintenance.partitions import Partition

pytest.importorskip("pymysql")
LAST = (1 << 63) - 1


class Server(MysqlPartitions):
    """With partitions that end at `bounds`, and one for the rest; it notes what it is told."""

    def __init__(self, first: int, *bounds: int) -> None:
        super().__init__("mysql://db/shop", "outbox")
        lows = (first, *bounds[:-1])
        self.partitions: list[tuple[bytes, bytes]] = [
            (b"p%d" % low, b"%d" % high) for low, high in zip(lows, bounds, strict=True)
        ]
        self.partitions.append((b"rest", b"MAXVALUE"))
        self.told: list[str] = []

    def _execute(self, statement: str, parameters: Any = ()) -> Any:
        if "information_schema.partitions" in statement:
            return self.partitions
        if "GET_LOCK" in statement:
            return ((1,),)
        self.told.append(" ".join(statement.split()))
        return ()


def test_the_first_partition_begins_where_its_name_says() -> None:
    """Those before it have been dropped: what was in them is not in its file of the archive."""
    assert Server(2000, 3000, 4000)._ranges() == [
        Partition("p2000", 2000, 3000),
        Partition("p3000", 3000, 4000),
        Partition("rest", 4000, LAST),
    ]


@pytest.mark.parametrize(
    ("high", "made"), [(4000, None), (3500, None), (5000, "p4000"), (6000, "p4000")]
)
def test_a_partition_is_made_behind_the_last_and_only_once(high: int, made: str | None) -> None:
    """Another manager may have made it since this one has looked."""
    server = Server(2000, 3000, 4000)
    assert server.create(high - 1000, high) == made
    cuts = [said for said in server.told if "REORGANIZE" in said]
    assert len(cuts) == (made is not None)
    assert all(f"PARTITION `p4000` VALUES LESS THAN ({high})" in said for said in cuts)
