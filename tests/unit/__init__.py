"""Tests without servers and without other programs: ``python -m pytest -n 2 tests/unit``."""
