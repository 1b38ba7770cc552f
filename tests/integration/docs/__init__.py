"""What documents show runs, on real servers: ``python -m pytest tests/integration/docs``."""
