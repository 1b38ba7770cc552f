"""Who may still commit an id in InnoDB, by a name that stays the same.

InnoDB lists its transactions (`innodb_trx`), but an INSERT draws its ids a moment *before* its
transaction is on that list, and a transaction gets its own id only when it first writes. So whoever
executes a statement is a holder too, and is followed from the one name to the next:

    connection and statement  →  connection and start  →  transaction id

A name on the left is reported until the transaction that may have followed from it has ended. In
doubt it is reported for longer, never shorter.

Why nobody is missed: the statements are looked at first, then the transactions. Whoever has drawn
an id before the first look is executing the INSERT that drew it, or his transaction has begun; and
once begun, it is on the list until what it committed is visible.

Who is on the list and is none, though he may insert later: of an id that was drawn before the first
look, he is no holder. What he draws later is a gap that is judged by later looks.

- A transaction without an id whose connection was idle at the first look: an INSERT that drew an id
  before had ended by then, and InnoDB writes no row without giving the transaction its id first.
- A read-only one (`START TRANSACTION READ ONLY`, or a SELECT without a transaction): it never gets
  an id. It is the only one of its connection, so what the connection drew before has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

__all__ = ["Names", "Transaction"]

_NO_ID: Final = 1 << 48
"""MySQL shows such a large number, and MariaDB 0, for a transaction that has not written yet."""


class Transaction(NamedTuple):
    """One row of `innodb_trx`. `connection` is 0 for a prepared one whose client has gone."""

    id: int
    connection: int
    started: str
    read_only: bool = False


class Names:
    """Gives names to holders, look after look. Keep it as long as the names are compared."""

    def __init__(self) -> None:
        self._passing: dict[int, dict[str, frozenset[str]]] = {}
        """By connection: names that pass over to transaction ids, and to which (empty: not yet)."""

    def seen(
        self, statements: Mapping[int, str], transactions: Sequence[Transaction]
    ) -> tuple[frozenset[str], frozenset[str]]:
        """The running and the nameless of `harvest.core.gaps.Holders`.

        `statements`: what each connection that is not idle executes, looked at before
        `transactions`.
        """
        nameless = frozenset(f"t{t.id}" for t in transactions if not t.connection and t.id)
        lasting: dict[int, set[str]] = {}
        begun: dict[int, set[str]] = {}
        for id, connection, started, read_only in transactions:
            if connection and 0 < id < _NO_ID:
                lasting.setdefault(connection, set()).add(f"t{id}")
            elif connection:
                may_write = set() if read_only else {f"c{connection} {started}"}
                begun.setdefault(connection, set()).update(may_write)
        passing: dict[int, dict[str, frozenset[str]]] = {}
        running: set[str] = set()
        for connection in {*statements, *lasting, *begun}:
            before = self._passing.get(connection, {})
            if connection in lasting:
                ids = frozenset(lasting[connection])
                now = {name: to or ids for name, to in before.items() if not to or to & ids}
                running |= ids
            elif connection in begun:
                if connection not in statements or not begun[connection]:
                    continue  # it holds nothing, nor does anybody who came before it
                now = {name: to for name, to in before.items() if not to}
                now.update(dict.fromkeys(begun[connection], frozenset()))
            else:  # an earlier statement's transaction would be on the list
                now = {f"c{connection} #{statements[connection]}": frozenset()}
            passing[connection] = now
            running.update(now)
        self._passing = passing
        return frozenset(running), nameless
