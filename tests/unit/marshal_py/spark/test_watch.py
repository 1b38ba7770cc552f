"""A driver whose cluster is gone, told by a session that only says what Spark's would."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marshal_py.errors import ClusterLost, ConfigurationError
from marshal_py.spark import watch as module
from marshal_py.spark.watch import TIMEOUT_SETTING, cluster_watched


class Session:
    """Jobs that run or not, and so many executors beside the driver."""

    def __init__(self, master: str = "spark://one:7077", timeout: str = "0.02") -> None:
        self.master, self.timeout = master, timeout
        self.jobs, self.executors = [1], 0
        self.looked = threading.Semaphore(0)
        self.cancelled = threading.Event()
        self.conf = self.sparkContext = self

    def get(self, name: str, default: str) -> str:
        assert (name, default) == (TIMEOUT_SETTING, "300")
        return self.timeout

    def statusTracker(self) -> Session:
        return self

    def getActiveJobsIds(self) -> list[int]:
        self.looked.release()
        return self.jobs

    def getExecutorInfos(self) -> list[str]:
        return ["driver"] + ["executor"] * self.executors

    def cancelAllJobs(self) -> None:
        self.cancelled.set()

    def wait_cancelled(self) -> None:
        """What an action does whose job is cancelled."""
        assert self.cancelled.wait(60)
        raise ArithmeticError("Job 1 cancelled")

    def wait_looked(self, times: int) -> None:
        for _ in range(times):
            assert self.looked.acquire(timeout=60)


def watched(session: Session) -> Any:
    return cluster_watched(cast(Any, session))


def test_a_job_without_executors_is_cancelled_and_the_error_says_why() -> None:
    session = Session()
    said = rf"no executor for 0\.02 s.*set {TIMEOUT_SETTING}"
    with pytest.raises(ClusterLost, match=said), watched(session):
        session.wait_cancelled()
    assert session.cancelled.is_set()


@pytest.mark.parametrize(("jobs", "executors"), [([], 0), ([1], 1)])
def test_who_has_executors_or_no_jobs_goes_on(jobs: list[int], executors: int) -> None:
    session = Session()
    session.jobs, session.executors = jobs, executors
    with watched(session):
        session.wait_looked(10)
    assert not session.cancelled.is_set()


def test_the_time_is_that_since_an_executor_was_there_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, now = Session(), [0.0]
    looks = iter([(6.0, 0), (8.0, 1), (17.0, 0), (18.5, 0)])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    watch = module._Watch(cast(Any, session), 10.0)

    def wait(_timeout_s: float) -> bool:
        look = next(looks, None)
        if look is not None:
            assert not watch.lost
            now[0], session.executors = look
        return look is None

    monkeypatch.setattr(watch, "_ended", SimpleNamespace(wait=wait))
    watch._run()
    assert watch.lost


def test_another_error_is_passed_on() -> None:
    session = Session(timeout="60")
    with pytest.raises(ArithmeticError), watched(session):
        raise ArithmeticError


def test_a_session_that_was_stopped_ends_the_watch() -> None:
    session = Session()

    def stopped() -> list[str]:
        session.looked.release()
        raise ConnectionError

    session.getExecutorInfos = stopped  # type: ignore[method-assign]
    with watched(session):
        session.wait_looked(2)


def test_sessions_of_this_machine_are_not_watched() -> None:
    session = Session("local[2]")
    before = threading.active_count()
    with watched(session):
        assert threading.active_count() == before


def test_spark_connect_is_not_watched() -> None:
    class Connect:
        conf = Session()

        @property
        def sparkContext(self) -> None:
            raise NotImplementedError

    with watched(cast(Any, Connect())):
        pass


@pytest.mark.parametrize("timeout", ["0", "-1", "soon", "nan", ""])
def test_a_wrong_time_is_named(timeout: str) -> None:
    session = Session(timeout=timeout)
    with pytest.raises(ConfigurationError, match="noExecutorsTimeoutSeconds"), watched(session):
        pass
