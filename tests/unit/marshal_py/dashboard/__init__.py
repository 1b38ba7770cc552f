"""Unit tests of the dashboard: ``python -m pytest tests/unit/marshal_py/dashboard``."""
