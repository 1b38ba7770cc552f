"""Files of an archive, without a database: on the disk before they have their name."""

from __future__ import annotations

import datetime as dt
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from harvest.errors import ArchiveError, ConfigurationError
from harvest.maintenance.archive import ParquetArchive
from harvest.maintenance.partitions import Extent, Partition

PARTITION = Partition("public.outbox_p0", 0, 100)
WHEN = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)


class Store:
    """A partition with the rows 1 to 3."""

    def __init__(self, value: bytes = b"v", headers: tuple[bytes, ...] | None = None) -> None:
        self._rest = (value, headers, headers)

    def extent(self, partition: Partition) -> Extent:
        del partition
        return Extent(3, 1, 3)

    def rows(self, partition: Partition, limit: int) -> Iterator[Sequence[tuple[Any, ...]]]:
        del partition, limit
        for n in (1, 2, 3):
            yield [(n, WHEN, "t", b"k", *self._rest)]


def test_a_file_has_its_name_when_it_is_on_the_disk_and_then_the_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, int]] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        done.append(("folder" if stat.S_ISDIR(found.st_mode) else "file", found.st_size))
        fsync(descriptor)

    def noted_replace(draft: Path, path: Path) -> None:
        done.append(("name", draft.stat().st_size))
        replace(draft, path)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    archive, store = ParquetArchive(tmp_path, "outbox"), Store()
    assert archive.keep(PARTITION, store) == Extent(3, 1, 3)  # type: ignore[arg-type]
    assert [what for what, _ in done] == ["file", "name", "folder"]
    assert done[0][1] == done[1][1] == archive.path(PARTITION).stat().st_size


def test_a_folder_without_a_name_is_not_the_one_where_one_happens_to_be() -> None:
    """Of `--archive "$UNSET"`."""
    with pytest.raises(ConfigurationError, match="the archive's folder is empty"):
        ParquetArchive("", "outbox")


def test_a_folder_in_a_folder_is_made_and_nothing_is_kept_of_nothing(tmp_path: Path) -> None:
    class Empty(Store):
        def extent(self, partition: Partition) -> Extent:
            del partition
            return Extent(0)

        def rows(self, partition: Partition, limit: int) -> Iterator[Sequence[tuple[Any, ...]]]:
            del partition, limit
            return iter(())

    archive = ParquetArchive(tmp_path / "kept" / "shop", "outbox")
    assert archive.keep(PARTITION, Empty()) == Extent(0)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    archive.keep(PARTITION, Store())  # type: ignore[arg-type]
    assert [file.path for file in archive.files()] == [archive.path(PARTITION)]


def test_files_come_in_the_order_of_their_ids(tmp_path: Path) -> None:
    for bounds in ("1000-1999", "200-299", "10000-10099", "-5-9", "20000"):
        (tmp_path / f"outbox-{bounds}.parquet").touch()
    (tmp_path / "outbox2-0-99.parquet").touch()
    files = ParquetArchive(tmp_path, "outbox").files()
    assert [(file.low, file.high) for file in files] == [(200, 300), (1000, 2000), (10000, 10100)]


def test_a_file_that_cannot_be_read_is_told_with_its_name(tmp_path: Path) -> None:
    archive = ParquetArchive(tmp_path, "outbox")
    archive.path(PARTITION).write_bytes(b"of a disk that was full")
    with pytest.raises(ArchiveError, match=r"outbox-0-99\.parquet could not be"):
        archive.keep(PARTITION, Store())  # type: ignore[arg-type]
    with pytest.raises(ArchiveError, match=r"outbox-0-99\.parquet cannot be read"):
        list(archive.read(0, 99))
    assert list(archive.read(100, 200)) == []


def test_both_ends_of_what_is_read_are_in_it_and_other_files_are_left_alone(tmp_path: Path) -> None:
    archive = ParquetArchive(tmp_path, "outbox")
    archive.keep(PARTITION, Store())  # type: ignore[arg-type]
    (tmp_path / "outbox-100-199.parquet").write_bytes(b"nothing that could be read")
    for low, high, wanted in ((1, 3, [1, 2, 3]), (2, 2, [2]), (3, 99, [3]), (0, 0, [])):
        assert [row["id"] for row in archive.read(low, high)] == wanted


def test_of_a_large_file_only_what_may_have_these_ids_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = ParquetArchive(tmp_path, "outbox")
    archive.keep(PARTITION, Store())  # type: ignore[arg-type]  # a row at a time
    read: list[Sequence[int]] = []
    iter_batches = parquet.ParquetFile.iter_batches

    def noted(file: Any, size: int, row_groups: Sequence[int]) -> Any:
        read.append(row_groups)
        return iter_batches(file, size, row_groups)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", noted)
    for low, high in ((2, 2), (2, 99), (0, 1), (4, 9)):
        list(archive.read(low, high))
    assert read == [[1], [1, 2], [0], []]


def test_what_a_manager_left_behind_goes_and_what_one_writes_now_stays(tmp_path: Path) -> None:
    archive = ParquetArchive(tmp_path, "outbox")
    drafts = [tmp_path / f".outbox-0-99.parquet.{name}.tmp" for name in ("left", "now")]
    others = tmp_path / ".outbox-100-199.parquet.left.tmp"
    for draft in (*drafts, others):
        draft.touch()
    for left in (drafts[0], others):
        os.utime(left, (0, 0))
    archive.keep(PARTITION, Store())  # type: ignore[arg-type]
    assert [path.exists() for path in (*drafts, others)] == [False, True, True]


def test_a_file_that_is_there_already_is_kept_if_it_has_these_very_rows(tmp_path: Path) -> None:
    """As where a manager was killed between the file and the drop."""
    archive = ParquetArchive(tmp_path, "outbox")
    for _ in range(2):
        store: Any = Store(headers=(b"h", b""))
        assert archive.keep(PARTITION, store) == Extent(3, 1, 3)


@pytest.mark.parametrize("other", [Store(b"w"), Store(headers=(b"h",)), Store(headers=())])
def test_the_file_of_a_table_that_was_made_anew_since_is_not_taken_for_this_ones(
    tmp_path: Path, other: Any
) -> None:
    """It has as many rows of the same ids: what is not in it would be dropped."""
    archive = ParquetArchive(tmp_path, "outbox")
    first: Any = Store()
    archive.keep(PARTITION, first)
    before = archive.path(PARTITION).read_bytes()
    with pytest.raises(ArchiveError, match=r"0-99\.parquet has other rows: is it of another outb"):
        archive.keep(PARTITION, other)
    assert archive.path(PARTITION).read_bytes() == before


def test_what_is_set_aside_is_in_the_file_and_is_not_read_as_published(tmp_path: Path) -> None:
    """Also when nobody knows any more that it was: it was put back, or dropped."""
    asked: list[tuple[int, int]] = []

    def set_aside(low: int, high: int) -> frozenset[int]:
        asked.append((low, high))
        return frozenset([2])

    ParquetArchive(tmp_path, "outbox", set_aside).keep(PARTITION, Store())  # type: ignore[arg-type]
    assert asked == [(0, 99)]
    (path,) = tmp_path.iterdir()
    assert parquet.read_table(path).column("id").to_pylist() == [1, 2, 3]
    later = ParquetArchive(tmp_path, "outbox")
    assert [row["id"] for row in later.read(0, 99)] == [1, 3]
    later.keep(PARTITION, Store())  # type: ignore[arg-type]  # it is there already


def test_of_a_file_that_is_not_what_it_should_be_nothing_is_left(tmp_path: Path) -> None:
    class More(Store):
        def extent(self, partition: Partition) -> Extent:
            del partition
            return Extent(4, 1, 4)

    with pytest.raises(ArchiveError, match="has 3 rows, ids 1 to 3, and the partition 4 rows"):
        ParquetArchive(tmp_path, "outbox").keep(PARTITION, More())  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
