"""Unit tests of what applications write with: ``python -m pytest tests/unit/harvest/outbox``."""
