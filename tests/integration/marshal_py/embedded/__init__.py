"""Integration tests of embedded servers.

Alone: ``python -m pytest tests/integration/marshal_py/embedded``.
"""
