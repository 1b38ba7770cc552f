"""Rows beyond what there is room for, in parts."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harvest.spark import row_hashes as module
from harvest.spark.compare import fingerprints
from harvest.spark.row_hashes import PARTS, RowHashes

BATCH = 7


def some_rows(count: int) -> Any:
    """Of 40 keys, with five values that come again and again."""
    numbers = np.random.default_rng(1)
    keys, values = (numbers.integers(-(2**63), 2**63, n, dtype=np.int64) for n in (40, 5))
    return numbers.choice(keys, count), np.arange(count), numbers.choice(values, count)


def prints(parts: Any) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for part in parts:
        for bucket, count, fingerprint in zip(*fingerprints(*part), strict=True):
            assert int(bucket) not in found  # a bucket is in one part
            found[int(bucket)] = (int(count), int(fingerprint))
    return found


class Folders:
    """Where files were made, and how many are there now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folders: list[Any] = []
        self.files: list[Any] = []
        make = tempfile.TemporaryFile

        def made(*, dir: Any) -> Any:
            self.folders.append(dir)
            self.files.append(make(dir=dir))
            return self.files[-1]

        monkeypatch.setattr(tempfile, "TemporaryFile", made)

    @property
    def open(self) -> int:
        return sum(not file.closed for file in self.files)


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 5_000])
def test_parts_have_the_fingerprints_of_all_rows_whatever_there_is_room_for(
    count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders = Folders(monkeypatch)
    monkeypatch.setattr(module, "ROOM", 100)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/other")
    rows = some_rows(count)
    with closing(RowHashes()) as hashes:
        for at in range(0, count, BATCH):
            hashes.add(*(column[at : at + BATCH] for column in rows))
        found = list(hashes.parts())
    expected = prints([rows]) if count else {}
    assert prints(found) == expected
    # What is in memory at once: no more than there is room for, or the rows of a part.
    assert max([len(part[0]) for part in found], default=0) <= max(100, count // 4)
    is_full = count >= 100
    assert folders.folders == [str(tmp_path)] * (PARTS if is_full else 0)
    assert not folders.open
    assert not list(tmp_path.iterdir())


def test_files_are_gone_though_nobody_asks_for_what_is_in_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders = Folders(monkeypatch)
    monkeypatch.setattr(module, "ROOM", 100)
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    hashes = RowHashes()
    hashes.add(*some_rows(200))
    assert (folders.open, set(folders.folders)) == (PARTS, {None})
    hashes.close()
    assert folders.open == 0


def test_a_disk_that_is_full_is_told_and_leaves_no_file_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files: list[Any] = []

    def made(*, dir: Any) -> Any:
        del dir
        files.append(Path("/dev/full").open("w+b"))  # noqa: SIM115 - `RowHashes` closes it
        return files[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", made)
    monkeypatch.setattr(module, "ROOM", 100)
    hashes = RowHashes()
    hashes.add(*some_rows(100))  # little enough to be buffered
    with pytest.raises(OSError, match="No space left"):
        hashes.add(*some_rows(100_000))
    with pytest.raises(OSError, match="No space left"):  # what was buffered
        hashes.close()
    assert len(files) == PARTS
    assert all(file.closed for file in files)
