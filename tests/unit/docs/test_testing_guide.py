"""The page on testing handlers: its tests pass, in a project that has nothing but the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.paths import DOCS


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    page = (DOCS / "how-to" / "test-handlers.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "test_page.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert f"{code.count('def test_')} passed" in done.stdout
