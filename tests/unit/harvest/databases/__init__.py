"""Unit tests of the outbox in each database: ``python -m pytest tests/unit/harvest/databases``."""
