"""The grid of the dashboard: whoever applies the changes has what whoever comes later gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from marshal_py.dashboard.cell_grid import STALE, CellGrid, lag_bucket
from marshal_py.dashboard.ranges import by_value, ranges
from marshal_py.protocol.rationalizer import Cell


def numbers(text: str) -> Iterator[int]:
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


class Page:
    """Reads documents as the page's own script does (static/model.js)."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.clients: list[str] = list(document["clients"])
        self.rows: dict[int, dict[str, Any]] = {}
        for row in document["rows"]:
            self.put(row)

    def put(self, row: dict[str, Any]) -> None:
        self.rows[row["row"]] = {
            "name": (row["group"], row["topic"]),
            "partitions": [], "holders": {}, "live": {}, "lag": {},
        }  # fmt: skip
        self.apply(row)

    def apply(self, change: dict[str, Any]) -> None:
        row = self.rows[change["row"]]
        row["partitions"] += numbers(change.get("partitions", ""))
        for name in ("holders", "live", "lag"):
            for value, slots in change.get(name, {}).items():
                for slot in numbers(slots):
                    row[name][slot] = int(value)

    def change(self, changes: dict[str, Any]) -> None:
        self.clients += changes.get("clients", [])
        for number in changes.get("removed", []):
            del self.rows[number]
        for row in changes.get("new", []):
            self.put(row)
        for change in changes.get("cells", []):
            self.apply(change)

    def cells(self) -> dict[tuple[str, str, int], tuple[str, int, int]]:
        return {
            (*row["name"], partition): (
                self.clients[row["holders"].get(slot, 0)],
                row["live"].get(slot, 0),
                row["lag"].get(slot, 0),
            )
            for row in self.rows.values()
            for slot, partition in enumerate(row["partitions"])
        }


GROUPS = st.sampled_from(["g", "h"])
TOPICS = st.sampled_from(["t", "u"])
PARTITIONS = st.integers(0, 12)
STEPS = st.one_of(
    st.tuples(st.just("put"), GROUPS, TOPICS, PARTITIONS, st.sampled_from([None, "a", "b", "c"])),
    st.tuples(st.just("live"), GROUPS, TOPICS, PARTITIONS, st.integers(1, 3)),
    st.tuples(st.just("lag"), GROUPS, TOPICS, PARTITIONS, st.integers(0, 40)),
    st.tuples(st.just("forget"), GROUPS),
    st.tuples(st.just("tell")),
)


@given(st.lists(STEPS, max_size=60))
def test_changes_add_up_to_the_whole(steps: list[tuple[Any, ...]]) -> None:
    grid = CellGrid()
    page = Page(grid.document())
    for step in steps:
        match step:
            case ("put", group, topic, partition, holder):
                grid.put(group, topic, partition, Cell((topic, partition), holder=holder))
            case ("live", group, topic, partition, code):
                row, slot = grid.put(group, topic, partition, Cell((topic, partition), holder="a"))
                row.set_live(slot, code)
            case ("lag", group, topic, partition, bucket):
                row = grid.row(group, topic)
                row.set_lag(grid.slot(row, partition), bucket)
                grid.touch(row)
            case ("forget", group):
                grid.remove_group(group)
            case _:
                page.change(grid.take_changes())
    page.change(grid.take_changes())
    assert page.cells() == Page(grid.document()).cells()
    assert grid.take_changes() == {}
    for row in grid.rows.values():
        stale = [row.holders[slot] for slot, code in enumerate(row.live) if code == 3]
        assert +row.stale_by == {holder: stale.count(holder) for holder in stale}


@given(st.sets(st.integers(0, 300)))
def test_ranges_hold_the_same_numbers(found: set[int]) -> None:
    text = ranges(sorted(found))
    assert set(numbers(text)) == found
    assert len(list(numbers(text))) == len(found)


def test_values_come_as_ranges() -> None:
    assert by_value([0, 2, 2, 1, 0, 2]) == {"2": "1-2,5", "1": "3"}
    assert by_value([0, 2, 2, 1], among=[0, 1]) == {"0": "0", "2": "1"}


def test_lag_in_powers_of_two() -> None:
    assert [lag_bucket(lag) for lag in (None, 0, 1, 2, 3, 4, 1024)] == [0, 1, 2, 3, 3, 4, 12]


def test_a_row_that_was_added_whole_is_the_one_that_grew() -> None:
    grown, whole = CellGrid(), CellGrid()
    cells = [(0, "a"), (1, None), (2, "b"), (5, "a")]
    for partition, holder in cells:
        grown.put("g", "t", partition, Cell(("t", partition), holder=holder) if holder else None)
    row = whole.add("g", "t", cells)
    for grid in (grown, whole):
        grid.rows["g", "t"].set_live(grid.rows["g", "t"].slots[5], STALE)
    assert whole.document() == grown.document()
    assert (row.slots, row.stale_by) == (grown.rows["g", "t"].slots, grown.rows["g", "t"].stale_by)
    assert whole.take_changes() == grown.take_changes()
    whole.put("g", "t", 6, Cell(("t", 6), holder="c"))
    grown.put("g", "t", 6, Cell(("t", 6), holder="c"))
    assert whole.take_changes() == grown.take_changes()
