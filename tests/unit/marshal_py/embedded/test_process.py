"""The end of a log, however long it is and whatever is in it."""

from __future__ import annotations

from pathlib import Path

from marshal_py.embedded.process import tail


def test_bytes_that_are_no_text_are_shown_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\xff\nend\n")
    assert tail(tmp_path / "log") == "�\nend"


def test_of_a_long_log_the_last_lines_are_shown(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"{n}\n" for n in range(100)))
    assert tail(tmp_path / "log").split() == [str(n) for n in range(60, 100)]
    assert tail(tmp_path / "log", 2) == "98\n99"


def test_of_a_log_in_one_long_line_its_end_is_shown(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("begin" + "x" * 1_000_000 + "end")
    found = tail(tmp_path / "log")
    assert found.endswith("xend")
    assert len(found) < 100_000
