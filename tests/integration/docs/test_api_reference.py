"""docs/api_reference.py makes the reference of all that is public, in a process of its own."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import DOCS

MODULES = runpy.run_path(str(DOCS / "api_reference.py"))["MODULES"]


def test_the_reference_is_made_of_all_that_is_public(tmp_path: Path) -> None:
    pytest.importorskip("pdoc")
    done = subprocess.run(
        [sys.executable, DOCS / "api_reference.py", tmp_path],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "does not resolve" not in done.stderr
    for name in MODULES:
        assert (tmp_path / f"{name.replace('.', '/')}.html").stat().st_size > 1_000
    page = (tmp_path / "marshal_py.html").read_text()
    assert all(name in page for name in ("Marshal", "Retry.delay_s", "snapshot_mismatches"))
