"""Unit tests of the protocol: fold, claimant, codec, sharing.

Alone: ``python -m pytest tests/unit/marshal_py/protocol``.
"""
