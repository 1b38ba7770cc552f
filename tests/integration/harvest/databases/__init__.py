"""Integration tests of the outbox in each database.

Alone: ``python -m pytest tests/integration/harvest/databases``.
"""
