"""Unit tests of what tests are given: ``python -m pytest tests/unit/marshal_py/testing``."""
