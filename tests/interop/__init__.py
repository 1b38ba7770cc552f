"""Beside Go Marshal, on one log: ``python -m pytest tests/interop`` (specs/INTEROP.md).

`gopeer` stands in for the Go client, `peer` is ours; both are programs of their own.
"""
