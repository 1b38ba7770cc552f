"""Databases that go back in time, and outboxes with two masters, on real servers.

`python -m tests.sources --runs 500`; a few runs are `tests/sources/test_sources.py`.
"""
