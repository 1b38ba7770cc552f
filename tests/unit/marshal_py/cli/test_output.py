"""What commands print as tables."""

from __future__ import annotations

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
