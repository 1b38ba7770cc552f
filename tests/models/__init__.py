"""The models in specs/models, checked by SPIN: ``python -m pytest tests/models``."""
