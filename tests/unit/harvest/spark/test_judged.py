"""What becomes of each difference, told or carried over; and a state that cannot be used."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harvest.errors import ConfigurationError
from harvest.spark.compare import Flag
from harvest.spark.details import CARRIED_COLUMNS, Rules, details, schema_of
from harvest.spark.state import State, StateFolder

YOUNG = 1_000


def item(a: int, row_hash: int, *, at_ms: int = 0, flags: int = 0, **more: Any) -> dict[str, Any]:
    named = {"key_hash": 1, "topic": "t", "key": b"k", "b": 0, "in_kafka": False, "carried": False}
    return named | {"a": a, "row_hash": row_hash, "at_ms": at_ms, "flags": flags} | more


def judged(rules: Rules, *items: dict[str, Any]) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pylist(list(items), schema=schema_of(CARRIED_COLUMNS))
    return [line for out in details(rules)(iter([batch])) for line in out.to_pylist()]


def kinds(lines: Sequence[dict[str, Any]]) -> list[str]:
    return [line["kind"] for line in lines]


def test_a_row_that_is_missing_is_told_once_and_carried_as_told() -> None:
    rules = Rules(young_ms=YOUNG, carrying=True)
    missing, carried = judged(rules, item(5, 50, at_ms=YOUNG))
    assert (missing["kind"], missing["id"], missing["key"]) == ("missing", 5, "k")
    assert (carried["kind"], carried["_flags"]) == ("carry", Flag.TOLD)
    assert (carried["_a"], carried["_row_hash"], carried["_carried"]) == (5, 50, True)
    assert kinds(judged(rules, item(5, 50, flags=Flag.TOLD))) == ["outstanding", "carry"]
    assert kinds(judged(rules, item(5, 50, at_ms=YOUNG + 1))) == ["pending", "carry"]
    assert kinds(judged(Rules(young_ms=YOUNG), item(5, 50))) == ["missing"]


@pytest.mark.parametrize("carrying", [True, False])
def test_a_row_whose_time_is_not_known_is_an_old_one(*, carrying: bool) -> None:
    """In an archive, an infinite time is none."""
    missing, *carried = judged(Rules(YOUNG, carrying=carrying), item(5, 50) | {"at_ms": None})
    assert (missing["kind"], missing["row_at_ms"]) == ("missing", None)
    assert kinds(carried) == ["carry"] * carrying


def test_a_row_that_a_later_one_overtook_is_carried_as_that() -> None:
    rules = Rules(young_ms=YOUNG, carrying=True)
    pair = (item(6, 60), item(0, 60, in_kafka=True))
    young = {"at_ms": YOUNG + 1}
    assert judged(rules, item(5, 50, **young), *pair)[-1]["_flags"] == Flag.OVERTAKEN
    assert judged(rules, *pair, item(7, 70, **young))[-1]["_flags"] == 0
    late = (item(6, 60, flags=Flag.LATE), pair[1])
    assert judged(rules, item(5, 50, **young), *late)[-1]["_flags"] == 0


def test_a_record_that_nobody_committed_is_carried_while_it_is_young() -> None:
    young = item(0, 60, at_ms=YOUNG + 1, in_kafka=True)
    assert kinds(judged(Rules(YOUNG, carrying=True), young)) == ["carry"]
    assert kinds(judged(Rules(YOUNG), young)) == ["never_committed"]
    old = young | {"at_ms": YOUNG}
    assert kinds(judged(Rules(YOUNG, carrying=True), old)) == ["never_committed"]


def test_of_ids_that_are_not_wanted_only_what_is_carried_and_records_are_compared() -> None:
    rules = Rules(YOUNG, wanted=[(10, 20)])
    assert kinds(judged(rules, item(5, 50))) == []
    assert kinds(judged(rules, item(10, 50))) == ["missing"]
    assert kinds(judged(rules, item(5, 50, carried=True))) == ["missing"]
    assert kinds(judged(rules, item(0, 50, in_kafka=True))) == ["never_committed"]


def test_a_key_that_is_no_text_is_told_as_hex() -> None:
    assert judged(Rules(YOUNG), item(5, 50, key=b"\xff\x00"))[0]["key"] == "0xff00"
    assert judged(Rules(YOUNG), item(5, 50, key=None))[0]["key"] is None


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"version": 1}', '{"version": 3, "offsets": 1}']
)
def test_a_state_that_cannot_be_read_is_told_with_the_way_out(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(ConfigurationError, match=r"state.json cannot be read .*empty folder"):
        StateFolder(tmp_path).load("t")


def test_a_state_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    folder.store(State("t"))
    path = tmp_path / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))
    with pytest.raises(ConfigurationError, match="another version"):
        folder.load("t")


def test_what_a_first_run_left_that_was_killed_goes(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "a" / "b")
    with folder.locked():
        folder.carried(1).mkdir()
        folder.load("t")
    assert not folder.carried(1).exists()


def test_ids_below_0_that_come_later_are_looked_for() -> None:
    first = State("t").after([(-5, -3), (2, 3)], {}, now_ms=100, late_ms=50)
    assert list(first.open_ids) == [(-2, 1, 100)]
    given_up = first.after([], {}, now_ms=150, late_ms=50)
    assert list(given_up.open_ids) == []


def test_a_state_is_on_the_disk_before_it_counts_and_then_what_it_replaced_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    replace, fsync, rmtree = Path.replace, os.fsync, shutil.rmtree

    def replaced(self: Path, target: Path) -> Path:
        done.append("counts")
        return replace(self, target)

    def synced(file: int) -> None:
        done.append(f"{os.fstat(file).st_size > 0} disk")
        fsync(file)

    def removed(path: Path) -> None:
        done.append(path.name)
        rmtree(path)

    folder = StateFolder(tmp_path)
    folder.carried(1).mkdir()
    monkeypatch.setattr(Path, "replace", replaced)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(shutil, "rmtree", removed)
    folder.store(State("t", 2))
    assert done == ["True disk", "counts", "carried-000001"]


def test_while_a_state_is_written_the_one_before_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = StateFolder(tmp_path)
    folder.store(State("t", 1))

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(json, "dump", full)
    with pytest.raises(OSError, match="no space left"):
        folder.store(State("t", 2))
    assert folder.load("t").run == 1
