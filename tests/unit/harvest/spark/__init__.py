"""Unit tests of the Spark pipelines over an outbox.

Alone: ``python -m pytest tests/unit/harvest/spark``.
"""
