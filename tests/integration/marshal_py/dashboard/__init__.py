"""Integration tests of the dashboard.

Alone: ``python -m pytest tests/integration/marshal_py/dashboard``.
"""
