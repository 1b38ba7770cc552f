"""Unit tests of `Consumer`: ``python -m pytest tests/unit/marshal_py/consumer``."""
