"""Integration tests of what rows are sent to.

Alone: ``python -m pytest tests/integration/harvest/sinks``.
"""
