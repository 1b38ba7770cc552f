"""Where commands write: what is wrong with a path is told before the work begins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from marshal_py.cli.folders import check_file, make_folder
from marshal_py.errors import ConfigurationError


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which this user, who may be root, can write nothing."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    return tmp_path


def test_a_folder_is_made_if_need_be(tmp_path: Path) -> None:
    for _ in range(2):
        make_folder("--out", tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file", tmp_path / "file" / "a"):
        with pytest.raises(ConfigurationError, match=f"--out {wrong}: "):
            make_folder("--out", wrong)


def test_a_file_needs_a_folder_and_is_none(tmp_path: Path) -> None:
    check_file("--out", tmp_path / "x.html")
    (tmp_path / "x.html").touch()
    check_file("--out", tmp_path / "x.html")
    for no_folder in ("missing", "x.html"):
        with pytest.raises(ConfigurationError, match=rf"there is no folder .*/{no_folder}"):
            check_file("--out", tmp_path / no_folder / "x.html")
    with pytest.raises(ConfigurationError, match="this is a folder"):
        check_file("--out", tmp_path)


def test_where_nothing_can_be_written_is_told(closed: Path) -> None:
    with pytest.raises(ConfigurationError, match="may not be written to"):
        make_folder("--out", closed)
    with pytest.raises(ConfigurationError, match="may not be written to"):
        check_file("--out", closed / "x.html")
    (closed / "x.html").touch()
    check_file("--out", closed / "x.html")
