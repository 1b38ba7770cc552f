"""Integration tests of the `marshal` command.

Alone: ``python -m pytest tests/integration/marshal_py/cli``.
"""
