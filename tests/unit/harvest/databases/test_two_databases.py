"""When a gap that a replica shows is judged, with servers whose answers the test gives."""

from __future__ import annotations

from typing import Any

import pytest

from harvest.core.gaps import Holders
from harvest.databases.postgres.two_databases import TwoDatabasesStore
from harvest.errors import StoreUnavailable


class Primary:
    """While the holders are looked for, one of them commits."""

    def __init__(self) -> None:
        self.end = 7

    def holders(self) -> Holders:
        self.end += 1
        return Holders()

    def written(self) -> str:
        return str(self.end)

    def cancel(self) -> None: ...
    def close(self) -> None: ...


class Replica(Primary):
    """Gets on by one each time that it is asked, up to `most`."""

    def __init__(self, most: int) -> None:
        self.replayed = 0
        self.most = most

    def has_replayed(self, lsn: str) -> bool:
        self.replayed = min(self.most, self.replayed + 1)
        return self.replayed >= int(lsn)

    def lookup(self, ranges: list[Any]) -> list[Any]:
        return [(self.replayed, self.replayed)]


def store(replica: Replica) -> TwoDatabasesStore:
    primary: Any = Primary()
    its: Any = replica
    return TwoDatabasesStore(primary, primary, its)


def test_a_replica_is_waited_for_that_does_not_show_what_holders_committed() -> None:
    made = store(Replica(100))
    made.holders()
    assert made.lookup([(1, 1)]) == [(8, 8)]


def test_who_was_cancelled_and_closed_waits_again_when_it_is_used_again() -> None:
    replica = Replica(1)
    made = store(replica)
    made.holders()
    made.cancel()
    with pytest.raises(StoreUnavailable, match="given up"):
        made.lookup([(1, 1)])
    made.close()
    replica.most = 100
    assert made.lookup([(1, 1)]) == [(8, 8)]
