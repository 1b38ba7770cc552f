"""The audit's folder: tables that hold every row exactly once, however often a run is killed.

::

    OUT/TABLE/run=000001/p3-ID.parquet        rows that are final, of coordination partition 3
    OUT/TABLE/run=000001/p3-open-ID.parquet   rows of what had not ended; replaced by the next run
    OUT/_checkpoint/run-000001.json           the commit of run 1: its files, offsets, counts
    OUT/_checkpoint/state/p3-000001-ID        the history of partition 3 after run 1
    OUT/_staging/run=000002-ID/...            what a run that is not committed has written so far

Every attempt of a task, and every attempt of a run, writes under names that no other has: nothing
that somebody else does afterwards changes a file that is written. The commit names the files that
count. It is a file that is created if there is none of its number: of two runs that go on from one
commit, the second fails. Then its files are moved into the tables; a process that dies there
leaves the rest of the moves to the next. What no commit names is thrown away.

The folder is shared by the driver and the executors: a path, or ``s3://``, ``gs://`` or
``abfss://``, which `pyarrow.fs` opens and `obstore` commits to by a conditional put.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import json
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from marshal_py.errors import ConfigurationError, LogHole
from marshal_py.spark.audit_tables import TABLES, schema, to_arrow

if TYPE_CHECKING:
    import pyarrow.dataset as pads

__all__ = ["Rows", "Store"]

_STATE: Final = "state"
_FORMAT: Final = 2
"""Of commits. 1, of development versions, named no files."""
_OPEN: Final = "-open-"
_CONDITIONAL: Final = ("s3", "gs", "abfs", "abfss")
"""Stores that create an object only if there is none, by one request."""


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
        """Keep other audits of this machine out of a folder in its file system.

        It saves them work; that no two runs follow one commit is seen to by `commit`, everywhere.
        Raises `ConfigurationError` when another one is at work, or for a store without conditional
        puts.
        """
        fs, base = self._fs
        if not isinstance(fs, pafs.LocalFileSystem):
            scheme = self.out.partition("://")[0]
            if scheme not in _CONDITIONAL:
                raise ConfigurationError(
                    f"--out {self.out}: {scheme}:// cannot create a file only if there is none: "
                    "give a folder, or " + ", ".join(f"{each}://" for each in _CONDITIONAL)
                )
            yield
            return
        folder = Path(base, "_checkpoint")
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(f"another audit is writing to {self.out}") from None
            yield

    def recover(self) -> dict[str, Any] | None:
        """Finish what a killed run has committed; return the last commit, None if there is none."""
        fs, base = self._fs
        last = self._last(fs, base)
        if last is not None:
            self._finish(fs, base, last)
        return last

    def prepare(self, run: int) -> str:
        """Make every table's folder, so that all can be read, and a staging folder; return it."""
        fs, base = self._fs
        for table in TABLES:
            empty = f"{base}/{table}/{_run_name(0)}/empty.parquet"
            if fs.get_file_info(empty).type == pafs.FileType.NotFound:
                fs.create_dir(f"{base}/{table}/{_run_name(0)}")
                pq.write_table(to_arrow(table, []), empty, filesystem=fs)
        attempt = f"{_run_name(run)}-{uuid.uuid4().hex}"
        for table in (*TABLES, _STATE):
            fs.create_dir(f"{base}/_staging/{attempt}/{table}")
        return attempt

    def commit(self, attempt: str, document: dict[str, Any]) -> None:
        """Make the files that `document` names count, and move them into the tables.

        Raises `ConfigurationError`, and nothing of this run counts, if another one of its number is
        committed.
        """
        fs, base = self._fs
        document = {"format": _FORMAT, "attempt": attempt, **document}
        fs.create_dir(f"{base}/_checkpoint/{_STATE}")
        path = f"_checkpoint/{_commit_name(document['run'])}"
        if (
            not self._create(fs, base, path, json.dumps(document, indent=1).encode())
            # An answer that was lost, and the request sent again: it may be this very commit.
            and json.loads(_read(fs, f"{base}/{path}")).get("attempt") != attempt
        ):
            _delete_dir(fs, f"{base}/_staging/{attempt}")
            raise ConfigurationError(
                f"another audit has committed run {document['run']} to {self.out} meanwhile, and "
                "nothing of this one counts: let one audit at a time write there"
            )
        self._finish(fs, base, document)

    def _create(self, fs: pafs.FileSystem, base: str, path: str, data: bytes) -> bool:
        """Create a file with this content, all at once; say False if there was one."""
        if not isinstance(fs, pafs.LocalFileSystem):
            return _put_new(self.out, path, data)
        temporary = f"{base}/{path}.{uuid.uuid4().hex}.tmp"
        with Path(temporary).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            Path(f"{base}/{path}").hardlink_to(temporary)
        except FileExistsError:
            return False
        except OSError as error:
            raise ConfigurationError(
                f"--out {self.out}: its file system has no hard links, with which a run is "
                f"committed ({error}): give another folder"
            ) from None
        finally:
            Path(temporary).unlink()
        return True

    def _finish(self, fs: pafs.FileSystem, base: str, document: dict[str, Any]) -> None:
        """Bring the tables to what a commit says. Others may do the same at the same time."""
        run, staging = document["run"], f"{base}/_staging/{document['attempt']}"
        if fs.get_file_info(staging).type != pafs.FileType.NotFound:
            # What was open is open no longer, or is among the new files.
            self._sweep(fs, base, document)
            waiting = {info.path for info in _files(fs, staging)}
            for name in document["files"]:
                self._publish(fs, base, run, f"{staging}/{name}", name, waiting)
        for info in fs.get_file_info(pafs.FileSelector(f"{base}/_staging", allow_not_found=True)):
            # A later one may still be committed, by whoever writes it.
            if _number(info.base_name) <= run:
                _delete_dir(fs, info.path)

    def _publish(
        self,
        fs: pafs.FileSystem,
        base: str,
        run: int,
        source: str,
        name: str,
        waiting: set[str],
    ) -> None:
        table, file = name.split("/")
        folder = f"{base}/_checkpoint/{_STATE}"
        if table != _STATE:
            folder = f"{base}/{table}/{_run_name(run)}"
            fs.create_dir(folder)
        with contextlib.suppress(FileNotFoundError):
            if source in waiting:
                _move(fs, source, f"{folder}/{file}")
                return
        if (
            fs.get_file_info(f"{folder}/{file}").type == pafs.FileType.NotFound
            # A later run may have replaced it by now: then this one is long finished.
            and self._runs(fs, f"{base}/_checkpoint")[-1] == run
        ):
            raise LogHole(
                f"{self.out} has lost {name}, which run {run} has committed: give another --out"
            )

    def _sweep(self, fs: pafs.FileSystem, base: str, document: dict[str, Any]) -> None:
        """Delete what this commit has replaced, and never what a later one has written."""
        run, current = document["run"], _current(document)
        for table in TABLES:
            for info in _files(fs, f"{base}/{table}"):
                of = info.path[len(base) + 1 :].split("/")[1]
                if _OPEN in info.base_name and _number(of) < run and info.base_name not in current:
                    _delete(fs, info.path)
        for info in _files(fs, f"{base}/_checkpoint/{_STATE}"):
            if int(info.base_name.split("-")[1]) < run and info.base_name not in current:
                _delete(fs, info.path)

    def _last(self, fs: pafs.FileSystem, base: str) -> dict[str, Any] | None:
        runs = self._runs(fs, f"{base}/_checkpoint")
        if not runs:
            return None
        last: dict[str, Any] = json.loads(_read(fs, f"{base}/_checkpoint/{_commit_name(runs[-1])}"))
        if last.get("format") != _FORMAT:
            raise ConfigurationError(
                f"{self.out} was written by another version (format {last.get('format', 1)!r}, "
                f"not {_FORMAT}): give another --out"
            )
        return last

    @staticmethod
    def _runs(fs: pafs.FileSystem, folder: str) -> list[int]:
        names = [info.base_name for info in _files(fs, folder, recursive=False)]
        return sorted(int(n[4:-5]) for n in names if n.startswith("run-") and n.endswith(".json"))

    # What tasks and the driver write

    def rows(self, attempt: str, name: str) -> Rows:
        """Return a writer of rows into the staging folder; `name` says whose they are."""
        fs, base = self._fs
        return Rows(fs, f"{base}/_staging/{attempt}", name)

    def write_state(self, attempt: str, p: int, data: bytes) -> str:
        """Stage the history of a coordination partition; return its name for `read_state`."""
        fs, base = self._fs
        name = f"p{p}-{_number(attempt):06d}-{uuid.uuid4().hex}"
        with fs.open_output_stream(f"{base}/_staging/{attempt}/{_STATE}/{name}") as stream:
            stream.write(data)
        return name

    def read_state(self, name: str) -> bytes:
        """Return the history of a coordination partition as it was after a committed run."""
        fs, base = self._fs
        return _read(fs, f"{base}/_checkpoint/{_STATE}/{name}")

    # Reading

    def exists(self) -> bool:
        """Say whether a run has been committed here."""
        fs, base = self._fs
        return bool(self._runs(fs, f"{base}/_checkpoint"))

    def table(
        self,
        name: str,
        columns: list[str] | None = None,
        *,
        since: tuple[str, dt.datetime] | None = None,
    ) -> pa.Table:
        """Return a table. Raises `ConfigurationError` if there is no audit here.

        `since`: a column and a moment; rows that have ended, and have an earlier one, are left out
        (and not read, where all rows of a file have).
        """
        import pyarrow.dataset as pads

        if since is None:
            return self._dataset(name).to_table(columns=columns)
        ended, opened = self._paths(name)
        later = pads.field(since[0]) >= pa.scalar(since[1])
        found = self._open(name, ended).to_table(columns=columns, filter=later)
        return pa.concat_tables([found, self._open(name, opened).to_table(columns=columns)])

    def count(self, name: str) -> int:
        """How many rows a table has, from what its files say of themselves."""
        return int(self._dataset(name).count_rows())

    def values(self, name: str, column: str) -> Counter[Any]:
        """How often a column has each value; one batch of it in memory at a time."""
        found: Counter[Any] = Counter()
        for batch in self._dataset(name).to_batches(columns=[column]):
            for pair in batch.column(0).value_counts().to_pylist():
                found[pair["values"]] += pair["counts"]
        return found

    def newest_before(self, name: str, moment: dt.datetime, key: list[str]) -> list[dict[str, Any]]:
        """Of rows that are earlier (`at`), the newest one of each key; no others stay in memory."""
        import pyarrow.dataset as pads

        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        earlier = pads.field("at") < pa.scalar(moment)
        for batch in self._dataset(name).to_batches(filter=earlier):
            for row in batch.to_pylist():
                known = found.setdefault(tuple(row[column] for column in key), row)
                if known["at"] <= row["at"]:
                    known.update(row)
        return list(found.values())

    def latest(self) -> dt.datetime | None:
        """The time of the newest record that was folded."""
        fs, base = self._fs
        parts = (self._last(fs, base) or {"parts": {}})["parts"].values()
        newest_ms = max((part["until_ms"] for part in parts), default=None)
        return None if newest_ms is None else dt.datetime.fromtimestamp(newest_ms / 1000, dt.UTC)

    def _dataset(self, name: str) -> pads.Dataset:
        ended, opened = self._paths(name)
        return self._open(name, ended + opened)

    def _paths(self, name: str) -> tuple[list[str], list[str]]:
        """The files of a table: of rows that have ended, and of those that have not."""
        fs, base = self._fs
        current = _current(self._last(fs, base) or {"parts": {}})
        files = _files(fs, f"{base}/{name}")
        ended = [i.path for i in files if _OPEN not in i.base_name]
        opened = [i.path for i in files if i.base_name in current]
        if not ended + opened:
            raise ConfigurationError(f"{self.out} holds no audit: there is no table {name!r}")
        return ended, opened

    def _open(self, name: str, paths: list[str]) -> pads.Dataset:
        import pyarrow.dataset as pads

        return pads.dataset(paths, filesystem=self._fs[0], schema=schema(name), format="parquet")

    def write_text(self, name: str, text: str) -> str:
        """Write a file beside the tables, all of it or none; return its path."""
        fs, base = self._fs
        fs.create_dir(base)
        temporary = f"{base}/{name}.{uuid.uuid4().hex}.tmp"
        with fs.open_output_stream(temporary) as stream:
            stream.write(text.encode())
        fs.move(temporary, f"{base}/{name}")
        return f"{self.out}/{name}"


class Rows:
    """Writes rows of several tables, each to a Parquet file under a name of its own."""

    BUFFERED: Final = 20_000

    def __init__(self, fs: pafs.FileSystem, folder: str, name: str) -> None:
        self._fs = fs
        self._folder = folder
        self.name = f"{name}-{uuid.uuid4().hex}.parquet"
        """Of the file, in each table's folder."""
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

    def close(self) -> list[str]:
        """Complete the files; return their names."""
        for table in list(self._waiting):
            self._flush(table)
        for writer in self._writers.values():
            writer.close()
        return [f"{table}/{self.name}" for table in self._writers]

    def _flush(self, table: str) -> None:
        rows, self._waiting[table] = self._waiting[table], []
        if not rows:
            return
        if table not in self._writers:
            self._writers[table] = pq.ParquetWriter(
                f"{self._folder}/{table}/{self.name}", schema(table), filesystem=self._fs
            )
        self._writers[table].write_table(to_arrow(table, rows))


def _current(document: dict[str, Any]) -> set[str]:
    """The files of what had not ended, and the histories, that go on from this commit."""
    parts = document["parts"].values()
    return {name for part in parts for name in (part["state"], part["open_name"])}


def _run_name(run: int) -> str:
    return f"run={run:06d}"


def _commit_name(run: int) -> str:
    return f"run-{run:06d}.json"


def _number(name: str) -> int:
    """Of a run, from the name of one of its folders: run=000002, run=000002-ID."""
    return int(name.removeprefix("run=").split("-")[0])


def _files(fs: pafs.FileSystem, folder: str, *, recursive: bool = True) -> list[pafs.FileInfo]:
    selector = pafs.FileSelector(folder, allow_not_found=True, recursive=recursive)
    return [info for info in fs.get_file_info(selector) if info.type == pafs.FileType.File]


def _read(fs: pafs.FileSystem, path: str) -> bytes:
    with fs.open_input_stream(path) as stream:
        return bytes(stream.read())


def _put_new(out: str, path: str, data: bytes) -> bool:
    """Put an object if there is none of its name; say False if there is one."""
    try:
        import obstore
        from obstore.exceptions import AlreadyExistsError
        from obstore.store import from_url
    except ImportError:
        raise ConfigurationError(
            f"--out {out}: obstore is not installed: run `pip install 'marshal-py[object-store]'`"
        ) from None
    url = urlsplit(out)
    asked = {name: values[-1] for name, values in parse_qs(url.query).items()}
    settings: Any = {}  # of pyarrow's URI, in obstore's words
    if "endpoint_override" in asked:
        host = asked["endpoint_override"].split("://")[-1]
        settings["endpoint"] = f"{asked.get('scheme', 'https')}://{host}"
    if "region" in asked:
        settings["region"] = asked["region"]
    if url.scheme == "s3" and url.username:
        settings["access_key_id"] = unquote(url.username)
        settings["secret_access_key"] = unquote(url.password or "")
    client: Any = {"allow_http": settings.get("endpoint", "").startswith("http://")}
    store = from_url(
        f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}",
        config=settings,
        client_options=client,
    )
    try:
        obstore.put(store, path, data, mode="create")
    except AlreadyExistsError:
        return False
    return True


def _move(fs: pafs.FileSystem, path: str, target: str) -> None:
    fs.move(path, target)


def _delete(fs: pafs.FileSystem, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        fs.delete_file(path)


def _delete_dir(fs: pafs.FileSystem, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        fs.delete_dir(path)
