"""What commands print as tables."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marshal_py.admin.formatting import safe
from marshal_py.cli import output


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
