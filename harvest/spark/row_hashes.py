"""The hashes of any number of rows, in little memory: what there is no room for is in files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from typing import IO, Final

import numpy as np

from harvest.spark.compare import Hashes

__all__ = ["RowHashes"]

ROOM: Final = 500_000
"""So many rows are in memory at most, with 24 bytes each, and some four times that as they are
sorted."""
PARTS: Final = 64
_SHIFT: Final = np.uint64(64 - 6)


class RowHashes:
    """Gathers rows, as three int64 arrays of one length: hash of the key, order, hash of the row.

    Its files are where Spark has its own, and gone when this is closed, or its process has ended.
    """

    def __init__(self) -> None:
        self._gathered: list[tuple[Hashes, Hashes, Hashes]] = []
        self._count = 0
        self._files: list[IO[bytes]] = []

    def close(self) -> None:
        """Delete the files, all of them, though the disk be full: then raises `OSError`."""
        with ExitStack() as stack:
            for file in self._files:
                stack.callback(file.close)

    def add(self, key: Hashes, order: Hashes, row: Hashes) -> None:
        """Take in rows. Raises `OSError` where a file has no room for them."""
        self._gathered.append((key, order, row))
        self._count += len(key)
        if self._count >= ROOM:
            self._write()

    def parts(self) -> Iterator[Hashes]:
        """Yield all rows by parts, as arrays of three lines: what has one key is in one part."""
        if not self._files:
            if self._count:
                yield self._taken()
            return
        self._write()
        for file in self._files:
            file.seek(0)
            found = np.frombuffer(file.read(), np.int64).reshape(-1, 3)
            file.close()
            if len(found):
                yield np.ascontiguousarray(found.T)

    def _taken(self) -> Hashes:
        found = np.array([np.concatenate(column) for column in zip(*self._gathered, strict=True)])
        self._gathered, self._count = [], 0
        return found

    def _write(self) -> None:
        if not self._count:
            return
        if not self._files:
            folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
            for _ in range(PARTS):
                self._files.append(tempfile.TemporaryFile(dir=folder))  # noqa: SIM115 - see `close`
        rows = self._taken()
        part = (rows[0].view(np.uint64) >> _SHIFT).astype(np.uint8)
        ends = np.cumsum(np.bincount(part, minlength=PARTS))[:-1]
        for file, its in zip(
            self._files, np.split(np.argsort(part, kind="stable"), ends), strict=True
        ):
            file.write(rows[:, its].T.tobytes())
