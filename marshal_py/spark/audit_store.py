"""The audit's folder: tables that hold every row exactly once, however often a run is killed.

::

    OUT/TABLE/run=000001/p3.parquet        rows that are final, of coordination partition 3
    OUT/TABLE/run=000001/p3-open.parquet   rows of what had not ended; replaced by the next run
    OUT/_checkpoint/run-000001.json        the commit of run 1: offsets, state, counts
    OUT/_checkpoint/state/p3-000001        the history of partition 3 after run 1
    OUT/_staging/run=000002/...            what a run that is not committed has written so far

Tasks write to the staging folder, each to files of its own, whose names do not depend on the
attempt: a task that runs twice writes the same files twice. Writing the commit file is the one
moment at which a run counts. Then the files are moved into the tables; a process that dies there
leaves the rest of the moves to the next. A run that was never committed is thrown away.

The folder is a local path or anything that `pyarrow.fs` opens (``s3://``, ``gs://``, ``hdfs://``),
shared by the driver and the executors.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from marshal_py.errors import ConfigurationError
from marshal_py.spark.audit_tables import TABLES, schema, to_arrow

__all__ = ["Rows", "Store"]

_STATE: Final = "state"


class Store:
    """One audit folder. Cheap to make, and picklable: tasks get it with their closure."""

    def __init__(self, out: str) -> None:
        self.out = out if "://" in out else str(Path(out).absolute())

    @property
    def _fs(self) -> tuple[pafs.FileSystem, str]:
        try:
            found, base = pafs.FileSystem.from_uri(self.out)
        except (pa.ArrowInvalid, OSError) as error:
            raise ConfigurationError(f"--out {self.out}: {error}") from None
        return found, base.rstrip("/")

    # Runs

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other audits out of a local folder; elsewhere, see to it yourself.

        Raises `ConfigurationError` when another one is at work.
        """
        if "://" in self.out:
            yield
            return
        folder = Path(self.out, "_checkpoint")
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(f"another audit is writing to {self.out}") from None
            yield

    def recover(self) -> dict[str, Any] | None:
        """Finish or throw away what a killed run left; return the last commit, None if none."""
        fs, base = self._fs
        runs = self._runs(fs, f"{base}/_checkpoint")
        last: dict[str, Any] | None = None
        if runs:
            last = json.loads(_read(fs, f"{base}/_checkpoint/{_commit_name(runs[-1])}"))
            self._finish(fs, base, runs[-1], last)
        _delete_dir(fs, f"{base}/_staging")
        return last

    def commit(self, run: int, document: dict[str, Any]) -> None:
        """Make a run count, and move its files into the tables."""
        fs, base = self._fs
        fs.create_dir(f"{base}/_checkpoint/state")
        _write(fs, f"{base}/_checkpoint/{_commit_name(run)}", json.dumps(document, indent=1))
        self._finish(fs, base, run, document)
        _delete_dir(fs, f"{base}/_staging")

    def _finish(self, fs: pafs.FileSystem, base: str, run: int, document: dict[str, Any]) -> None:
        staging = f"{base}/_staging/{_run_name(run)}"
        waiting = [info.path for info in _files(fs, staging)]
        if not waiting:
            return
        # What was open is open no longer, or is among the new files.
        for p, before in document["replaces"].items():
            for table in TABLES:
                _delete(fs, f"{base}/{table}/{_run_name(before)}/p{p}-open.parquet")
        for path in waiting:
            table, name = path[len(staging) + 1 :].split("/")
            if ".tmp" in name:
                continue
            if table == _STATE:
                target = f"{base}/_checkpoint/state/{name}"
            else:
                fs.create_dir(f"{base}/{table}/{_run_name(run)}")
                target = f"{base}/{table}/{_run_name(run)}/{name}"
            _move(fs, path, target)
        for p, before in document["replaces"].items():
            _delete(fs, f"{base}/_checkpoint/state/{_state_name(int(p), before)}")

    @staticmethod
    def _runs(fs: pafs.FileSystem, folder: str) -> list[int]:
        names = [info.base_name for info in _files(fs, folder, recursive=False)]
        return sorted(int(n[4:-5]) for n in names if n.startswith("run-") and n.endswith(".json"))

    # What tasks and the driver write

    def prepare(self, run: int) -> None:
        """Make the staging folder of a run, and every table's folder, so that all can be read."""
        fs, base = self._fs
        for table in TABLES:
            empty = f"{base}/{table}/{_run_name(0)}/empty.parquet"
            if fs.get_file_info(empty).type == pafs.FileType.NotFound:
                fs.create_dir(f"{base}/{table}/{_run_name(0)}")
                pq.write_table(to_arrow(table, []), empty, filesystem=fs)
        for table in (*TABLES, _STATE):
            fs.create_dir(f"{base}/_staging/{_run_name(run)}/{table}")

    def rows(self, run: int, name: str) -> Rows:
        """Return a writer of rows into the staging folder; `name` says whose they are."""
        fs, base = self._fs
        return Rows(fs, f"{base}/_staging/{_run_name(run)}", name)

    def write_state(self, run: int, p: int, data: bytes) -> None:
        """Stage the history of a coordination partition."""
        fs, base = self._fs
        path = f"{base}/_staging/{_run_name(run)}/{_STATE}/{_state_name(p, run)}"
        _write(fs, path, data)

    def read_state(self, p: int, run: int) -> bytes:
        """Return the history of a coordination partition as it was after a committed run."""
        fs, base = self._fs
        return _read(fs, f"{base}/_checkpoint/state/{_state_name(p, run)}")

    # Reading

    def exists(self) -> bool:
        """Say whether a run has been committed here."""
        fs, base = self._fs
        return bool(self._runs(fs, f"{base}/_checkpoint"))

    def table(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """Return a table, all of it. Raises `ConfigurationError` if there is no audit here."""
        import pyarrow.dataset as ds

        fs, base = self._fs
        paths = [info.path for info in _files(fs, f"{base}/{name}")]
        if not paths:
            raise ConfigurationError(f"{self.out} holds no audit: there is no table {name!r}")
        return ds.dataset(paths, filesystem=fs, schema=schema(name)).to_table(columns=columns)

    def write_text(self, name: str, text: str) -> str:
        """Write a file beside the tables, all of it or none; return its path."""
        fs, base = self._fs
        fs.create_dir(base)
        _write(fs, f"{base}/{name}", text)
        return f"{self.out}/{name}"


class Rows:
    """Writes rows of several tables, each to a Parquet file that appears when it is complete."""

    BUFFERED: Final = 20_000

    def __init__(self, fs: pafs.FileSystem, folder: str, name: str) -> None:
        self._fs = fs
        self._folder = folder
        self._name = name
        self._attempt = uuid.uuid4().hex[:8]
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._waiting: dict[str, list[tuple[Any, ...]]] = {}
        self.counts: dict[str, int] = {}

    def add(self, rows: dict[str, list[tuple[Any, ...]]]) -> None:
        """Take rows, by table."""
        for table, found in rows.items():
            waiting = self._waiting.setdefault(table, [])
            waiting += found
            self.counts[table] = self.counts.get(table, 0) + len(found)
            if len(waiting) >= self.BUFFERED:
                self._flush(table)

    def close(self) -> None:
        """Complete the files."""
        for table in list(self._waiting):
            self._flush(table)
        for table, writer in self._writers.items():
            writer.close()
            self._fs.move(self._path(table, tmp=True), self._path(table))

    def _flush(self, table: str) -> None:
        rows, self._waiting[table] = self._waiting[table], []
        if not rows:
            return
        if table not in self._writers:
            self._writers[table] = pq.ParquetWriter(
                self._path(table, tmp=True), schema(table), filesystem=self._fs
            )
        self._writers[table].write_table(to_arrow(table, rows))

    def _path(self, table: str, *, tmp: bool = False) -> str:
        end = f".{self._attempt}.tmp" if tmp else ".parquet"
        return f"{self._folder}/{table}/{self._name}{end}"


def _run_name(run: int) -> str:
    return f"run={run:06d}"


def _commit_name(run: int) -> str:
    return f"run-{run:06d}.json"


def _state_name(p: int, run: int) -> str:
    return f"p{p}-{run:06d}"


def _files(fs: pafs.FileSystem, folder: str, *, recursive: bool = True) -> list[pafs.FileInfo]:
    selector = pafs.FileSelector(folder, allow_not_found=True, recursive=recursive)
    return [info for info in fs.get_file_info(selector) if info.type == pafs.FileType.File]


def _read(fs: pafs.FileSystem, path: str) -> bytes:
    with fs.open_input_stream(path) as stream:
        return bytes(stream.read())


def _write(fs: pafs.FileSystem, path: str, data: bytes | str) -> None:
    temporary = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
    with fs.open_output_stream(temporary) as stream:
        stream.write(data.encode() if isinstance(data, str) else data)
    fs.move(temporary, path)


def _move(fs: pafs.FileSystem, path: str, target: str) -> None:
    fs.move(path, target)


def _delete(fs: pafs.FileSystem, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        fs.delete_file(path)


def _delete_dir(fs: pafs.FileSystem, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        fs.delete_dir(path)
