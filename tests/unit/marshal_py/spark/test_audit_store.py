"""The audit's folder: overlapping attempts, of tasks and of runs. No Spark, no Kafka."""

from __future__ import annotations

import datetime as dt
import errno
import json
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from marshal_py.errors import ConfigurationError, LogHole
from marshal_py.protocol.messages import ClaimingPartition, encode
from marshal_py.spark import audit as audit_module
from marshal_py.spark import audit_store as store_module
from marshal_py.spark.audit_report import render
from marshal_py.spark.audit_store import Store
from marshal_py.spark.audit_tables import schema

CLAIMS = 30


class Record:
    """A message of the coordination log."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        n = self._offset
        return encode(ClaimingPartition(2, "c", f"{1:016x}", "g", n, "data", n, 5000, -1))

    def timestamp(self) -> tuple[int, int]:
        return 2, 1_700_000_000_000 + self._offset * 1000


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> None:
    """One coordination partition of claims, of cells of their own."""

    def read(_c: Any, _t: str, _p: int, start: int, end: int) -> Iterator[list[Record]]:
        yield [Record(offset) for offset in range(start, end)]

    monkeypatch.setattr(audit_module, "read_range", read)


class Run:
    """What a driver plans: records from `start` to `end`, after the commit `before`."""

    def __init__(self, store: Store, end: int, before: dict[str, Any] | None = None) -> None:
        self.store = store
        known: dict[str, Any] = (
            before["parts"]["0"] if before else {"next_offset": 0, "state": None}
        )
        self.number = before["run"] + 1 if before else 1
        self.attempt = store.prepare(self.number)
        part = audit_module._Part(known["next_offset"], end, known["state"])
        self._task = audit_module._task({}, "t", store, self.attempt, {0: part}, 1, 60_000)

    def task(self) -> dict[str, Any]:
        """An attempt of the one task; its result."""
        batch = pa.RecordBatch.from_pydict({"id": pa.array([0], pa.int64())})
        result: dict[str, Any] = json.loads(next(self._task(iter([batch]))).column(1)[0].as_py())
        return result

    def commit(self, result: dict[str, Any]) -> None:
        files = result.pop("files")
        self.store.commit(
            self.attempt, {"run": self.number, "files": files, "parts": {"0": result}}
        )


def claims(store: Store) -> list[int]:
    return sorted(store.table("claims").column("partition").to_pylist())


def claims_on_disk(store: Store) -> int:
    """Rows, as whoever reads the folder sees them."""
    files = Path(store.out, "claims").rglob("*.parquet")
    return sum(pq.ParquetFile(str(file)).metadata.num_rows for file in files)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def test_a_task_of_a_killed_driver_that_ends_last_changes_nothing(store: Store) -> None:
    killed = Run(store, 10)
    store.recover()
    run = Run(store, 20)
    result = run.task()
    killed.task()
    run.commit(result)
    assert claims(store) == list(range(20))
    following = Run(store, CLAIMS, store.recover())
    following.commit(following.task())
    assert claims(store) == list(range(CLAIMS))
    assert claims_on_disk(store) == CLAIMS


def test_a_task_that_is_tried_twice_counts_once(store: Store) -> None:
    run = Run(store, 20)
    first, second = run.task(), run.task()
    assert not {*first["files"]} & {*second["files"]}
    run.commit(first)
    assert claims_on_disk(store) == 20


def test_of_two_runs_after_one_commit_the_second_fails(store: Store) -> None:
    begin = Run(store, 5)
    begin.commit(begin.task())
    one, other = (Run(store, end, store.recover()) for end in (10, 20))
    ones, others = one.task(), other.task()
    one.commit(ones)
    with pytest.raises(ConfigurationError, match="another audit has committed run 2"):
        other.commit(others)
    assert claims(store) == list(range(10))
    following = Run(store, CLAIMS, store.recover())
    following.commit(following.task())
    assert claims_on_disk(store) == CLAIMS
    assert list(Path(store.out, "_staging").iterdir()) == []


def test_a_recovery_leaves_what_may_still_be_committed(store: Store) -> None:
    slow = Run(store, 20)
    result = slow.task()
    assert store.recover() is None
    slow.commit(result)
    assert claims(store) == list(range(20))


def test_a_recovery_after_a_commit_leaves_the_run_that_is_under_way(store: Store) -> None:
    begin = Run(store, 10)
    begin.commit(begin.task())
    slow = Run(store, 20, store.recover())
    result = slow.task()
    store.recover()  # another audit begins
    slow.commit(result)
    assert claims(store) == list(range(20))


def test_a_commit_whose_answer_was_lost_is_ones_own(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request was sent again, and is told that there is one."""
    create = Store._create

    def repeated(*given: Any) -> bool:
        create(*given)
        return create(*given)

    monkeypatch.setattr(Store, "_create", repeated)
    run = Run(store, 10)
    run.commit(run.task())
    assert claims(store) == list(range(10))


def test_a_commit_is_on_the_disk_before_it_has_its_name(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    link, fsync = Path.hardlink_to, os.fsync

    def linked(self: Path, target: str) -> None:
        done.append("name")
        link(self, target)

    def synced(file: int) -> None:
        done.append(f"{os.fstat(file).st_size > 0} disk")
        fsync(file)

    monkeypatch.setattr(Path, "hardlink_to", linked)
    monkeypatch.setattr(os, "fsync", synced)
    run = Run(store, 10)
    run.commit(run.task())
    assert done == ["True disk", "name"]


@pytest.mark.parametrize("moved", range(2))
def test_whoever_reads_while_files_are_moved_sees_no_row_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    begin = Run(store, 10)
    begin.commit(begin.task())
    following = Run(store, 20, store.recover())
    result = following.task()
    left = [moved]

    def move(fs: Any, source: str, target: str) -> None:
        if not left[0]:
            raise ZeroDivisionError
        left[0] -= 1
        fs.move(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "_move", move)
        with pytest.raises(ZeroDivisionError):
            following.commit(result)
        assert claims_on_disk(store) in (0, 20)
        assert len(claims(store)) in (0, 20)
    store.recover()
    assert claims(store) == list(range(20))


def test_a_slow_end_of_a_run_undoes_nothing_of_the_next(store: Store) -> None:
    """Its driver stands still in the middle of its moves, and another has gone on meanwhile."""
    run = Run(store, 10)
    run.commit(run.task())
    before = store.recover()
    assert before is not None
    late = Path(store.out, "_staging", before["attempt"])
    following = Run(store, 20, before)
    following.commit(following.task())
    late.mkdir()
    fs, base = store._fs
    store._finish(fs, base, before)  # what was open after run 1 is gone, as run 2 has said
    assert claims_on_disk(store) == 20
    assert claims(store) == list(range(20))
    last = Run(store, CLAIMS, store.recover())  # it goes on from what run 2 knew
    last.commit(last.task())
    assert claims(store) == list(range(CLAIMS))


def test_rows_beyond_what_is_kept_in_memory_are_written_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module.Rows, "BUFFERED", 2)
    attempt = store.prepare(1)
    rows = store.rows(attempt, "x")
    for n in range(5):
        rows.add({"ends": [("t", n, 1, 2)]})
    assert rows.counts == {"ends": 5}
    (file,) = rows.close()
    written = pq.read_table(Path(store.out, "_staging", attempt, file))
    assert written.column("partition").to_pylist() == list(range(5))


def test_the_newest_record_is_that_of_all_partitions(store: Store) -> None:
    assert store.latest() is None
    part = {"state": "s", "open_name": "o"}
    parts = {str(p): {**part, "until_ms": at_ms} for p, at_ms in enumerate((2_000, 5_000, 3_000))}
    store.commit(store.prepare(1), {"run": 1, "files": [], "parts": parts})
    assert store.latest() == dt.datetime.fromtimestamp(5, dt.UTC)


def test_a_committed_file_that_is_lost_is_said(store: Store) -> None:
    run = Run(store, 10)
    result = run.task()
    for file in Path(store.out, "_staging", run.attempt, "claims").iterdir():
        file.unlink()
    with pytest.raises(LogHole, match="has lost claims/"):
        run.commit(result)


def _create(out: str, ready: Any, n: int, results: Any) -> None:
    store = Store(out)
    fs, base = store._fs
    ready.wait()
    results.put((n, store._create(fs, base, "_checkpoint/run-000001.json", b"%d" % n * 1000)))


def test_of_processes_that_create_one_commit_one_does(store: Store) -> None:
    Path(store.out, "_checkpoint").mkdir()
    context = multiprocessing.get_context("fork")
    ready, results = context.Barrier(4), context.Queue()
    processes = [
        context.Process(target=_create, args=(store.out, ready, n, results)) for n in range(4)
    ]
    for process in processes:
        process.start()
    found = dict(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(60)
    winners = [n for n, created in found.items() if created]
    assert len(winners) == 1
    commit = Path(store.out, "_checkpoint/run-000001.json")
    assert commit.read_bytes() == b"%d" % winners[0] * 1000
    assert [*commit.parent.iterdir()] == [commit]


def test_a_folder_of_this_machine_is_locked_however_it_is_named(store: Store) -> None:
    with (
        store.locked(),
        pytest.raises(ConfigurationError, match="another audit"),
        Store(f"file://{store.out}").locked(),
    ):
        pass


def test_a_report_has_the_newest_days_and_what_is_held(store: Store) -> None:
    """However long the history is, no more than that is read."""
    day_ms = 86_400_000

    def claim(partition: int, until_day: int | None) -> dict[str, Any]:
        row: dict[str, Any] = dict.fromkeys(schema("claims").names)
        moment = None if until_day is None else until_day * day_ms
        known = {"coordinator": 0, "group_id": "g", "topic": "t", "client_id": "c", "epoch": 1}
        return row | known | {"partition": partition, "until_at": moment}

    attempt = store.prepare(1)
    ended, opened = store.rows(attempt, "p0"), store.rows(attempt, "p0-open")
    ended.add({"claims": [tuple(claim(n, n).values()) for n in range(100)]})
    opened.add({"claims": [tuple(claim(100, None).values())]})
    at = dict.fromkeys(schema("positions").names) | {"coordinator": 0, "group_id": "g"}
    moved = [at | {"topic": "t", "partition": n % 2, "at": n * day_ms} for n in range(100)]
    ended.add({"positions": [tuple(row.values()) for row in moved]})
    files = ended.close() + opened.close()
    part = {"state": "", "open_name": opened.name, "until_ms": 100 * day_ms}
    store.commit(attempt, {"run": 1, "files": files, "parts": {"0": part}})

    latest = store.latest()
    assert latest == dt.datetime.fromtimestamp(100 * 86_400, dt.UTC)
    recent = store.table("claims", since=("until_at", latest - dt.timedelta(30)))
    assert sorted(recent.column("partition").to_pylist()) == list(range(70, 101))
    before = store.newest_before("positions", latest - dt.timedelta(30), ["topic", "partition"])
    assert sorted(row["at"].timestamp() / 86_400 for row in before) == [68, 69]
    assert store.count("claims") == 101
    assert store.values("claims", "group_id") == {"g": 101}
    assert "g · t/100" in (page := render(store))
    assert "g · t/69" not in page
    assert "g · t/69" in render(store, days=40)


def test_of_two_positions_at_one_moment_the_later_counts(store: Store) -> None:
    """One that was set ends the claim before it."""
    moment = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    folder = Path(store.out, "positions", "run=000001")
    folder.mkdir(parents=True)
    names = schema("positions").names
    rows = [{"group_id": "g", "at": moment, "next_offset": n} for n in (9, 3)]
    table = pa.Table.from_pylist([dict.fromkeys(names) | row for row in rows], schema("positions"))
    pq.write_table(table, folder / "p0-a.parquet")
    later = moment + dt.timedelta(1)
    (found,) = store.newest_before("positions", later, ["group_id"])
    assert found["next_offset"] == 3
    assert store.newest_before("positions", moment, ["group_id"]) == []


def test_a_report_is_there_whole_and_no_draft_of_it(store: Store) -> None:
    for text in ("<p>first</p>", "<p>ö</p>"):
        path = Path(store.write_text("report.html", text))
        assert path.read_text("utf-8") == text
    assert list(Path(store.out).iterdir()) == [path]


def test_a_file_system_without_hard_links_is_told_as_that(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(store, 10)
    found = run.task()

    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with pytest.raises(ConfigurationError, match=r"has no hard links.*give another folder"):
        run.commit(found)
    assert list(Path(store.out, "_checkpoint").glob("run-*")) == []


def test_a_folder_of_another_format_is_refused(store: Store) -> None:
    Path(store.out, "_checkpoint").mkdir()
    Path(store.out, "_checkpoint/run-000001.json").write_text('{"run": 1, "parts": {}}')
    with pytest.raises(ConfigurationError, match="give another --out"):
        store.recover()


@pytest.mark.campaign
def test_an_s3_store_commits_once() -> None:
    """`pip install 'moto[server,s3]'`: it answers conditional puts as S3 does."""
    pytest.importorskip("obstore")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        where = f"scheme=http&endpoint_override={host}:{port}&region=us-east-1"
        store = Store(f"s3://key:secret@bucket/audit?{where}&allow_bucket_creation=true")
        fs, _ = pyarrow.fs.FileSystem.from_uri(store.out)
        fs.create_dir("bucket")
        with store.locked():
            begin = Run(store, 5)
            begin.commit(begin.task())
            one, other = (Run(store, end, store.recover()) for end in (10, 20))
            ones, others = one.task(), other.task()
            one.commit(ones)
            with pytest.raises(ConfigurationError, match="another audit has committed run 2"):
                other.commit(others)
            following = Run(store, CLAIMS, store.recover())
            following.commit(following.task())
            assert claims(store) == list(range(CLAIMS))
    finally:
        server.stop()


def test_a_store_without_conditional_puts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store("hdfs://namenode/audit")
    memory = pyarrow.fs._MockFileSystem(), "audit"
    monkeypatch.setattr(Store, "_fs", memory)
    with pytest.raises(ConfigurationError, match="hdfs:// cannot create"), store.locked():
        pass
