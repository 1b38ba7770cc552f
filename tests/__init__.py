"""All tests of both packages, and the commands that look for bugs in other ways.

`unit` and `integration` mirror the packages; `contract` holds every store and sink to the same
promises. The quick ones alone: ``python -m pytest -n 2 tests/unit`` (nothing is started).
"""
