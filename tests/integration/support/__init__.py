"""What `tests.support` promises: ``python -m pytest tests/integration/support``."""
