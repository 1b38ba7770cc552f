"""Unit tests of the harvester: ``python -m pytest tests/unit/harvest``."""
