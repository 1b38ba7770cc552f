"""An archive of published rows: one Parquet file for each range partition, written before its drop.

A file has the outbox's columns, with payloads and headers as bytes; `harvest reconcile --parquet`
reads it. Its name says the table and the ids, so there is one place for each partition: a manager
that is killed between the file and the drop, or a second one, finds the file, compares it with the
table, and drops. A file is seen under its name only when all of it is on the disk and was read
back.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from harvest.errors import ArchiveError, ConfigurationError
from harvest.maintenance.partitions import Extent, Partition, PartitionStore

__all__ = ["ArchiveFile", "ParquetArchive", "file_names"]

_BATCH: Final = 5_000
_UNNAMABLE: Final = re.compile(r"[^A-Za-z0-9._-]")
_SET_ASIDE: Final = b"harvest.set_aside"
"""What a file says beside its rows: the ids of those that were never published."""
_STALE_S: Final = 24 * 3600.0


class ArchiveFile(NamedTuple):
    """A file, for ids from `low` up to, and without, `high`."""

    path: Path
    low: int
    high: int


def _none(low: int, high: int) -> Collection[int]:
    del low, high
    return ()


def file_names(table: str) -> re.Pattern[str]:
    """What the files of an outbox are called; groups: their lowest and their highest id."""
    return re.compile(rf"{re.escape(_UNNAMABLE.sub('_', table))}-([0-9]+)-([0-9]+)\.parquet")


class ParquetArchive:
    """The files of the outbox `table` in `folder`, which is made if need be.

    `set_aside`: which ids, from a lowest to a highest, are of rows that are set aside now. Once a
    file is written nobody needs to know that any more: they may be put back, or dropped.

    Raises `ConfigurationError` where the folder has no name, or pyarrow is not installed. Methods
    raise `ArchiveError`: the disk is full, a file cannot be read, or holds other rows.
    """

    def __init__(
        self,
        folder: str | Path,
        table: str,
        set_aside: Callable[[int, int], Collection[int]] = _none,
    ) -> None:
        try:
            import pyarrow
        except ImportError:
            raise ConfigurationError(
                "an archive needs pyarrow: run `pip install 'marshal-py[archive]'`"
            ) from None
        if folder == "":  # of a variable that is not set: it would be wherever one happens to be
            raise ConfigurationError("the archive's folder is empty: name one")
        self._arrow_error: type[Exception] = pyarrow.ArrowException
        self.folder = Path(folder)
        self._set_aside = set_aside
        self._table = table

    def path(self, partition: Partition) -> Path:
        """Where the rows of a partition are kept."""
        stem = _UNNAMABLE.sub("_", self._table)
        return self.folder / f"{stem}-{partition.low}-{partition.high - 1}.parquet"

    def keep(self, partition: Partition, store: PartitionStore) -> Extent:
        """Have all rows of a partition in its file, once; return what is in it."""
        wanted = store.extent(partition)
        if not wanted.rows:
            return wanted
        path = self.path(partition)
        try:
            is_new = not path.exists()
            if is_new:
                aside = sorted(self._set_aside(partition.low, partition.high - 1))
                self._write(path, store.rows(partition, _BATCH), wanted, aside)
            found = self._extent(path)
            # As many rows of the same ids has the file of a table that was made anew since, too.
            if found == wanted and (is_new or _has_rows(path, store.rows(partition, _BATCH))):
                return found
        except (OSError, self._arrow_error) as error:
            raise ArchiveError(f"{path} could not be written: {_said(error)}") from error
        other = f"{found}, and the partition {wanted}" if found != wanted else "other rows"
        raise ArchiveError(
            f"{path} has {other}: is it of another outbox, or of one before this? Move it away, or "
            "give this outbox a folder of its own"
        )

    def files(self) -> list[ArchiveFile]:
        """What there is, in the order of the ids."""
        name = file_names(self._table)
        try:
            paths = list(self.folder.iterdir())
        except OSError as error:
            raise ArchiveError(f"the archive cannot be read: {_said(error)}") from error
        found = [(path, name.fullmatch(path.name)) for path in paths]
        files = [ArchiveFile(p, int(m[1]), int(m[2]) + 1) for p, m in found if m is not None]
        return sorted(files, key=lambda file: file.low)

    def read(self, low: int, high: int) -> Iterator[dict[str, Any]]:
        """The published rows with ids from `low` to `high`, ascending; a row is a mapping of its
        columns."""
        import pyarrow.parquet as pq

        for file in self.files():
            if file.high <= low or file.low > high:
                continue
            try:
                with pq.ParquetFile(file.path, page_checksum_verification=True) as parquet:
                    wanted = _row_groups(parquet.metadata, low, high)
                    said = parquet.metadata.metadata or {}
                    aside = frozenset(json.loads(said.get(_SET_ASIDE, b"[]")))
                    for batch in parquet.iter_batches(_BATCH, wanted):
                        for row in batch.to_pylist():
                            if low <= row["id"] <= high and row["id"] not in aside:
                                yield row
            except (OSError, self._arrow_error) as error:
                raise ArchiveError(f"{file.path} cannot be read: {_said(error)}") from error

    def _write(
        self,
        path: Path,
        batches: Iterable[Sequence[tuple[Any, ...]]],
        wanted: Extent,
        aside: Sequence[int],
    ) -> None:
        """All or nothing: under its name when it is on the disk, and is what it should be."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._sweep(path.name)
        # Spark takes no notice of names that begin with a point.
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            _write_parquet(draft, batches, aside)
            found = self._extent(draft)
            if found != wanted:
                raise ArchiveError(f"{draft} has {found}, and the partition {wanted}")
            os.replace(draft, path)
            _sync(self.folder)
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise

    def _sweep(self, name: str) -> None:
        """Remove what managers left behind that were killed while they wrote this file."""
        for draft in self.folder.glob(f".{name}.*.tmp"):
            with contextlib.suppress(OSError):
                if time.time() - draft.stat().st_mtime > _STALE_S:
                    draft.unlink()

    def _extent(self, path: Path) -> Extent:
        """What a file holds: all of it is read, and its checksums are verified."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        rows, lows, highs = 0, [], []
        with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
            for batch in parquet.iter_batches(_BATCH):
                rows += batch.num_rows
                bounds = pc.min_max(batch.column("id")).as_py()
                lows.append(bounds["min"])
                highs.append(bounds["max"])
        return Extent(rows, min(lows, default=None), max(highs, default=None))


def _row_groups(metadata: Any, low: int, high: int) -> list[int]:
    """Which parts of a file may have rows of these ids: a replay asks for one page at a time."""
    wanted = []
    for number in range(metadata.num_row_groups):
        ids = metadata.row_group(number).column(0).statistics  # `id` is the first of `_schema`
        if ids is None or not ids.has_min_max or (ids.min <= high and ids.max >= low):
            wanted.append(number)
    return wanted


def _has_rows(path: Path, batches: Iterable[Sequence[tuple[Any, ...]]]) -> bool:
    """Whether a file has these rows, and no others."""
    import pyarrow.parquet as pq

    schema = _schema()
    with pq.ParquetFile(path) as parquet:
        kept = (row for batch in parquet.iter_batches(_BATCH) for row in batch.to_pylist())
        rows = (row for batch in batches for row in _record_batch(batch, schema).to_pylist())
        return all(row == other for row, other in itertools.zip_longest(kept, rows))


def _write_parquet(
    path: Path, batches: Iterable[Sequence[tuple[Any, ...]]], aside: Sequence[int]
) -> None:
    import pyarrow.parquet as pq

    schema = _schema().with_metadata({_SET_ASIDE: json.dumps(aside)})
    with path.open("xb") as file:
        with pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
            for rows in batches:
                writer.write_batch(_record_batch(rows, schema))
        file.flush()
        os.fsync(file.fileno())


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("create_time", pa.timestamp("us", tz="UTC")),
            pa.field("kafka_topic", pa.string()),
            pa.field("kafka_key", pa.binary()),
            pa.field("kafka_value", pa.binary()),
            pa.field("kafka_header_keys", pa.list_(pa.binary())),
            pa.field("kafka_header_values", pa.list_(pa.binary())),
        ]
    )


def _record_batch(rows: Sequence[tuple[Any, ...]], schema: Any) -> Any:
    import pyarrow as pa

    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _said(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
