"""Integration tests of what applications write with.

Alone: ``python -m pytest tests/integration/harvest/outbox``.
"""
