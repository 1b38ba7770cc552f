"""Integration tests of the Spark pipelines over an outbox.

Alone: ``python -m pytest tests/integration/harvest/spark``.
"""
