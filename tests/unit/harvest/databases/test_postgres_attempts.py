"""What is done about the table of attempts before anything is noted, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from harvest.databases.postgres.attempts import Attempt, PostgresAttempts
from harvest.errors import SchemaError

NOTE = Attempt(1, "a", 2, "HTTP 503", 503, gave_up=False)
EARLIER = dict.fromkeys(("id", "destination", "retries", "gave_up"), ("text", False))
CURRENT = EARLIER | dict.fromkeys(("delivered", "fingerprint"), ("text", False))


class Server(PostgresAttempts):
    """Has a table with these columns; {}: none. It notes what it is told."""

    def __init__(self, columns: dict[str, tuple[str, bool]], *, refuses: bool = False) -> None:
        super().__init__("", "outbox")
        self.columns = columns
        self.refuses = refuses
        self.told: list[str] = []

    def _types_of(self, table: object) -> dict[str, tuple[str, bool]]:
        return self.columns

    def _storable(self, text: str) -> str:
        return text

    def _execute(self, statement: Any, parameters: Any = (), *, binary: bool = False) -> Any:
        what = statement.as_string(None).split()[0]
        self.told.append(what)
        if what == "ALTER" and self.refuses:
            raise SchemaError("must be owner of table outbox_attempts")


@pytest.mark.parametrize(
    ("columns", "before"), [({}, ["CREATE"]), (EARLIER, ["ALTER"]), (CURRENT, [])]
)
def test_the_table_is_made_or_brought_up_to_date_before_anything_is_noted(
    columns: dict[str, tuple[str, bool]], before: list[str]
) -> None:
    server = Server(columns)
    server.record([NOTE])
    assert server.told == [*before, "INSERT"]


def test_who_may_not_change_the_table_is_told_what_its_owner_runs() -> None:
    server = Server(EARLIER, refuses=True)
    with pytest.raises(SchemaError, match=r"run `ALTER TABLE .*outbox_attempts.* ADD COLUMN"):
        server.record([NOTE])
    assert server.told == ["ALTER"]
    assert server.settled() == {}, "nothing is known of other destinations"
    server.forget_overtaken()
    assert server.told == ["ALTER"]
