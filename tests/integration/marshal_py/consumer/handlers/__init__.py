"""Integration tests of `Consumer.run`.

Alone: ``python -m pytest tests/integration/marshal_py/consumer/handlers``.
"""
