"""Integration tests of the harvester: ``python -m pytest tests/integration/harvest``."""
