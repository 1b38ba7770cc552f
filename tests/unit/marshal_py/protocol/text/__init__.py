"""Unit tests of version 1, beside Go Marshal.

Alone: ``python -m pytest tests/unit/marshal_py/protocol/text``.
"""
