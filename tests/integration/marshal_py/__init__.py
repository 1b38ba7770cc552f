"""Integration tests of coordination: ``python -m pytest tests/integration/marshal_py``."""
