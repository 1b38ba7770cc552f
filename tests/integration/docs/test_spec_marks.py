"""The tests that the table of specs/PROTOCOL.md names are tests that pytest runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.support import spec
from tests.support.paths import ROOT, TESTS


def test_the_marked_tests_are_collected() -> None:
    marked = list(spec.marked_tests().values())
    files = sorted({name.split("::")[0] for names in marked for name in names})
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
        + [str(TESTS / file) for file in files],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTEST_ADDOPTS": ""},
        check=True,
    ).stdout
    found = {re.sub(r"^tests/|\[.*$", "", line) for line in collected.splitlines()}
    for names in marked:
        assert set(names) <= found
