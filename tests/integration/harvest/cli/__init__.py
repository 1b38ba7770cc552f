"""Integration tests of the `harvest` command.

Alone: ``python -m pytest tests/integration/harvest/cli``.
"""
