"""Unit tests of the audit and the verifier.

Alone: ``python -m pytest tests/unit/marshal_py/protocol/history``.
"""
