"""Integration tests of operating on groups, and looking at clusters.

Alone: ``python -m pytest tests/integration/marshal_py/admin``.
"""
