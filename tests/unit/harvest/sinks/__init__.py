"""Unit tests of what rows are sent to: ``python -m pytest tests/unit/harvest/sinks``."""
