"""Names of InnoDB's holders: none is lost when it changes, and none is kept for ever."""

from __future__ import annotations

from harvest.databases.mysql.innodb import Names, Transaction

WRITER = 5


def running(names: Names, statements: dict[int, str], *found: Transaction) -> frozenset[str]:
    return names.seen(statements, found)[0]


def begun(connection: int = WRITER, started: str = "10:00:00") -> Transaction:
    return Transaction(0, connection, started)


def writing(id: int, connection: int = WRITER) -> Transaction:
    return Transaction(id, connection, "10:00:00")


def test_a_name_lasts_from_the_statement_to_the_end_of_its_transaction() -> None:
    names = Names()
    (first,) = running(names, {WRITER: "15"})
    assert first in running(names, {WRITER: "15"})
    assert first in running(names, {WRITER: "15"}, begun())
    assert first in running(names, {WRITER: "16"}, writing(20))
    assert first in running(names, {}, writing(20))
    assert first not in running(names, {}, writing(21))


def test_a_transaction_that_only_read_keeps_its_name_when_it_writes() -> None:
    names = Names()
    (first,) = running(names, {WRITER: "15"}, begun())
    assert first in running(names, {}, writing(20))
    assert first not in running(names, {})


def test_a_statement_that_ended_without_a_transaction_is_gone() -> None:
    names = Names()
    (first,) = running(names, {WRITER: "15"})
    assert first not in running(names, {WRITER: "16"})


def test_a_transaction_that_is_idle_and_has_written_nothing_holds_nothing() -> None:
    names = Names()
    (first,) = running(names, {WRITER: "15"}, begun())
    assert not running(names, {}, begun())
    assert running(names, {}, writing(20)) == {"t20"}, "and not the name that held nothing"
    assert first in running(names, {WRITER: "16"}, begun()), "it may have drawn an id by now"


def test_a_read_only_transaction_holds_nothing_whatever_its_connection_executes() -> None:
    names = Names()
    reading = Transaction(0, WRITER, "10:00:00", read_only=True)
    assert running(names, {WRITER: "15"})
    assert not running(names, {WRITER: "15"}, reading)
    assert running(names, {WRITER: "15"}, reading, begun()), "of its connection, another may write"


def test_transactions_that_follow_one_another_have_names_of_their_own() -> None:
    names = Names()
    first = running(names, {}, writing(20))
    assert not first & running(names, {}, writing(21))


def test_a_name_that_has_passed_over_does_not_come_back() -> None:
    names = Names()
    (first,) = running(names, {WRITER: "15"})
    assert first in running(names, {}, writing(20))
    assert first not in running(names, {}, begun())
    assert first not in running(names, {}, writing(22))


def test_connections_are_kept_apart() -> None:
    names = Names()
    both = running(names, {5: "15", 6: "15"})
    assert len(both) == 2
    assert len(both & running(names, {}, writing(20, 6))) == 1


def test_a_prepared_transaction_whose_client_has_gone_is_nameless() -> None:
    names = Names()
    assert names.seen({}, [writing(20)])[0] == {"t20"}
    assert names.seen({}, [writing(20, 0)]) == (frozenset[str](), frozenset({"t20"}))


def test_mysql_shows_a_large_number_before_the_first_write() -> None:
    names = Names()
    unwritten = Transaction(421_938_000_000_000, WRITER, "10:00:00")
    (first,) = running(names, {WRITER: "15"}, unwritten)
    assert first in running(names, {}, writing(20))
