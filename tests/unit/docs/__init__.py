"""Documents and deployment files say what is true: ``python -m pytest tests/unit/docs``."""
