"""Unit tests of `Marshal` and its parts: ``python -m pytest tests/unit/marshal_py/client``."""
