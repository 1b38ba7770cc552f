"""What reports are made of: nothing that strangers wrote is HTML, and bad figures look bad."""

from __future__ import annotations

from marshal_py.spark.html import html_page, html_table, html_tiles

STRANGER = "<script>alert('x')</script>"


def test_what_strangers_wrote_is_text() -> None:
    for document in (
        html_page(STRANGER, ""),
        html_tiles([(STRANGER, 1, True)]),
        html_table([STRANGER], [[STRANGER], [None]]),
    ):
        assert "<script" not in document
        assert "&lt;script&gt;" in document
    assert "<td></td>" in html_table(["name"], [[None]])


def test_columns_are_right_or_raw_where_it_is_said_so() -> None:
    table = html_table(["n", "link", "name"], [[1, "<a>", "<b>"]], numbers=["n"], raw=["link"])
    assert '<th class="n">n</th><th>link</th>' in table
    assert '<td class="n">1</td><td><a></td><td>&lt;b&gt;</td>' in table


def test_a_figure_is_bad_if_it_counts_and_is_not_0() -> None:
    tiles = html_tiles([("lost", 0, True), ("doubled", 1_234, True), ("rows", 5, False)])
    assert '<div class="tile good"><b>0</b>lost' in tiles
    assert '<div class="tile bad"><b>1,234</b>doubled' in tiles
    assert '<div class="tile "><b>5</b>rows' in tiles
