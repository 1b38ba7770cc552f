"""Unit tests of partitions, archives and replay.

Alone: ``python -m pytest tests/unit/harvest/maintenance``.
"""
