"""A Kafka that is ready to start: what its processes are given, and what is kept for the next."""

from __future__ import annotations

import base64
import subprocess
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from marshal_py.embedded import ServerFailed, image
from marshal_py.embedded.image import KafkaImage, java_environment, random_id
from marshal_py.embedded.java import Java


@pytest.fixture
def kafka(tmp_path: Path) -> KafkaImage:
    """A version whose jars are empty files."""
    home = tmp_path / "kafka-4.1.0"
    (home / "libs").mkdir(parents=True)
    for name in ("b.jar", "a.jar"):
        (home / "libs" / name).touch()
    executable = tmp_path / "java"
    executable.write_text("#!/bin/sh\necho said by java; exit 3\n")
    executable.chmod(0o755)
    return KafkaImage("4.1.0", home, Java(executable, 21, "openjdk 21.0.8"))


def test_a_jvm_gets_nothing_of_the_environment_that_changes_its_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harmful = {"CLASSPATH", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS"}
    for name in (*harmful, "KEPT"):
        monkeypatch.setenv(name, "x")
    found = java_environment()
    assert not harmful & found.keys()
    assert found["KEPT"] == "x"


def test_an_identifier_is_none_that_kafkas_tools_take_for_an_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = iter([b"\xfb" + bytes(15), bytes(16)])  # the first begins with a dash
    monkeypatch.setattr(uuid, "uuid4", lambda: SimpleNamespace(bytes=next(made)))
    found = random_id()
    assert base64.urlsafe_b64decode(found + "==") == bytes(16)


def test_the_archive_of_classes_is_used_once_it_is_there(kafka: KafkaImage) -> None:
    command = kafka.command("kafka.Kafka", "p", flags=("-Xmx9m",))
    assert not [word for word in command if "SharedArchive" in word]
    assert command[0] == str(kafka.java.executable)
    assert command[-2:] == ["kafka.Kafka", "p"]
    assert "-Xmx9m" in command
    assert command[command.index("-cp") + 1].endswith("a.jar:" + str(kafka.home / "libs/b.jar"))
    kafka.archive.touch()
    assert f"-XX:SharedArchiveFile={kafka.archive}" in kafka.command("kafka.Kafka")


def test_another_build_of_java_has_another_archive(kafka: KafkaImage) -> None:
    """A JVM refuses one that another has made, and starts slowly then."""
    newer = Java(kafka.java.executable, 21, "openjdk 21.0.9")
    assert KafkaImage("4.1.0", kafka.home, newer).archive != kafka.archive


def test_an_archive_that_cannot_be_made_is_not_tried_again(
    kafka: KafkaImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (
        ServerFailed("no broker"),
        OSError("no disk"),
        subprocess.TimeoutExpired("java", 1),
    ):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(image, "_record_classes", fail)
        image._make_archive(kafka)
        assert kafka.archive.read_bytes() == b""
        assert not list(kafka.home.glob("*.partial"))
        kafka.archive.unlink()


def test_what_a_tool_said_when_it_failed_is_told(kafka: KafkaImage) -> None:
    with pytest.raises(ServerFailed, match="said by java"):
        image._make_checkpoint(kafka)
    assert not list(kafka.home.glob("bootstrap*"))
