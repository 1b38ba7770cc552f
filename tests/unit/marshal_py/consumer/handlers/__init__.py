"""Unit tests of `Consumer.run`: ``python -m pytest tests/unit/marshal_py/consumer/handlers``."""
