"""What is said of a slot, from what the server says of it."""

from __future__ import annotations

import pytest

from harvest.core.wal_slot import SlotHealth, SlotState
from harvest.databases.postgres.slot import PostgresSlot

MIB = 1 << 20


class Slot(PostgresSlot):
    """On a server whose log ends at 1000 MiB."""

    def __init__(self, restart: int, confirmed: int, safe: int | None = None) -> None:
        super().__init__("postgresql://localhost/d", "outbox", "s")
        lsns = confirmed * MIB, restart * MIB
        allowed = None if safe is None else safe * MIB
        self.about = SlotState("s", "", "d", *lsns, "reserved", None, allowed, 7, False, False)

    def state(self) -> SlotState:
        return self.about

    def log_end(self) -> int:
        return 1000 * MIB


def test_it_keeps_the_log_from_its_oldest_transaction_on_not_from_what_is_confirmed() -> None:
    assert Slot(100, 700, 50).health() == SlotHealth(
        True,
        False,
        active=True,
        pinned_bytes=900 * MIB,
        behind_bytes=300 * MIB,
        safe_bytes=50 * MIB,
    )


@pytest.mark.parametrize(
    ("restart", "safe", "level"),
    [(600, 100, "ok"), (600, 99, "warning"), (600, 5_000, "ok"), (600, None, "ok")],
)
def test_it_is_a_warning_when_less_is_left_than_a_quarter_of_what_it_keeps(
    restart: int, safe: int | None, level: str
) -> None:
    finding = Slot(restart, 700, safe)._cost(Slot(restart, 700, safe).about)
    assert finding.level == level
    assert "it keeps 400.0 MiB of log, of which 300.0 MiB is not harvested" in finding.text
    assert ("a transaction open for long?" in finding.text) == (level == "warning")
