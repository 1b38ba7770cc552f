"""Where things lie in a checkout, for tests and the tools beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
TESTS: Final = ROOT / "tests"
SPECS: Final = ROOT / "specs"
DOCS: Final = ROOT / "docs"
INTEROP_DATA: Final = TESTS / "interop" / "data"
