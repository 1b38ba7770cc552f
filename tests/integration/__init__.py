"""Tests on a real Kafka and a real PostgreSQL, which they start.

``python -m pytest tests/integration``; a file of these takes seconds to minutes.
Fixtures that start servers come from marshal_py/embedded/pytest_plugin.py, the others from
conftest.py here.
"""
