"""Unit tests of operating on groups, and looking at clusters.

Alone: ``python -m pytest tests/unit/marshal_py/admin``.
"""
