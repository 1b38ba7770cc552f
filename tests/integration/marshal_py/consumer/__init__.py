"""Integration tests of `Consumer`: ``python -m pytest tests/integration/marshal_py/consumer``."""
