"""Messages, places in the log and names of tables, at their bounds."""

from __future__ import annotations

import pytest

from harvest.core.message import pack_message, unpack_message
from harvest.core.table_name import TableName
from harvest.core.wal_position import WalPosition, parse_lsn
from harvest.errors import ConfigurationError, InvalidRecord
from harvest.outbox.record import OutboxRecord

CONTENT = pack_message("t", b"k", b"value", [(b"h", b"its")])


@pytest.mark.parametrize("end", range(len(CONTENT)))
def test_a_message_that_is_cut_off_is_refused_wherever_it_ends(end: int) -> None:
    with pytest.raises(ValueError, match=r"cut off|should have"):
        unpack_message(CONTENT[:end])


def test_a_message_of_another_version_or_whose_topic_is_no_text_is_refused() -> None:
    with pytest.raises(ValueError, match="version 2"):
        unpack_message(b"\x02" + CONTENT[1:])
    with pytest.raises(ValueError, match="version 0"):
        unpack_message(b"\x00" + CONTENT[1:])
    with pytest.raises(ValueError, match="it is cut off, or no text"):
        unpack_message(CONTENT.replace(b"t", b"\xff", 1))


def test_a_name_that_is_too_long_for_a_message_is_told() -> None:
    for topic, header in (("t" * 65_536, b"h"), ("t", b"h" * 65_536)):
        with pytest.raises(ValueError, match="it is too long"):
            pack_message(topic, b"k", b"v", [(header, b"")])


def test_a_position_covers_itself_and_what_is_before_it() -> None:
    at = WalPosition(1, "s", 1, 10, part_lsn=12, part_rows=3)
    assert at.covers(at)
    for less in ((9, 20, 9), (10, 11, 9), (10, 12, 2)):
        other = WalPosition(2, "s", 1, less[0], part_lsn=less[1], part_rows=less[2])
        assert (at.covers(other), other.covers(at)) == (True, False)


def test_a_position_is_passed_forwards_only_and_never_amid_a_transaction() -> None:
    at, amid = WalPosition(1, "s", 1, 10, 8), WalPosition(1, "s", 1, 10, 8, 12, 3)
    assert at.passed(11) == WalPosition(1, "s", 1, 11, 8)
    assert at.passed(9) == at
    assert amid.passed(11) == amid


@pytest.mark.parametrize("text", ["", "16", "16/", "16/G", "16/B374D848x", "1/123456789", " 1/2"])
def test_what_is_no_place_in_the_log_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no LSN"):
        parse_lsn(text)


def test_a_name_of_a_table_has_63_bytes_at_most_and_no_nul() -> None:
    assert TableName.parse("é" * 31 + "a").table == "é" * 31 + "a"
    for text in ("é" * 32, "a" * 64, '"a\0b"', '"a%sb"', '"50%".outbox'):
        with pytest.raises(ConfigurationError, match="longer than 63 bytes or holds a NUL or a %"):
            TableName.parse(text)


def test_a_table_beside_another_is_in_its_schema_and_has_no_longer_a_name() -> None:
    assert TableName(("s", 'o"x')).beside("dead") == TableName(("s", 'o"x_dead'))
    with pytest.raises(ConfigurationError, match="longer than 63 bytes"):
        TableName(("a" * 60,)).beside("dead")


def test_a_name_is_quoted_as_the_database_quotes() -> None:
    assert TableName(("s", 'a`b"c')).quoted("`") == '`s`.`a``b"c`'


def test_an_empty_key_is_one_and_what_is_nested_too_deep_is_no_json() -> None:
    assert OutboxRecord("t", "").key == ""
    assert OutboxRecord("t", b"").key == b""
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(InvalidRecord, match="value cannot be JSON"):
        OutboxRecord.json("t", "k", nested)
