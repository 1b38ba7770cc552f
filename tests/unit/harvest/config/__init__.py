"""Unit tests of configuration files: ``python -m pytest tests/unit/harvest/config``."""
