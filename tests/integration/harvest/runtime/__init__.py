"""Integration tests of leaders, harvesters and the process around them.

Alone: ``python -m pytest tests/integration/harvest/runtime``.
"""
