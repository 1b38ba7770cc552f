"""Integration tests of partitions, archives and replay.

Alone: ``python -m pytest tests/integration/harvest/maintenance``.
"""
