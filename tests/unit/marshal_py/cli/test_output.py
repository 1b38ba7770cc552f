"""What commands print as tables."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marshal_py.admin.formatting import safe
from marshal_py.cli import output
from marshal_py.printable import LineFormatter


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25
)
@given(
    rows=st.lists(st.tuples(st.text(max_size=9), st.integers(-1, 10**12)), min_size=1, max_size=9)
)
def test_a_long_table_has_the_lines_of_a_short_one(
    rows: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever strangers wrote: wide characters, markup, control characters."""

    def shown() -> str:
        made = output.table("NAME", "OFFSET", "END", right=("OFFSET",))
        for name, number in rows:
            made.add_row(safe(name), str(number), f"[red]{number}[/]")
        output.show(output.console(), "", made)
        return capsys.readouterr().out

    short = shown()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(output, "_LONG", 0)
        assert shown() == short
    assert all(line.isprintable() for line in short.split("\n"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(rows=st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=9)), max_size=9))
def test_a_long_list_is_the_same_document_with_a_line_for_each(
    rows: list[dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(output, "_LONG", 0)
        output.print_json(rows)
    text = capsys.readouterr().out
    assert json.loads(text) == rows
    if rows:
        assert text.count("\n") == len(rows) + 2
    assert all(line.isprintable() for line in text.split("\n"))


def test_a_table_of_rows_of_both_kinds_keeps_their_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = output.table("N")
    made.add_row("1")
    made.add_row("2", style="red")
    made.add_row("3")
    output.show(output.console(), made)
    assert capsys.readouterr().out.split() == ["N", "1", "2", "3"]


def test_no_name_is_cut_and_no_line_ends_in_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    made = output.table("NAME", "REST")
    made.add_row("x" * 500, "")
    output.show(output.console(), made)
    assert capsys.readouterr().out.splitlines()[1] == "x" * 500


def test_notes_go_to_standard_error_and_answers_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    output.note("a note")
    output.say("an answer")
    output.say("an error", stderr=True)
    output.print_json({"a": 1}, indent=None)
    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["an answer", '{"a": 1}']
    assert shown.err.splitlines() == ["a note", "an error"]


def test_a_character_that_the_terminal_lacks_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    output.prepare_output()
    output.say("é")
    output.say("é", stderr=True)
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        assert isinstance(stream.buffer, io.BytesIO)
        assert stream.buffer.getvalue() == b"\\xe9\n"


def test_logs_of_one_logger_are_shown_where_the_program_has_set_up_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = logging.getLogger("tests.of_output")
    monkeypatch.setattr(one, "handlers", [])
    output.log_to_stderr("%(message)s", name=one.name)
    assert one.handlers == [], "the program has handlers: pytest's"
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    output.log_to_stderr("%(message)s", name=one.name)
    assert [type(handler.formatter) for handler in one.handlers] == [LineFormatter]
    assert logging.getLogger().handlers == []
