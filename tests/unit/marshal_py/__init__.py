"""Unit tests of coordination: ``python -m pytest tests/unit/marshal_py``."""
