"""Unit tests of the `marshal` command: ``python -m pytest tests/unit/marshal_py/cli``."""
