"""Integration tests of `Marshal` and its parts.

Alone: ``python -m pytest tests/integration/marshal_py/client``.
"""
