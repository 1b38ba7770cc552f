"""`marshal run`: a handler of some module runs, is begun again after a change, and ends well."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from marshal_py.cli import run as run_module
from marshal_py.cli.run import load_handler
from marshal_py.errors import ConfigurationError, HandlerFailed
from marshal_py.testing import TestBroker
from tests.support.marshal_command import without_brokers

HANDLER = """\
def handle(message):
    print("VERSION", message.value().decode(), flush=True)
"""


@contextmanager
def running(folder: Path, broker: TestBroker, *more: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "marshal_py.cli", "run", "service:handle"]
    command += ["-b", broker.bootstrap_servers, "-t", "orders", "-g", "g", *more]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_handler_runs_until_it_is_told_to_end(
    tmp_path: Path, mock_kafka: TestBroker, number: signal.Signals
) -> None:
    (tmp_path / "service.py").write_text(HANDLER.replace("VERSION", "handled"))
    mock_kafka.send("orders", "7")
    with running(tmp_path, mock_kafka, "--workers", "2") as process:
        assert line_of(process) == "handled 7\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert "handled 1, failed 0" in said


def test_a_change_begins_it_again(tmp_path: Path, mock_kafka: TestBroker) -> None:
    (tmp_path / "service.py").write_text(HANDLER.replace("VERSION", "old"))
    mock_kafka.send("orders", "1")
    with running(tmp_path, mock_kafka, "--reload") as process:
        assert line_of(process) == "old 1\n"
        (tmp_path / "service.py").write_text(HANDLER.replace("VERSION", "another"))
        mock_kafka.send("orders", "2")
        while (line := line_of(process)).startswith("old"):
            mock_kafka.send("orders", "3")  # the old one was quicker
        assert line.startswith("another")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)


@pytest.mark.parametrize("has_ended", [False, True])
def test_the_one_before_has_ended_when_it_begins_again(
    monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    """Two at a time would share the partitions, and the old one has the old code."""
    done: list[str] = []
    changes = iter([{}, {}, {}, {Path("a.py"): 1}, {}])

    class Process:
        def __init__(self, _: list[str]) -> None:
            done.append("begin")
            if done.count("begin") == 2:
                raise KeyboardInterrupt

        def poll(self) -> int | None:
            return 0 if has_ended else None

        def terminate(self) -> None:
            done.append("tell to end")

        def wait(self) -> None:
            done.append("wait")

    monkeypatch.setattr(run_module, "_changes", lambda: next(changes))
    monkeypatch.setattr(run_module, "subprocess", SimpleNamespace(Popen=Process))
    monkeypatch.setattr(run_module, "time", SimpleNamespace(sleep=lambda _: None))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        run_module._reload([])
    assert done == ["begin", *["tell to end"] * (not has_ended), "wait", "begin"]


def test_what_is_no_handler_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "some_service.py").write_text("def handle(message): ...\nlimit = 3\n")
    assert load_handler("some_service:handle").__name__ == "handle"
    for wrong, why in (
        ("some_service", "must be MODULE:HANDLER"),
        ("no_such_service:handle", "there is no module 'no_such_service'"),
        ("some_service:handel", "did you mean 'handle'"),
        ("some_service:limit", "is a int, not a function"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            load_handler(wrong)


def test_the_module_that_lies_here_goes_before_others_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "elsewhere"), *sys.path])
    (tmp_path / "elsewhere").mkdir()
    for folder, name in (("elsewhere", "theirs"), (".", "ours")):
        (tmp_path / folder / "twice_service.py").write_text(f"def {name}(message): ...\n")
    assert load_handler("twice_service:ours").__name__ == "ours"


def test_a_module_that_lacks_another_says_which_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there, and it is not well."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "lacking_service.py").write_text("import no_such_package\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        load_handler("lacking_service:handle")
    (tmp_path / "some_package").mkdir()
    with pytest.raises(ConfigurationError, match=r"no module 'some_package\.missing'"):
        load_handler("some_package.missing:handle")


class Quick:
    """A consumer that ends as the test says, and keeps how it was made and run."""

    made: ClassVar[dict[str, Any]]
    ran: ClassVar[dict[str, Any]]
    end: ClassVar[BaseException | None] = None

    def __init__(self, kafka: Mapping[str, object], **given: Any) -> None:
        type(self).made = {**given, "brokers": kafka["bootstrap.servers"]}

    def run(self, handler: object, **options: Any) -> Any:
        type(self).ran = options
        if self.end is not None:
            raise self.end
        return self.stats()

    def stats(self) -> Any:
        return SimpleNamespace(handled=3, failures=1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> type[Quick]:
    monkeypatch.setattr(run_module, "Consumer", Quick)
    monkeypatch.setattr(run_module, "load_handler", lambda _: print)
    monkeypatch.setattr(Quick, "end", None)
    return Quick


RUN = ["run", "service:handle", "--topic", "orders", "--topic", "bills", "--group", "g"]


def test_by_default_nothing_is_lost_and_a_failure_stops_it(quick: type[Quick]) -> None:
    done = without_brokers(*RUN)
    assert done.exit_code == 0
    assert "handled 3, failed 1" in done.stderr
    assert quick.made == {
        "topics": ["orders", "bills"], "group_id": "g", "mode": "at_least_once",
        "sharing": "partitions", "slots": 16, "topic": "__marshal", "create_topics": False,
        "connect_timeout_ms": 10_000, "brokers": "nowhere:1",
    }  # fmt: skip
    assert quick.ran == {"workers": 8, "on_failure": "stop", "batch_size": None}


def test_options_are_the_consumers_own(quick: type[Quick]) -> None:
    without_brokers(
        *RUN, "--workers", "2", "--mode", "at_most_once", "--on-failure", "skip", "--batch-size",
        "5", "--slots", "32", "--create-topics", "--timeout", "2.5", "--coordination-topic", "mine",
    )  # fmt: skip
    made = quick.made
    assert (made["mode"], made["sharing"], made["slots"]) == ("at_most_once", "keys", 32)
    assert (made["create_topics"], made["connect_timeout_ms"], made["topic"]) == (
        True, 2_500, "mine",
    )  # fmt: skip
    assert quick.ran == {"workers": 2, "on_failure": "skip", "batch_size": 5}


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(0), SystemExit(143)])
def test_what_was_done_is_told_when_it_is_told_to_end(
    quick: type[Quick], monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    monkeypatch.setattr(quick, "end", end)
    done = without_brokers(*RUN)
    assert done.exit_code == 0
    assert "handled 3, failed 1" in done.stderr


@pytest.mark.parametrize(("given", "code"), [(1, 1), (75, 75), ("no\x1b database", 1)])
def test_a_handler_that_ends_the_program_says_with_which_code(
    quick: type[Quick], monkeypatch: pytest.MonkeyPatch, given: object, code: int
) -> None:
    monkeypatch.setattr(quick, "end", SystemExit(given))
    done = without_brokers(*RUN)
    assert done.exit_code == code
    assert "handled 3, failed 1" in done.stderr
    assert ("no\\x1b database" in done.stderr) is (given != code)


def test_a_failure_that_stopped_it_is_an_exit_code(
    quick: type[Quick], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick, "end", HandlerFailed("it failed for good"))
    done = without_brokers(*RUN)
    assert done.exit_code == 2
    assert "it failed for good" in done.stderr


def test_only_sources_of_ones_own_are_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither hidden folders, such as .venv, nor what Python compiles."""
    monkeypatch.chdir(tmp_path)
    for path in ("a.py", "below/b.py", ".venv/c.py", "__pycache__/d.py", "below/text.txt"):
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.touch()
    found = run_module._changes()
    assert {str(path) for path in found} == {"a.py", "below/b.py"}
    os.utime("a.py", ns=(0, 7))
    assert run_module._changes()[Path("a.py")] == 7
