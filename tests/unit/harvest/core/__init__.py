"""Unit tests of the schedulers, and what they stand on.

Alone: ``python -m pytest tests/unit/harvest/core``.
"""
