"""Unit tests of embedded servers: ``python -m pytest tests/unit/marshal_py/embedded``."""
