"""In CI a skip is a failure, unless the case cannot be had at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

FAIL = {
    "inside": "import pytest\ndef test(): pytest.skip('this tool is not installed')",
    "collected": "import pytest\npytest.importorskip('no_such_module')\ndef test(): pass",
    "marked": "import pytest\n@pytest.mark.skipif(1, reason='there is no tool')\ndef test(): pass",
}
STAY = {
    "case": "import pytest\ndef test(): pytest.skip('only transactions fence')",
    "expected": "import pytest\n@pytest.mark.xfail\ndef test(): assert 0",
    "passes": "def test(): pass",
}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_is_skipped_fails(tmp_path: Path, workers: str) -> None:
    for name, text in {**FAIL, **STAY}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.no_skips", "-n", workers]
    command += ["-p", "no:cacheprovider", "--continue-on-collection-errors", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    for reason in ("this tool is not installed", "no_such_module", "there is no tool"):
        assert f"skipped where everything has to run: {reason}" in done.stdout.replace(
            "could not import '", ""
        )
    assert "1 failed, 1 passed, 1 skipped, 1 xfailed, 2 errors" in done.stdout
